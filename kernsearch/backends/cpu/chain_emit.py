"""What "ks_generated.h" defines for chained contractions (see `backends.chained`).

ks_extent_<group>(x), KS_BY_<group>        of S slab, B batch, M rows, K reduced, N columns, D the inner depth
ks_first_K(x, i), ks_last_K(x, i)          K runs over [first, last) of the slab
ks_<role>(x, i)                            an operand of either contraction, one element, as a vector of the same
KS_PLAIN_<role>, ks_at_<role>(x, i), ks_step_<role>_<group>(x)   when it is an array: address and strides
KS_SAME_<role>                             1 when it is an array of ks_t
KS_SEES, ks_sees(x, i)                     1 when a mask hides elements; those of K before ks_sees are not hidden
ks_score(x, i, count, s)                   what becomes of the inner sums s of `count` rows from i.M on, at i.K
ks_score_seen(x, i, count, s)              the same where nothing is hidden
ks_finish(x, i, count, f)                  compute and store `count` columns of row i.M from i.N on
KS_STATES, ks_state(x, i, count, f)        1 when there are outputs without columns; those of `count` rows
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...binding import Binding, Expr
from ..chained import chained_of
from ..expressions import spell
from ..views import View, c_name
from .elements import element, type_name, type_suffix, vector

GROUPS = "SBMNKD"


def chain_header(binding: Binding) -> Iterator[str]:
    """The definitions above."""
    chain = chained_of(binding)
    view = View(binding, {g: binding.groups.get(g, ()) for g in GROUPS} | {"S": tuple(binding.slabs.values())})
    for group in GROUPS:
        yield f"#define KS_BY_{group} {int(len(view.groups[group]) <= 1)}"
        yield _function(f"int64_t ks_extent_{group}", "const ks_args *x", view.extent(group))
    for name, value in zip(("first", "last"), view.reach(), strict=True):
        yield _function(f"int64_t ks_{name}_K", "const ks_args *x, ks_at i", value)
    for role, expr in binding.operands.items():
        if role != chain.role:
            yield from _operand(view, role, expr)
    sees = [f"{view.index(q)} + ({view.size(off)}) + 1" for q, off in chain.sees]
    seen = view.extent("K")
    for one in sees:
        seen = f"ks_least({seen}, {one})"
    yield f"#define KS_SEES {int(bool(sees))}"
    yield _function("int64_t ks_sees", "const ks_args *x, ks_at i", seen)
    across = replace(view, vector="M")
    for name, scores in (("score", chain.scores), ("score_seen", chain.free)):
        yield from _scores(across, f"ks_{name}", scores)
    columns = set(binding.groups.get("N", ()))
    outputs = [root for root in binding.roots if columns & set(root.axes)]
    states = [root for root in binding.roots if not columns & set(root.axes)]
    yield from _stores(view, "ks_finish", outputs)
    yield f"#define KS_STATES {int(bool(states))}"
    yield from _stores(across, "ks_state", states)


def _function(signature: str, parameters: str, value: str) -> str:
    unused = "(void)i; " if "ks_at i" in parameters else ""
    return f"KS_INLINE {signature}({parameters}) {{ (void)x; {unused}return {value}; }}"


def _operand(view: View, role: str, expr: Expr) -> Iterator[str]:
    yield _function(f"ks_t ks_{role}", "const ks_args *x, ks_at i", f"({spell(expr, element(view))})[0]")
    plain = expr[0] == "load"
    kind = type_name(view.array(expr[1]).dtype, view.binding.acc) if plain else "ks_t"
    yield f"#define KS_PLAIN_{role} {int(plain)}"
    yield f"#define KS_SAME_{role} {int(plain and kind == 'ks_t')}"
    if not plain:
        return
    _, array, axes = expr
    yield _function(f"{kind} *ks_at_{role}", "const ks_args *x, ks_at i", view.address(array, axes))
    for group in "MNKD":
        step = view.step(array, axes, view.group_axis(group))
        yield _function(f"int64_t ks_step_{role}_{group}", "const ks_args *x", step)


def _scores(view: View, name: str, expr: Expr) -> Iterator[str]:
    """One vector along the rows; where rows are several axes, lane by lane."""
    how = replace(vector(view), acc=lambda _: "s")
    head = "const ks_args *x, ks_at i, int64_t count, ks_v s"
    unused = "(void)x, (void)i, (void)count;"
    if view.vector_axis is not None or not _looks_at_rows(view, expr):
        yield f"KS_INLINE ks_v {name}({head}) {{\n    {unused}\n    return {spell(expr, how)};\n}}"
        return
    yield f"KS_INLINE ks_v {name}_one({head}) {{\n    {unused}\n    return {spell(expr, how)};\n}}"
    loop = f"for (int64_t l = 0; l < KS_LANES && l < count; l++, i.M++) s[l] = {name}_one(x, i, 1, ks_splat(s[l]))[0];"
    yield f"KS_INLINE ks_v {name}({head}) {{\n    {loop}\n    return s;\n}}"


def _looks_at_rows(view: View, expr: Expr) -> bool:
    """Does an expression differ between rows, but for what it is applied to?"""
    rows = set(view.groups["M"])
    if expr[0] == "load":
        return bool(rows & set(expr[2]))
    if expr[0] == "mask":
        return bool(rows & set(expr[2:4])) or _looks_at_rows(view, expr[1])
    return any(_looks_at_rows(view, part) for part in expr[1:] if isinstance(part, tuple))


def _stores(view: View, name: str, roots: list) -> Iterator[str]:
    """Values of outputs for `count` neighbours along the view's vector group; of several axes one by one."""
    how, lines = vector(view), []
    for root in roots:
        step = view.step(root.array, root.axes, view.vector_axis)
        kind = type_suffix(view.array(root.array).dtype, view.binding.acc)
        lines.append(f"ks_store{kind}({view.address(root.array, root.axes)}, {step}, count, {spell(root.value, how)});")
    body = "\n    ".join(["(void)x, (void)i, (void)count, (void)f;", *lines])
    head = "const ks_args *x, ks_at i, int64_t count, const ks_fields *f"
    if view.vector_axis is not None:
        yield f"KS_INLINE void {name}({head}) {{\n    {body}\n}}"
        return
    yield f"KS_INLINE void {name}_one({head}) {{\n    {body}\n}}"
    lanes = " ".join(f"g.{c_name(field.name)} = ks_splat(f->{c_name(field.name)}[l]);" for field in view.binding.fields)
    loop = (
        f"for (int64_t l = 0; l < KS_LANES && l < count; l++, i.{view.vector}++) {{ {lanes} {name}_one(x, i, 1, &g); }}"
    )
    yield f"KS_INLINE void {name}({head}) {{\n    ks_fields g = *f;\n    {loop}\n}}"
