"""What "ks_generated.h" defines for chained contractions (see `backends.chained`), for groups G of S B M N K D (slab,
batch, rows, columns, reduced, inner depth) and roles R of the operands of both contractions:

KS_BY_G, ks_extent_G(x)                    1 when the group is at most one axis; its elements
ks_first_K(x, i), ks_last_K(x, i)          K runs over [first, last) of the slab
KS_TYPE_R, ks_R(x, i)                      element type; the operand's hole at one index
KS_PLAIN_R, ks_wide_R(x)                   1 when the hole is a bare load; can 16 bytes of its rows be moved at once?
ks_at_R(x, i), ks_step_R_G(x)              then: address, and elements between neighbours along G
ks_run_M(x)                                rows that follow each other in every array: those of the last axis of M
ks_place_R, ks_place_of_R(x, i)            where boxes of a mapped operand lie along all axes but two: to be found once
KS_LOAD_R(x, p, to, barrier, inner, outer) loads a box at such a place, by its first element along the contiguous
                                           dimension, and along the last axis of its rows
KS_SEES, ks_sees(x, i)                     1 when a mask hides elements; how many of K row i.M sees, 0 at least
ks_most_seen(x, low, high), ks_least_seen  bounds of ks_sees for the rows from low.M to high.M
KS_SCALED, ks_scale(x)                     1 when scores are the inner sums times a scalar, and that scalar
ks_score(x, i, s)                          what becomes of the inner sum s at i.M, i.K where nothing hides it
KS_SLABS                                   1 when outputs are states of slabs
ks_row, ks_row_of(x, i)                    where the columns of a row lie: to be found once
ks_put_N<V>(x, r, i, count, f)             compute and store the outputs that have columns, at V neighbours along N, of
                                           which `count` exist, 0 at least
KS_STATES, ks_state(x, i, f)               1 when there are outputs without columns; compute and store them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...binding import Binding, Expr
from ...launch import itemsize
from ..chained import Chained, chained_of
from ..expressions import inverted, leaves, spell
from ..views import View, c_name
from .boxes import Box
from .lanes import element, put_in_rows
from .pieces import AT, TYPES, X, depth, function, places

GROUPS = "SBMNKD"
WORD = 16  # bytes that move at once


def chain_header(binding: Binding, boxes: Sequence[Box] = ()) -> Iterator[str]:
    """The definitions above; `boxes` are the maps of the operands that have one."""
    chain = chained_of(binding)
    view = View(binding, {g: binding.groups.get(g, ()) for g in GROUPS} | {"S": tuple(binding.slabs.values())}, "x.")
    for group in GROUPS:
        yield f"#define KS_BY_{group} {int(len(view.groups[group]) <= 1)}"
        yield function(f"int64_t ks_extent_{group}", X, view.extent(group))
    yield from depth(view)
    for role, expr in binding.operands.items():
        if role != chain.role:
            yield from _operand(view, role, expr)
    rows = view.groups["M"]
    yield function("int64_t ks_run_M", X, f"x.e_{c_name(rows[-1])}" if rows else "1")
    for box in boxes:
        yield from _load(view, box)
    yield from _sees(view, chain)
    yield from _scores(view, chain)
    yield f"#define KS_SLABS {int(bool(binding.slabs))}"
    columns = set(binding.groups.get("N", ()))
    shared = {field.name for field in binding.fields if not columns & set(field.axes)}

    def alike(expr: Expr) -> bool:
        return _alike(expr, columns, shared)

    outputs = [replace(r, value=inverted(r.value, alike)) for r in binding.roots if columns & set(r.axes)]
    states = [root for root in binding.roots if not columns & set(root.axes)]
    yield from put_in_rows(view, "ks_put_N", outputs, "N", "ks_row", alike)
    yield f"#define KS_STATES {int(bool(states))}"
    lines = "".join(
        f"\n    *({view.address(root.array, root.axes)}) = "
        f"ks_from_acc<{TYPES[view.array(root.array).dtype]}>({spell(root.value, element(view))});"
        for root in states
    )
    yield f"KS_DEVICE void ks_state({X}, {AT}, const ks_fields &f) {{{lines}\n}}"


def _operand(view: View, role: str, expr: Expr) -> Iterator[str]:
    kinds = {TYPES[view.array(load[1]).dtype] for load in leaves(expr, "load")}
    yield f"#define KS_TYPE_{role} {kinds.pop() if len(kinds) == 1 else 'ks_acc'}"
    yield function(f"ks_acc ks_{role}", f"{X}, {AT}", spell(expr, element(view)))
    plain = expr[0] == "load"
    yield f"#define KS_PLAIN_{role} {int(plain)}"
    yield function(f"bool ks_wide_{role}", X, _wide(view, expr) if plain else "false")
    if plain:
        yield from places(view, role, expr[1], expr[2], "const ")


def _load(view: View, box: Box) -> Iterator[str]:
    """Fewer dimensions than a map has are filled up with one that begins at 0."""
    others = [f"int({view.index(axis)})" for axis in box.others] or ["0"]
    names = [f"d{number}" for number in range(len(others))]
    yield f"struct ks_place_{box.role} {{\n    int {', '.join(names)};\n}};"
    yield function(f"ks_place_{box.role} ks_place_of_{box.role}", f"{X}, {AT}", f"{{{', '.join(others)}}}")
    load = f"ks_bulk_load(to, &(x).map_{box.made.name}, barrier, inner, outer"
    yield f"#define KS_LOAD_{box.role}(x, p, to, barrier, inner, outer) {load}, {', '.join(f'(p).{n}' for n in names)})"


def _alike(expr: Expr, columns: set[str], fields: set[str]) -> bool:
    """Is the value the same in all columns?"""
    match expr[0]:
        case "load":
            return not columns & set(expr[2])
        case "acc":
            return expr[1] in fields
        case "mask" if columns & set(expr[2:4]):
            return False
    return all(_alike(part, columns, fields) for part in expr[1:] if isinstance(part, tuple))


def _wide(view: View, expr: Expr) -> str:
    """Rows along the array's last dimension begin at multiples of 16 bytes, and so do its pieces."""
    _, name, axes = expr
    size, own = itemsize(view.array(name).dtype), view.array(name).axes
    conditions = [f"{view.stride(name, own[-1])} == 1", f"ks_aligned(x.p_{c_name(name)}, {WORD})"]
    for axis, dimension in zip(axes[:-1], own[:-1], strict=True):
        conditions.append(f"({view.stride(name, dimension)} * {size} % {WORD} == 0 || x.e_{c_name(axis)} == 1)")
    return " && ".join(conditions)


