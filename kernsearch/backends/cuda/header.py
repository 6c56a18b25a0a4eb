"""The text of "ks_generated.h" for a CUDA kernel. What it defines, beside all of kernsearch.cuh:

    ks_args                      p_<array>, scratch, extents e_<axis>, strides s_<array>_<axis>, scalars c_<name>,
                                 map_<role>; every function below takes (const ks_args &x, const ks_at &i, ...)
    ks_at                        indices i.S i.B i.M i.N i.K: slab, batch, row, column, depth; each a flattened group
    KS_DOUBLE, KS_COARSE         1 when ks_acc is double; 1 when elementary functions may be coarse (elementary.cuh)
    ks_fields, KS_RESULT         one ks_acc per result of the anchor; the name of the first

contractions (bindings with operands and no fields), for groups G of S B M N K and roles R of the operands:
    KS_BY_G, ks_extent_G(x)                    1 when the group is at most one axis; its elements
    ks_first_K(x, i), ks_last_K(x, i)          K runs over [first, last) of the slab, 64 * n long where not the last
    KS_TYPE_R, ks_R(x, i)                      element type; the operand's hole at one index
    ks_fetch_R_G<V>(x, i, count, out)          the hole at V neighbours along G (M, N or K), of which `count` exist
    KS_PLAIN_R                                 1 when the hole is a bare load; then:
    ks_at_R(x, i), ks_step_R_G(x)              address, and elements between neighbours along G
    KS_CONTIGUOUS_R_G                          1 when the array's last dimension is G's axis
    KS_PACKED_R                                1 when the kernel copies the operand to scratch first; then:
    ks_packed_R(x), ks_pitch_R(x), ks_source_R(x)   the copy, elements of its rows, and what pack.cuh copies from
    KS_MAPPED_R, KS_INNER_R_G                  1 when there is a map; 1 when G is contiguous in the map or the copy
    KS_BOX_INNER_R, KS_BOX_OUTER_R, KS_SWIZZLE_R    of the map: elements, elements, bytes
    KS_ROOTS, KS_TYPE_out                      how many outputs; element type of the first
    ks_value(x, i, f)                          value of the first output, not converted
    ks_put(x, i, f)                            computes and stores all outputs at one index
    ks_touch_N(x, i)                           brings what the outputs' values read, and varies along N alone, near
    ks_put_N<V>(x, i, count, f), ks_put_M<V>   the same for V neighbours along N or M, of which `count` exist
    KS_PLAIN_out, KS_IDENTITY_out              one output, each group an axis at most; its value is the bare sum
    ks_at_out(x, i), ks_step_out_G(x), KS_CONTIGUOUS_out_G     where KS_PLAIN_out
    ks_own_scratch(x)                          scratch after the packed copies, where the kernel has scratch

rows (bindings with operands and fields): see `row_header`; where an operand is a contraction: `chain_header`

maps and reductions, for root number r, V neighbours along its last axis at a time:
    KS_ROOTS(ROOT)               ROOT(r) for each root
    KS_FIELDS_r(FIELD)           FIELD(r, name, sum|max) for each field the root needs, in order
    ks_rows_r(x), ks_columns_r(x), ks_first_K_r, ks_last_K_r
    ks_body_r_field<V>(x, i, count, f, out), ks_finish_r<V>(x, i, count, f)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...binding import Binding, Root
from ...plan import TensorMap
from ..chained import is_chained
from ..expressions import leaves, needed, spell
from ..rows import is_rows
from ..views import GROUPS, View, c_name
from .boxes import Box
from .chain_header import GROUPS as CHAIN_GROUPS
from .chain_header import chain_header
from .lanes import element, fetch_lanes, put_lanes
from .pieces import AT, TYPES, X, depth, function, places
from .places import PITCH, Place
from .row_header import more_fields, row_header


@dataclass(frozen=True)
class Extras:
    """What a kernel has beside its arrays: operands it copies first, maps, scratch."""

    packed: tuple[Place, ...] = ()
    maps: tuple[tuple[TensorMap, Place], ...] = ()
    boxes: tuple[Box, ...] = ()
    has_scratch: bool = False


def header(binding: Binding, name: str, extras: Extras) -> str:
    """The text of "ks_generated.h". Raises ValueError for an array of a dtype that kernels do not read."""
    if odd := [array for array in binding.arrays if array.dtype not in TYPES]:
        raise ValueError(f"array {odd[0].name} is {odd[0].dtype}: CUDA kernels read and write {', '.join(TYPES)}")
    fields = _accumulators(binding)
    more = more_fields(binding) if is_rows(binding) else ()
    parts = [
        f"// Generated for {name}: what it reads, computes at its edges, and writes.",
        "#pragma once",
        f"#define KS_DOUBLE {int(binding.acc == 'float64')}",
        f"#define KS_COARSE {int(_coarse(binding))}",
        '#include "kernsearch.cuh"',
        *_arguments(binding, extras),
        f"struct ks_at {{\n    int64_t {', '.join(f'{g} = 0' for g in _groups(binding))};\n}};",
        "\n    ".join(("struct ks_fields {", f"ks_acc {', '.join(map(c_name, fields))};", *more)) + "\n};",
        f"#define KS_RESULT {c_name(fields[0])}",
        *_body(binding, extras),
    ]
    return "\n".join(parts) + "\n"


def _body(binding: Binding, extras: Extras) -> Iterator[str]:
    if is_chained(binding):
        yield from chain_header(binding, extras.boxes)
    elif is_rows(binding):
        yield '#include "words.cuh"'
        yield from row_header(binding, TYPES)
    else:
        yield from _contraction(binding, extras) if binding.operands else _roots(binding)


def _groups(binding: Binding) -> str:
    return CHAIN_GROUPS if is_chained(binding) else GROUPS


def _coarse(binding: Binding) -> bool:
    """Are outputs rounded to 11 bits or fewer, so that an exponential of 2 + |x| units in the last place will do?"""
    dtypes = {array.name: array.dtype for array in binding.arrays}
    return all(dtypes[root.array] in ("float16", "bfloat16") for root in binding.roots)


def _accumulators(binding: Binding) -> list[str]:
    used = [leaf[1] for root in binding.roots for leaf in leaves(root.value, "acc")]
    return list(dict.fromkeys([field.name for field in binding.fields] + used)) or ["acc"]


def _arguments(binding: Binding, extras: Extras) -> Iterator[str]:
    """The struct of arguments: pointers, sizes, scalars, maps. Strides are sorted by axis, not by dimension, so that a
    kernel is nearly the same object for every layout."""
    members = [f"{TYPES[array.dtype]} *p_{c_name(array.name)};" for array in binding.arrays]
    members += ["char *scratch;"] if extras.has_scratch else []
    members += [f"int64_t e_{c_name(axis)};" for axis in binding.extents]
    members += [
        f"int64_t s_{c_name(array.name)}_{c_name(axis)};" for array in binding.arrays for axis in sorted(array.axes)
    ]
    members += [f"double c_{c_name(scalar)};" for scalar in binding.scalars]
    made = [*(map_ for map_, _ in extras.maps), *(at.made for at in extras.boxes)]
    members += [f"ks_tensor_map map_{map_.name};" for map_ in made]
    yield "struct ks_args {\n    " + "\n    ".join(members) + "\n};"


def _contraction(binding: Binding, extras: Extras) -> Iterator[str]:
    groups = {g: binding.groups.get(g, ()) for g in GROUPS} | {"S": tuple(binding.slabs.values())}
    view = View(binding, groups, "x.")
    for group in GROUPS:
        yield f"#define KS_BY_{group} {int(len(groups[group]) <= 1)}"
        yield function(f"int64_t ks_extent_{group}", X, view.extent(group))
    yield from depth(view)
    for role, expr in binding.operands.items():
        loads = list(leaves(expr, "load"))
        kinds = {TYPES[view.array(load[1]).dtype] for load in loads}
        yield f"#define KS_TYPE_{role} {kinds.pop() if len(kinds) == 1 else 'ks_acc'}"
        yield function(f"ks_acc ks_{role}", f"{X}, {AT}", spell(expr, element(view)))
        for group in "MNK":
            yield from fetch_lanes(view, f"ks_fetch_{role}_{group}", expr, group)
        plain = expr[0] == "load" and all(len(groups[g]) <= 1 for g in "MNK")
        yield f"#define KS_PLAIN_{role} {int(plain)}"
        if plain:
            yield from places(view, role, expr[1], expr[2], "const ")
    yield from _moved(view, extras)
    root = binding.roots[0]
    yield f"#define KS_ROOTS {len(binding.roots)}"
    yield f"#define KS_TYPE_out {TYPES[view.array(root.array).dtype]}"
    yield function("ks_acc ks_value", f"{X}, {AT}, const ks_fields &f", spell(root.value, element(view)))
    yield from _put(view, binding.roots)
    yield _touch(view, binding.roots)
    for group in "NM":
        yield from put_lanes(view, f"ks_put_{group}", binding.roots, group, fallback="ks_put")
    plain = len(binding.roots) == 1 and all(len(axes) <= 1 for axes in groups.values())
    yield f"#define KS_PLAIN_out {int(plain)}"
    yield f"#define KS_IDENTITY_out {int(plain and root.value[0] == 'acc')}"
    if plain:
        yield from places(view, "out", root.array, root.axes, "")


def _put(view: View, roots: tuple[Root, ...]) -> Iterator[str]:
    lines = []
    for root in roots:
        kind = TYPES[view.array(root.array).dtype]
        lines.append(
            f"*({view.address(root.array, root.axes)}) = ks_from_acc<{kind}>({spell(root.value, element(view))});"
        )
    yield f"KS_DEVICE void ks_put({X}, {AT}, const ks_fields &f) {{\n    " + "\n    ".join(lines) + "\n}"


def _touch(view: View, roots: tuple[Root, ...]) -> str:
    others = {axis for group in "SMK" for axis in view.groups[group]}
    loads = dict.fromkeys(leaf for root in roots for leaf in leaves(root.value, "load") if not others & set(leaf[2]))
    lines = "".join(f" ks_touch({view.address(array, axes)});" for _, array, axes in loads)
    return f"KS_DEVICE void ks_touch_N({X}, {AT}) {{{lines} }}"


def _moved(view: View, extras: Extras) -> Iterator[str]:
    """Packed copies and maps."""
    packed, mapped = {at.role: at for at in extras.packed}, {at.role: (made, at) for made, at in extras.maps}
    roles = dict.fromkeys((*view.binding.operands, *mapped))
    end = "0"
    for role in roles:
        yield f"#define KS_PACKED_{role} {int(role in packed)}"
        yield f"#define KS_MAPPED_{role} {int(role in mapped)}"
        at = packed.get(role) or (mapped[role][1] if role in mapped else None)
        if at:
            for group in "MNK":
                yield f"#define KS_INNER_{role}_{group} {int(at.inner == group)}"
        if role in mapped:
            made = mapped[role][0]
            yield f"#define KS_BOX_INNER_{role} {made.box[0]}"
            yield f"#define KS_BOX_OUTER_{role} {made.box[1]}"
            yield f"#define KS_SWIZZLE_{role} {made.swizzle}"
        if role in packed:
            yield from _packed(view, packed[role], end)
            end = f"ks_end_{role}(x)"
    if extras.has_scratch:
        yield function("char *ks_own_scratch", X, f"x.scratch + {end}")


def _packed(view: View, at: Place, start: str) -> Iterator[str]:
    role, kind = at.role, TYPES[at.dtype]
    inner, outer, third = (view.extent(group) if group else "1" for group in (at.inner, at.outer, at.third))
    steps = [view.stride(at.array, at.strides[group]) if group else "0" for group in (at.inner, at.outer, at.third)]
    size = f"ks_pitch_{role}(x) * {outer} * {third} * {at.bytes}"
    yield function(f"int64_t ks_pitch_{role}", X, f"ks_up<int64_t>({inner}, {PITCH})")
    yield function(f"int64_t ks_end_{role}", X, f"{start} + ks_up<int64_t>({size}, 256)")
    yield function(f"{kind} *ks_packed_{role}", X, f"reinterpret_cast<{kind} *>(x.scratch + {start})")
    values = ", ".join([f"x.p_{c_name(at.array)}", inner, outer, third, *steps])
    yield function(f"ks_matrix<{kind}> ks_source_{role}", X, f"ks_matrix<{kind}>{{{values}}}")


def _roots(binding: Binding) -> Iterator[str]:
    """Maps and generic reductions: each root by rows and columns, with the fields that it needs."""
    for r, root in enumerate(binding.roots):
        columns = binding.groups.get("C") or root.axes[-1:]  # those that a template asks for, or the last axis
        rows = tuple(axis for axis in root.axes if axis not in columns)
        fields = needed(binding.fields, root.value)
        reduced = {a for field in fields for leaf in leaves(field.body, "load") for a in leaf[2] if a not in root.axes}
        groups = {"M": rows, "N": columns, "K": tuple(a for a in binding.extents if a in reduced)}
        view = View(binding, groups, "x.")
        yield function(f"int64_t ks_rows_{r}", X, view.extent("M"))
        yield function(f"int64_t ks_columns_{r}", X, view.extent("N"))
        yield from depth(view, f"_{r}")
        for field in fields:
            yield from fetch_lanes(view, f"ks_body_{r}_{c_name(field.name)}", field.body, "N", fields=True)
        listed = " ".join(f"FIELD({r}, {c_name(field.name)}, {field.monoid})" for field in fields)
        yield f"#define KS_FIELDS_{r}(FIELD) {listed}"
        yield from put_lanes(view, f"ks_finish_{r}", [root], "N")
    yield f"#define KS_ROOTS(ROOT) {' '.join(f'ROOT({r})' for r in range(len(binding.roots)))}"
