"""Expressions of a binding for one element, and for V neighbours along a group: loads first, then arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isinf

from ...binding import Expr, Root
from ..expressions import LEAVES, Spelling, spell
from ..views import View, c_name
from .pieces import TYPES

Alike = Callable[[Expr], bool]
Where = Callable[[str, tuple[str, ...]], str]  # the address of an array's element at the current indices of some axes
_HEAD = "const ks_args &x, const ks_at &i, int count"


def _never(expr: Expr) -> bool:
    return False


def element(view: View) -> Spelling:
    """One element at index `i`, with the fields in `f`."""
    return Spelling(
        load=lambda array, axes: f"ks_to_acc(*({view.address(array, axes)}))",
        acc=lambda name: f"f.{c_name(name)}",
        scalar=lambda name: f"ks_acc(x.c_{c_name(name)})",
        const=_constant,
        mask=lambda text, q, k, off: f"ks_mask({text}, {view.slack(q, k, off)})",
        weigh=lambda name, text: f"({_is_zero(name)} ? ks_acc(0) : ks_acc(x.c_{c_name(name)}) * ({text}))",
    )


def _constant(value: float) -> str:
    if isinf(value):
        return f"({'-' if value < 0 else ''}KS_INFINITY)"
    return f"ks_acc({value!r})"


def _is_zero(scalar: str) -> str:
    return f"ks_acc(x.c_{c_name(scalar)}) == ks_acc(0)"


def _loads(expr: Expr, weights: tuple[str, ...] = ()) -> Iterator[tuple[Expr, tuple[str, ...]]]:
    """Loads, each with the scalars that must not be 0 for it to be wanted."""
    if expr[0] == "load":
        yield expr, weights
    elif expr[0] == "mask":
        yield from _loads(expr[1], weights)
    elif expr[0] == "weigh" and expr[1][0] == "scalar":
        yield from _loads(expr[2], (*weights, expr[1][1]))
    elif expr[0] not in LEAVES:
        for inner in expr[1:]:
            yield from _loads(inner, weights)


def _compute(view: View, expr: Expr, group: str, alike: Alike, where: Where) -> Iterator[str]:
    """Lines that leave the expression's value at V neighbours in `v`. A load that occurs with and without a weight is
    made without."""
    once: dict[Expr, str] = {}
    expr = _taken_out(expr, alike, once)
    of_first = replace(element(view), acc=lambda name: f"f[0].{c_name(name)}")
    for part, name in once.items():
        yield f"const ks_acc {name} = {spell(part, of_first)};"
    wanted: dict[Expr, list[tuple[str, ...]]] = {}
    for load, weights in _loads(expr):
        wanted.setdefault(load, []).append(weights)
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    for load, reasons in wanted.items():
        names[load[1], load[2]] = name = f"l{len(names)}"
        step = view.step(load[1], load[2], view.group_axis(group))
        fetch = f"ks_fetch<V>({where(load[1], load[2])}, {step}, count, {name});"
        why = [" || ".join(_is_zero(scalar) for scalar in weights) for weights in reasons]
        yield f"ks_acc {name}[V];"
        yield fetch if "" in why else f"if (!(({') && ('.join(dict.fromkeys(why))}))) {fetch}"
    how = replace(
        element(view),
        load=lambda array, axes: f"{names[array, axes]}[l]",
        acc=lambda name: name if name in once.values() else f"f[l].{c_name(name)}",
    )
    yield "ks_acc v[V];"
    yield "#pragma unroll"
    yield f"for (int l = 0; l < V; l++) {{ ks_at i = first; i.{group} += l; v[l] = {spell(expr, how)}; }}"


def _taken_out(expr: Expr, alike: Alike, once: dict[Expr, str]) -> Expr:
    """The expression with names for the largest parts that are the same at all neighbours, which `once` learns."""
    if expr[0] in LEAVES:
        return expr
    if alike(expr):
        return ("acc", once.setdefault(expr, f"once{len(once)}"))
    return tuple(_taken_out(part, alike, once) if isinstance(part, tuple) else part for part in expr)


def fetch_lanes(view: View, name: str, expr: Expr, group: str, *, fields: bool = False) -> Iterator[str]:
    """A function that gives the expression at V neighbours along a group, of which `count` exist; 0 at the others."""
    more = ", const ks_fields (&f)[V]" if fields else ""
    body = ["const ks_at first = i;"]
    if len(view.groups.get(group, ())) <= 1:
        value = "v[l]" if expr[0] == "load" else "l < count ? v[l] : ks_acc(0)"  # what is loaded is 0 there
        body += [
            *_compute(view, expr, group, _never, view.address),
            "#pragma unroll",
            f"for (int l = 0; l < V; l++) out[l] = {value};",
        ]
    else:
        value = spell(expr, element(view))
        body += [
            "#pragma unroll",
            f"for (int l = 0; l < V; l++) {{ ks_at i = first; i.{group} += l; "
            f"out[l] = l < count ? {value} : ks_acc(0); }}",
        ]
    yield _template(f"void {name}({_HEAD}{more}, ks_acc (&out)[V])", body)


def put_lanes(
    view: View, name: str, roots: Sequence[Root], group: str, *, fallback: str = "", alike: Alike = _never
) -> Iterator[str]:
    """A function that computes outputs at V neighbours along a group and stores the first `count`; of a group of
    several axes one by one, by the function `fallback`. Parts of which `alike` says that they have the same value at
    all neighbours are computed once."""
    if len(view.groups.get(group, ())) > 1:
        body = [
            "const ks_at first = i;",
            "#pragma unroll",
            "for (int l = 0; l < V; l++) {",
            f"    ks_at i = first; i.{group} += l; if (l < count) {fallback}(x, i, f[l]);",
            "}",
        ]
    else:
        body = _stores(view, roots, group, alike, view.address)
    yield _template(f"void {name}({_HEAD}, const ks_fields (&f)[V])", body)


def put_in_rows(view: View, name: str, roots: Sequence[Root], group: str, row: str, alike: Alike) -> Iterator[str]:
    """As `put_lanes` for a group of one axis, but for `row`, where all that lies along the group at the other indices
    begins; and that type, and the function `<row>_of` that finds it. It takes divisions that compilers do not share
    between stores."""
    found: dict[tuple[str, tuple[str, ...]], str] = {}

    def where(array: str, axes: tuple[str, ...]) -> str:
        place = found.setdefault((array, axes), f"p{len(found)}")
        return f"r.{place} + i.{group} * ({view.step(array, axes, view.group_axis(group))})"

    body = _stores(view, roots, group, alike, where)
    kinds = [TYPES[view.array(array).dtype] for array, _ in found]
    yield "\n".join([f"struct {row} {{", *(f"    {k} *{p};" for k, p in zip(kinds, found.values(), strict=True)), "};"])
    starts = ", ".join(view.address(array, axes) for array, axes in found)
    yield f"KS_DEVICE {row} {row}_of(const ks_args &x, ks_at i) {{ i.{group} = 0; return {{{starts}}}; }}"
    yield _template(f"void {name}({_HEAD.replace(', ', f', const {row} &r, ', 1)}, const ks_fields (&f)[V])", body)


def _stores(view: View, roots: Sequence[Root], group: str, alike: Alike, where: Where) -> list[str]:
    body = ["const ks_at first = i;"]
    for root in roots:
        step = view.step(root.array, root.axes, view.group_axis(group))
        store = f"ks_store<V>({where(root.array, root.axes)}, {step}, count, v);"
        body += ["{", *_compute(view, root.value, group, alike, where), store, "}"]
    return body


def _template(signature: str, body: Sequence[str]) -> str:
    lines = "\n".join(line if line.startswith("#") else f"    {line}" for line in body)
    return f"template <int V>\nKS_DEVICE {signature} {{\n{lines}\n}}"
