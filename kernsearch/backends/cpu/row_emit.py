"""What "ks_generated.h" defines for rows (see `backends.rows`): a vector of a row at a time.

    ks_rows(x), ks_columns(x), ks_slabs(x)     how many rows there are, elements of one, slabs that it is cut into
    ks_first(x, i), ks_last(x, i)              the elements [first, last) of slab i.S
    ks_row_contiguous(x)                       true when neighbours in a row are neighbours in memory, in all arrays
    ks_kept                                    what a kernel keeps of a vector of elements: one for each operand
    ks_row_fetch(x, i, count, how)             fetch `count` elements from i.N on; `how` is made of KS_CONTIGUOUS,
                                               which says that they are, and KS_STREAMED, stores around the caches
    KS_EARLY_FIELDS(FIELD), KS_LAST_FIELD(FIELD)   FIELD(name, sum|max) for each field, in order
    ks_term_<field>(x, i, f, kept)             what is added up, or of which the maximum is taken
    KS_SETTLES, ks_row_settle(kept, term)      1 when the last field's term takes the first operand's place
    KS_STASHES, ks_row_stash(x, i, count, how, term), ks_row_stashed(x, i, count, how)
                                               1 when it may wait in the output's place, in full precision
    ks_row_put(x, i, count, how, f, kept)      compute and store the outputs that have the row's axis
    ks_row_state(x, i, f)                      compute and store the other outputs

i.M is the row, i.N the position in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...binding import Binding, Root
from ..expressions import Spelling, leaves, spell
from ..rows import KEPT, Rows, rows_of
from ..views import View, c_name
from .elements import element, type_suffix, vector

HEAD = "const ks_args *x, ks_at i, int64_t count, const int how"
CONTIGUOUS = "(how & KS_CONTIGUOUS)"


def row_header(binding: Binding) -> Iterator[str]:
    """The definitions above."""
    rows = rows_of(binding)
    view = View(binding, rows.groups)
    yield '#include "rows.h"'
    for name, group in (("rows", "M"), ("columns", "N"), ("slabs", "S")):
        yield _function(f"int64_t ks_{name}", "const ks_args *x", [f"return {view.extent(group)};"])
    yield from _range(view, rows)
    yield _contiguous(view, rows)
    roles = [c_name(role) for role in rows.operands]
    yield f"typedef struct {{ ks_v {', '.join(roles)}; }} ks_kept;"
    how = _how(view)
    values = [f"kept.{role} = {spell(expr, how)};" for role, expr in zip(roles, rows.operands.values(), strict=True)]
    yield _function("ks_kept ks_row_fetch", HEAD, ["ks_kept kept;", *values, "return kept;"])
    listed = [f"FIELD({c_name(term.name)}, {term.monoid})" for term in rows.terms]
    yield f"#define KS_EARLY_FIELDS(FIELD) {' '.join(listed[:-1])}"
    yield f"#define KS_LAST_FIELD(FIELD) {listed[-1]}"
    for term in rows.terms:
        head = "const ks_args *x, ks_at i, const ks_fields *f, ks_kept kept"
        value = f"return {spell(term.value, how)};"
        yield _function(f"ks_v ks_term_{c_name(term.name)}", head, ["(void)f, (void)kept;", value])
    yield from _settling(view, rows, roles[0])
    stores = [_store(view, root, how) for root in rows.outputs]
    yield _function("void ks_row_put", f"{HEAD}, const ks_fields *f, ks_kept kept", ["(void)f, (void)kept;", *stores])
    states = []
    for root in rows.states:
        kind = type_suffix(view.array(root.array).dtype, binding.acc)
        value = spell(root.value, element(view))
        states.append(f"ks_store{kind}({view.address(root.array, root.axes)}, 1, 1, {value});")
    yield _function("void ks_row_state", "const ks_args *x, ks_at i, const ks_fields *f", ["(void)f;", *states])


def _how(view: View) -> Spelling:
    def acc(name: str) -> str:
        return f"kept.{c_name(name.removeprefix(KEPT))}" if name.startswith(KEPT) else f"f->{c_name(name)}"

    return replace(vector(view, contiguous=CONTIGUOUS), acc=acc)


def _function(signature: str, parameters: str, lines: list[str]) -> str:
    unused = [f"(void){word};" for word in ("i", "count", "how") if f" {word}" in f" {parameters}".replace("*", "")]
    body = "\n    ".join(["(void)x; " + " ".join(unused), *lines])
    return f"KS_INLINE {signature}({parameters}) {{\n    {body}\n}}"


def _range(view: View, rows: Rows) -> Iterator[str]:
    extent, first, last = f"x->e_{c_name(rows.axis)}", "0", view.extent("N")
    if slabs := rows.groups["S"]:
        length = f"(({extent} + x->e_{c_name(slabs[0])} - 1) / x->e_{c_name(slabs[0])})"
        first, last = f"ks_least(i.S * {length}, {extent})", f"ks_least((i.S + 1) * {length}, {extent})"
    for name, value in (("first", first), ("last", last)):
        yield _function(f"int64_t ks_{name}", "const ks_args *x, ks_at i", [f"return {value};"])


def _contiguous(view: View, rows: Rows) -> str:
    expressions = [*rows.operands.values(), *(root.value for root in rows.outputs)]
    places = [(load[1], load[2]) for expr in expressions for load in leaves(expr, "load")]
    places += [(root.array, root.axes) for root in rows.outputs]
    steps = [view.step(name, axes, rows.axis) for name, axes in places if rows.axis in axes]
    text = " && ".join(f"{step} == 1" for step in dict.fromkeys(steps)) or "1"
    return _function("int ks_row_contiguous", "const ks_args *x", [f"return {text};"])


def _settling(view: View, rows: Rows, role: str) -> Iterator[str]:
    """The last term in the first operand's place, and in the output's."""
    stashes = rows.settles and len(rows.outputs) == 1
    stashes = stashes and view.array(rows.outputs[0].array).dtype == view.binding.acc
    yield f"#define KS_SETTLES {int(rows.settles)}"
    yield f"#define KS_STASHES {int(stashes)}"
    yield f"KS_INLINE void ks_row_settle(ks_kept *kept, ks_v term) {{\n    kept->{role} = term;\n}}"
    if stashes:
        root = rows.outputs[0]
        where, step = view.address(root.array, root.axes), view.step(root.array, root.axes, rows.axis)
        step = f"{CONTIGUOUS} ? 1 : {step}"
        yield _function("void ks_row_stash", f"{HEAD}, ks_v term", [f"ks_store({where}, {step}, count, term);"])
        load = [f"ks_kept kept = {{.{role} = ks_load({where}, {step}, count)}};", "return kept;"]
        yield _function("ks_kept ks_row_stashed", HEAD, load)


def _store(view: View, root: Root, how: Spelling) -> str:
    kind = type_suffix(view.array(root.array).dtype, view.binding.acc)
    where, step = view.address(root.array, root.axes), view.step(root.array, root.axes, view.vector_axis)
    value = spell(root.value, how)
    return f"ks_store_how{kind}({where}, {CONTIGUOUS} ? 1 : {step}, count, {value}, how);"