def _sees(view: View, chain: Chained) -> Iterator[str]:
    """Rows of several axes are told apart where they begin and end: between, each value of the inner ones may occur."""
    yield f"#define KS_SEES {int(bool(chain.sees))}"
    whole = view.extent("K")
    bounds = {"sees": whole, "most_seen": whole, "least_seen": whole}
    rows = view.groups["M"]
    for axis, off in chain.sees:
        last = f"x.e_{c_name(axis)} - 1"
        inner = rows[rows.index(axis) + 1 :]
        block = " * ".join(f"x.e_{c_name(a)}" for a in (axis, *inner))
        same = "true" if axis == rows[0] else f"low.M / ({block}) == high.M / ({block})"
        at = {"sees": view.index(axis)}
        for name, end, otherwise in (("most_seen", "high", last), ("least_seen", "low", "0")):
            text = view.index(axis).replace("i.M", f"{end}.M")
            at[name] = f"({same} ? {text} : {otherwise})"
        for name, index in at.items():
            bounds[name] = f"ks_min({bounds[name]}, {index} + ({view.size(off)}) + 1)"
    between = "const ks_args &x, const ks_at &low, const ks_at &high"
    for name, value in bounds.items():
        parameters = f"{X}, {AT}" if name == "sees" else between
        yield function(f"int64_t ks_{name}", parameters, f"ks_max(int64_t(0), {value})")


def _scores(view: View, chain: Chained) -> Iterator[str]:
    scalar = next((e[1] for e in chain.free[1:] if e[0] == "scalar"), "") if _is_scaled(chain) else ""
    yield f"#define KS_SCALED {int(bool(scalar))}"
    yield function("ks_acc ks_scale", X, f"ks_acc(x.c_{c_name(scalar)})" if scalar else "ks_acc(1)")
    how = replace(element(view), acc=lambda _: "s")
    yield function("ks_acc ks_score", f"{X}, {AT}, ks_acc s", spell(chain.free, how))


def _is_scaled(chain: Chained) -> bool:
    """Are scores a run-time scalar times the inner sum?"""
    return chain.free[0] == "mul" and {part[0] for part in chain.free[1:]} == {"scalar", "acc"}
