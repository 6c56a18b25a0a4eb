"""From a binding, a template and a config to a kernel plan: the generated header, sizes, scratch, defines.

What the header "ks_generated.h" defines, for the sources to use:

    ks_args, ks_unpack(call)     p_<array>, strides s_<array>_<axis>, extents e_<axis>, scalars c_<name>, scratch
    ks_at                        indices i.S i.B i.M i.N i.K: slab, batch, row, column, depth; each a flattened group
    ks_fields                    one vector per result of the anchor
    ks_t, ks_bf16                the accumulation's type; arrays of bfloat16 are widened when read, rounded when written
    KS_BY_<group>                1 when the group is one axis, so that a stride goes with it

contractions (bindings with operands and no fields):
    ks_extent_<group>(x), ks_first_K(x, i), ks_last_K(x, i)      K runs over [first, last) of the slab
    ks_<role>(x, i), ks_<role>_v(x, i, count)                    the operand's hole, for one element and along N
    KS_PLAIN_<role>, ks_at_<role>(x, i), ks_step_<role>_<group>(x)   when the hole is a bare load: address and strides
    KS_TYPE_<role>               what it lies in memory as; ks_t when the hole is more than a load
    ks_finish(x, i, count, f)                                    the roots' holes: computes and stores along N
    KS_PARTIALS, ks_at_out(x, i), ks_step_out_<group>(x)         0 when the output may hold unfinished sums

rows (bindings with operands and fields): see `row_emit`; those whose operand is a contraction's result: `chain_emit`

maps and reductions, for root number r:
    KS_ROOTS(ROOT)               ROOT(r) for each root
    KS_FIELDS_<r>(FIELD)         FIELD(r, name, sum|max) for each field the root needs, in order
    ks_rows_<r>(x), ks_columns_<r>(x), ks_first_K_<r>, ks_last_K_<r>, ks_body_<r>_<field>, ks_finish_<r>
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ... import sources
from ...binding import Binding, Root
from ...device import Device
from ...launch import itemsize
from ...plan import KernelPlan
from ..chained import is_chained
from ..expressions import fold, leaves, needed, spell
from ..views import GROUPS, VECTOR_GROUP, View, c_name
from .chain_emit import chain_header
from .elements import element, known, type_name, type_suffix, vector
from .row_emit import row_header

if TYPE_CHECKING:
    from ...template import Template


def kernel_plan(binding: Binding, template: Template, config: Mapping[str, int], device: Device) -> KernelPlan:
    """The launch of one kernel. `config` may hold letters of other kernels of the variant.

    Raises ValueError for an array whose dtype no kernel converts, and for slabs of a reduction over two axes.
    """
    folded = dict(config)
    arrays = [*(array.name for array in binding.arrays), *(["scratch"] if template.scratch != "0" else [])]
    extents = [fold(extent, folded) for extent in binding.extents.values()]
    strides = [f"{array.name}.{axis}" for array in binding.arrays for axis in sorted(array.axes)]
    mine = [param.name for param in (*template.params, *template.knobs)]
    return KernelPlan(
        template=template.name,
        source=template.source,
        tokens=sources.tokens(template.source),
        entry=template.entry,
        header=header(binding, template.name, has_scratch="scratch" in arrays),
        defines={letter: config[letter] for letter in mine},
        buffers=tuple(arrays),
        sizes=(*extents, *strides),
        scalars=binding.scalars,
        scratch=fold(template.scratch, {**_scratch_names(binding, folded), **folded}),
        flags=template.flags,
    )


def header(binding: Binding, name: str, *, has_scratch: bool) -> str:
    """The text of "ks_generated.h"."""
    if odd := [array for array in binding.arrays if not known(array.dtype, binding.acc)]:
        raise ValueError(f"array {odd[0].name} is {odd[0].dtype}: no C kernel converts it to {binding.acc}")
    indices, definitions = "S, B, M, N, K", _roots
    if is_chained(binding):
        indices, definitions = f"{indices}, D", chain_header
    elif binding.operands:
        definitions = row_header if binding.fields else _contraction
    parts = [
        f"// Generated for {name}: what it reads, computes at its edges, and writes.",
        "#pragma once",
        f"#define KS_DOUBLE {int(binding.acc == 'float64')}",
        '#include "kernsearch.h"',
        '#include "elementary.h"',
        *_arguments(binding, has_scratch),
        f"typedef struct {{ int64_t {indices}; }} ks_at;",
        f"typedef struct {{ {' '.join(f'ks_v {c_name(f)};' for f in _accumulators(binding))} }} ks_fields;",
        *definitions(binding),
    ]
    return "\n".join(parts) + "\n"


def _accumulators(binding: Binding) -> list[str]:
    used = [leaf[1] for root in binding.roots for leaf in leaves(root.value, "acc")]
    return list(dict.fromkeys([field.name for field in binding.fields] + used)) or ["acc"]


def _arguments(binding: Binding, has_scratch: bool) -> Iterator[str]:
    """The struct of arguments, and how it is read from the call: in the plan's order.

    Strides are sorted by axis, not by dimension, so that a kernel is the same object for every layout.
    """
    members, reads = [], []
    for position, array in enumerate(binding.arrays):
        members.append(f"{type_name(array.dtype, binding.acc)} *p_{c_name(array.name)};")
        reads.append(f".p_{c_name(array.name)} = call->buffers[{position}],")
    if has_scratch:
        members.append("char *scratch;")
        reads.append(f".scratch = call->buffers[{len(binding.arrays)}],")
    sizes = [f"e_{c_name(axis)}" for axis in binding.extents]
    sizes += [f"s_{c_name(array.name)}_{c_name(axis)}" for array in binding.arrays for axis in sorted(array.axes)]
    for position, size in enumerate(sizes):
        members.append(f"int64_t {size};")
        reads.append(f".{size} = call->sizes[{position}],")
    for position, scalar in enumerate(binding.scalars):
        members.append(f"ks_t c_{c_name(scalar)};")
        reads.append(f".c_{c_name(scalar)} = (ks_t)call->scalars[{position}],")
    yield "typedef struct {\n    " + "\n    ".join(members or ["char nothing;"]) + "\n} ks_args;"
    body = "\n        ".join(reads)
    yield f"KS_INLINE ks_args ks_unpack(const ks_call *call) {{\n    return (ks_args){{\n        {body}\n    }};\n}}"


def _finish(view: View, roots: Sequence[Root], suffix: str = "") -> Iterator[str]:
    """Compute the values of roots for `count` columns and store them."""
    how, lines = vector(view), []
    for root in roots:
        step = view.step(root.array, root.axes, view.vector_axis)
        kind = type_suffix(view.array(root.array).dtype, view.binding.acc)
        where = view.address(root.array, root.axes)
        lines.append(f"ks_store{kind}({where}, {step}, count, {spell(root.value, how)});")
    yield from _by_columns(view, f"void ks_finish{suffix}", "const ks_fields *f", lines)


def _by_columns(view: View, signature: str, more: str, lines: Sequence[str]) -> Iterator[str]:
    """A function of `count` columns from i.N on; when columns are several axes, of one column at a time."""
    tail = ", ".join(filter(None, ["const ks_args *x, ks_at i, int64_t count", more]))
    several = len(view.groups.get(VECTOR_GROUP, ())) > 1
    kind, name = signature.split(" ")
    inner = f"{name}_one" if several else name
    body = "\n    ".join(["(void)x, (void)i, (void)count;", *lines])
    yield f"KS_INLINE {kind} {inner}({tail}) {{\n    {body}\n}}"
    if not several:
        return
    if kind == "ks_v":
        step = f"v[l] = {inner}(x, i, 1{', f' if more else ''})[0]"
        declare, give = "ks_v v = {0};\n    ", "return v;\n    "
    else:
        first = " ".join(f"g.{c_name(n)}[0] = f->{c_name(n)}[l];" for n in _accumulators(view.binding))
        step, declare, give = f"{first} {inner}(x, i, 1, &g)", "ks_fields g = *f;\n    ", ""
    loop = f"for (int64_t l = 0; l < KS_LANES && l < count; l++, i.N++) {{ {step}; }}\n    "
    yield f"KS_INLINE {kind} {name}({tail}) {{\n    {declare}{loop}{give}\n}}"


def _depth(view: View, suffix: str = "") -> Iterator[str]:
    """The range of K: all of it, or that of the slab."""
    for name, value in zip(("first", "last"), view.reach(), strict=True):
        yield _function(f"int64_t ks_{name}_K{suffix}", "const ks_args *x, ks_at i", value)


def _function(signature: str, parameters: str, value: str) -> str:
    unused = "(void)i; " if "ks_at i" in parameters else ""
    return f"KS_INLINE {signature}({parameters}) {{ (void)x; {unused}return {value}; }}"


def _contraction(binding: Binding) -> Iterator[str]:
    view = View(binding, {g: binding.groups.get(g, ()) for g in GROUPS} | {"S": tuple(binding.slabs.values())})
    for group in GROUPS:
        yield f"#define KS_BY_{group} {int(len(view.groups[group]) <= 1)}"
        yield _function(f"int64_t ks_extent_{group}", "const ks_args *x", view.extent(group))
    yield from _depth(view)
    for role, expr in binding.operands.items():
        yield _function(f"ks_t ks_{role}", "const ks_args *x, ks_at i", f"({spell(expr, element(view))})[0]")
        along = f"return {spell(expr, vector(view))};"
        yield from _by_columns(view, f"ks_v ks_{role}_v", "", [along])
        plain = expr[0] == "load" and all(len(view.groups[g]) <= 1 for g in "MNK")
        yield f"#define KS_PLAIN_{role} {int(plain)}"
        yield f"#define KS_TYPE_{role} {type_name(view.array(expr[1]).dtype, binding.acc) if plain else 'ks_t'}"
        yield from _places(view, role, expr[1], expr[2]) if plain else ()
    partials = _needs_partials(binding)
    yield f"#define KS_PARTIALS {int(partials)}"
    if not partials:
        yield from _places(view, "out", binding.roots[0].array, binding.roots[0].axes)
    yield f"#define KS_RESULT {c_name(_accumulators(binding)[0])}"
    yield from _finish(view, binding.roots)


def _places(view: View, name: str, array: str, axes: tuple[str, ...]) -> Iterator[str]:
    kind = type_name(view.array(array).dtype, view.binding.acc)
    yield _function(f"{kind} *ks_at_{name}", "const ks_args *x, ks_at i", view.address(array, axes))
    for group in "MNK":
        yield _function(
            f"int64_t ks_step_{name}_{group}", "const ks_args *x", view.step(array, axes, view.group_axis(group))
        )


def _needs_partials(binding: Binding) -> bool:
    """Unfinished sums go to scratch when the output is not one plain array of the sums' dtype, or may be an array that
    the hole reads."""
    if not any(True for root in binding.roots for _ in leaves(root.value, "acc")):
        return False  # there are no sums
    root = binding.roots[0]
    whole = set(root.axes) - set(binding.groups.get("B", ()))
    reads = [leaf for leaf in leaves(root.value, "load") if set(leaf[2]) >= whole]
    several = any(len(binding.groups.get(group, ())) > 1 for group in "MN")
    converted = any(a.name == root.array and a.dtype != binding.acc for a in binding.arrays)
    return len(binding.roots) > 1 or bool(reads) or several or converted


def _roots(binding: Binding) -> Iterator[str]:
    """Maps and generic reductions: each root by rows and columns, with the fields that it needs."""
    for r, root in enumerate(binding.roots):
        columns = binding.groups.get("C") or root.axes[-1:]  # those that a template asks for, or the last axis
        rows = tuple(axis for axis in root.axes if axis not in columns)
        fields = needed(binding.fields, root.value)
        reduced = [a for field in fields for leaf in leaves(field.body, "load") for a in leaf[2] if a not in root.axes]
        groups = {"M": rows, "N": columns, "K": tuple(dict.fromkeys(reduced))}
        groups["K"] = tuple(a for a in binding.extents if a in groups["K"])
        view = View(binding, groups)
        yield _function(f"int64_t ks_rows_{r}", "const ks_args *x", view.extent("M"))
        yield _function(f"int64_t ks_columns_{r}", "const ks_args *x", view.extent("N"))
        yield from _depth(view, f"_{r}")
        for field in fields:
            body = [f"return {spell(field.body, vector(view))};"]
            yield from _by_columns(view, f"ks_v ks_body_{r}_{c_name(field.name)}", "const ks_fields *f", body)
        listed = " ".join(f"FIELD({r}, {c_name(field.name)}, {field.monoid})" for field in fields)
        yield f"#define KS_FIELDS_{r}(FIELD) {listed}"
        yield from _finish(view, [root], f"_{r}")
    yield f"#define KS_ROOTS(ROOT) {' '.join(f'ROOT({r})' for r in range(len(binding.roots)))}"


def _scratch_names(binding: Binding, config: Mapping[str, int]) -> dict[str, int | str]:
    """Names that a template's scratch expression may use besides its letters, THREADS and ITEMSIZE."""
    names: dict[str, int | str] = {"PARTIALS": int(_needs_partials(binding)), "ITEMSIZE": itemsize(binding.acc)}
    for group in (*GROUPS, *binding.groups):
        axes = binding.groups.get(group, ())
        names[group] = fold(" * ".join(f"({binding.extents[axis]})" for axis in axes) or "1", config)
    return names
