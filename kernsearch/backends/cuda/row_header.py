"""What "ks_generated.h" defines for rows (see `backends.rows`): V neighbours of a row at a time.

    ks_rows(x), ks_columns(x), ks_slabs(x)     how many rows there are, elements of one, slabs that it is cut into
    ks_first(x, i), ks_last(x, i)              the elements [first, last) of slab i.S; ends are multiples of 64
    KS_VEC                                     neighbours that move in one word of 16 bytes
    ks_row_wide<V>(x)                          true when all arrays that have the row's axis can be moved so
    ks_kept<V>                                 what a kernel keeps of V elements: an array for each operand
    ks_row_fetch<V>(x, i, kept, words)         fetch V elements from i.N on, which all exist, by `words.take`: those
                                               of words.cuh, which read the arrays, or a kernel's own
    KS_EARLY_FIELDS(FIELD), KS_LAST_FIELD(FIELD)   FIELD(name, sum|max) for each field, in order
    ks_term_<field><V>(x, i, f, kept, out)     what is added up, or of which the maximum is taken
    KS_ONLINE                                  1 when the fields are m and l as `Rows.online` says; f.share is then 1,
                                               and exp(m' - m) for words that settled with m' for m
    KS_SETTLES, ks_row_settle<V>(kept, term)   1 when the last field's term takes the first operand's place
    ks_row_put<V>(x, i, f, kept)               compute and store V elements of the outputs that have the row's axis
    ks_row_state(x, i, f)                      compute and store the other outputs

i.M is the row, i.N the position in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...binding import Binding, Expr
from ...launch import itemsize
from ..expressions import leaves, spell
from ..rows import KEPT, Rows, rows_of
from ..views import View, c_name
from .lanes import element

WORD = 16  # bytes that move at once
STEP = "ks_step<V>"
SHARE = "share"
SLAB_STEP = 64
X, AT = "const ks_args &x", "const ks_at &i"


def row_header(binding: Binding, types: dict[str, str]) -> Iterator[str]:
    """The definitions above. `types` gives the C++ name of a dtype."""
    rows = rows_of(binding)
    view = View(binding, rows.groups, "x.")
    yield _function("int64_t ks_rows", X, view.extent("M"))
    yield _function("int64_t ks_columns", X, view.extent("N"))
    yield _function("int64_t ks_slabs", X, view.extent("S"))
    yield from _range(view, rows)
    yield from _widths(view, rows)
    roles = [c_name(role) for role in rows.operands]
    members = " ".join(f"ks_acc {role}[V];" for role in roles)
    aligned = "alignas(V * sizeof(ks_acc) % 16 ? sizeof(ks_acc) : 16)"
    yield f"template <int V>\nstruct {aligned} ks_kept {{\n    {members}\n}};"
    fetched = [(f"kept.{role}[l]", expr) for role, expr in zip(roles, rows.operands.values(), strict=True)]
    head = f"void ks_row_fetch({X}, {AT}, ks_kept<V> &kept, Words &&words)"
    yield _lanes(view, head, fetched, rows, take="words.template take", types=", class Words")
    listed = [f"FIELD({c_name(term.name)}, {term.monoid})" for term in rows.terms]
    yield f"#define KS_EARLY_FIELDS(FIELD) {' '.join(listed[:-1])}"
    yield f"#define KS_LAST_FIELD(FIELD) {listed[-1]}"
    for term in rows.terms:
        head = (
            f"void ks_term_{c_name(term.name)}({X}, {AT}, const ks_fields &f, const ks_kept<V> &kept, ks_acc (&out)[V])"
        )
        yield _lanes(view, head, [("out[l]", term.value)], rows)
    yield f"#define KS_ONLINE {int(rows.online)}"
    yield f"#define KS_SETTLES {int(rows.settles)}"
    yield (
        "template <int V>\nKS_DEVICE void ks_row_settle(ks_kept<V> &kept, const ks_acc (&term)[V]) {\n"
        f"#pragma unroll\n    for (int l = 0; l < V; l++) kept.{roles[0]}[l] = term[l];\n}}"
    )
    yield from _put(view, rows)
    lines = []
    for root in rows.states:
        kind = types[view.array(root.array).dtype]
        where = view.address(root.array, root.axes)
        lines.append(f"*({where}) = ks_from_acc<{kind}>({spell(root.value, element(view))});")
    body = "\n    ".join(lines)
    yield f"KS_DEVICE void ks_row_state({X}, {AT}, const ks_fields &f) {{\n    {body}\n}}"


def _function(signature: str, parameters: str, value: str) -> str:
    return f"KS_DEVICE {signature}({parameters}) {{ return {value}; }}"


def _range(view: View, rows: Rows) -> Iterator[str]:
    extent, first, last = f"x.e_{c_name(rows.axis)}", "0", view.extent("N")
    if slabs := rows.groups["S"]:
        length = f"ks_up<int64_t>(ks_ceil({extent}, x.e_{c_name(slabs[0])}), {SLAB_STEP})"
        first, last = f"ks_min(i.S * {length}, {extent})", f"ks_min((i.S + 1) * {length}, {extent})"
    yield _function("int64_t ks_first", f"{X}, {AT}", first)
    yield _function("int64_t ks_last", f"{X}, {AT}", last)


def _moved(view: View, rows: Rows) -> list[tuple[str, tuple[str, ...]]]:
    """(array, axes as the kernel names them) of everything that is read or written along a row."""
    expressions = [*rows.operands.values(), *(root.value for root in rows.outputs)]
    found = [(load[1], load[2]) for expr in expressions for load in leaves(expr, "load")]
    found += [(root.array, root.axes) for root in rows.outputs]
    return [place for place in dict.fromkeys(found) if rows.axis in place[1]]


def more_fields(binding: Binding) -> tuple[str, ...]:
    """Members of ks_fields beside the fields."""
    rows = rows_of(binding)
    return (f"ks_acc {SHARE} = 1;",) if rows.online and rows.settles else ()


def word_elements(binding: Binding) -> int:
    """KS_VEC: as many elements as fit a word in the widest of the arrays that move along rows."""
    rows = rows_of(binding)
    return _elements(View(binding, rows.groups, "x."), rows)


def _elements(view: View, rows: Rows) -> int:
    return WORD // max((itemsize(view.array(name).dtype) for name, _ in _moved(view, rows)), default=4)


def _widths(view: View, rows: Rows) -> Iterator[str]:
    moved = _moved(view, rows)
    yield f"#define KS_VEC {_elements(view, rows)}"
    conditions = [f"x.e_{c_name(rows.axis)} % V == 0"]
    for name, axes in moved:
        size = itemsize(view.array(name).dtype)
        conditions.append(f"{view.step(name, axes, rows.axis)} == 1")
        conditions.append(f"ks_aligned(x.p_{c_name(name)}, V * {size})")
        for axis, own in zip(axes, view.array(name).axes, strict=True):
            if axis != rows.axis:
                conditions.append(f"({view.stride(name, own)} % V == 0 || x.e_{c_name(axis)} == 1)")
    text = "\n        && ".join(dict.fromkeys(conditions))
    yield f"template <int V>\nKS_DEVICE bool ks_row_wide({X}) {{\n    return {text};\n}}"


def _lanes(
    view: View,
    head: str,
    values: Sequence[tuple[str, Expr]],
    rows: Rows,
    store: Sequence[str] = (),
    *,
    take: str = "ks_take",
    types: str = "",
) -> str:
    """A function of V neighbours, and of more `types`: loads first, by `take`, then arithmetic, then stores."""
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    lines = []
    for _, expr in values:
        for load in leaves(expr, "load"):
            if (load[1], load[2]) not in names:
                names[load[1], load[2]] = name = f"l{len(names)}"
                how_read = take if rows.axis in load[2] else "ks_take_one"
                address = view.address(load[1], load[2], {rows.axis: STEP})
                lines += [f"ks_acc {name}[V];", f"{how_read}<V>({address}, {name});"]

    def kept(name: str) -> str:
        return f"kept.{c_name(name.removeprefix(KEPT))}[l]" if name.startswith(KEPT) else f"f.{c_name(name)}"

    how = replace(element(view), load=lambda array, axes: f"{names[array, axes]}[l]", acc=kept)
    lines = ["const ks_at first = i;", *lines]
    lines.append("#pragma unroll")
    sums = " ".join(f"{target} = {spell(expr, how)};" for target, expr in values)
    lines.append(f"for (int l = 0; l < V; l++) {{ ks_at i = first; i.N += l; {sums} }}")
    lines += store
    text = "\n".join(line if line.startswith("#") else f"    {line}" for line in lines)
    return f"template <int V{types}>\nKS_DEVICE {head} {{\n{text}\n}}"


def _put(view: View, rows: Rows) -> Iterator[str]:
    declared, values, stores = [], [], []
    for number, root in enumerate(rows.outputs):
        value = root.value
        if rows.online and rows.settles:  # as `Rows.online` says, a product with the sum's inverse
            value = ("mul", value[1], ("mul", value[2], ("acc", SHARE)))
        declared.append(f"ks_acc v{number}[V];")
        values.append((f"v{number}[l]", value))
        stores.append(f"ks_give<V>({view.address(root.array, root.axes, {rows.axis: STEP})}, v{number});")
    head = f"void ks_row_put({X}, {AT}, const ks_fields &f, const ks_kept<V> &kept)"
    text = _lanes(view, head, values, rows, stores)
    first = text.index("{\n") + 2
    yield text[:first] + "".join(f"    {line}\n" for line in declared) + text[first:]
