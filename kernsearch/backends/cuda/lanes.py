"""Expressions of a binding for one element, and for V neighbours along a group: loads first, then arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isinf

from ...binding import Expr, Root
from ..expressions import LEAVES, Spelling, spell
from ..views import View, c_name

_HEAD = "const ks_args &x, const ks_at &i, int count"


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


def _compute(view: View, expr: Expr, group: str) -> Iterator[str]:
    """Lines that leave the expression's value at V neighbours in `v`. A load that occurs with and without a weight is
    made without."""
    wanted: dict[Expr, list[tuple[str, ...]]] = {}
    for load, weights in _loads(expr):
        wanted.setdefault(load, []).append(weights)
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    for load, reasons in wanted.items():
        names[load[1], load[2]] = name = f"l{len(names)}"
        step = view.step(load[1], load[2], view.group_axis(group))
        fetch = f"ks_fetch<V>({view.address(load[1], load[2])}, {step}, count, {name});"
        why = [" || ".join(_is_zero(scalar) for scalar in weights) for weights in reasons]
        yield f"ks_acc {name}[V];"
        yield fetch if "" in why else f"if (!(({') && ('.join(dict.fromkeys(why))}))) {fetch}"
    how = replace(
        element(view),
        load=lambda array, axes: f"{names[array, axes]}[l]",
        acc=lambda name: f"f[l].{c_name(name)}",
    )
    yield "ks_acc v[V];"
    yield "#pragma unroll"
    yield f"for (int l = 0; l < V; l++) {{ ks_at i = first; i.{group} += l; v[l] = {spell(expr, how)}; }}"


def fetch_lanes(view: View, name: str, expr: Expr, group: str, *, fields: bool = False) -> Iterator[str]:
    """A function that gives the expression at V neighbours along a group, of which `count` exist; 0 at the others."""
    more = ", const ks_fields (&f)[V]" if fields else ""
    body = ["const ks_at first = i;"]
    if len(view.groups.get(group, ())) <= 1:
        value = "v[l]" if expr[0] == "load" else "l < count ? v[l] : ks_acc(0)"  # what is loaded is 0 there
        body += [*_compute(view, expr, group), "#pragma unroll", f"for (int l = 0; l < V; l++) out[l] = {value};"]
    else:
        value = spell(expr, element(view))
        body += [
            "#pragma unroll",
            f"for (int l = 0; l < V; l++) {{ ks_at i = first; i.{group} += l; "
            f"out[l] = l < count ? {value} : ks_acc(0); }}",
        ]
    yield _template(f"void {name}({_HEAD}{more}, ks_acc (&out)[V])", body)


def put_lanes(view: View, name: str, roots: Sequence[Root], group: str, *, fallback: str = "") -> Iterator[str]:
    """A function that computes outputs at V neighbours along a group and stores the first `count`; of a group of
    several axes one by one, by the function `fallback`."""
    body = ["const ks_at first = i;"]
    if len(view.groups.get(group, ())) > 1:
        body += [
            "#pragma unroll",
            "for (int l = 0; l < V; l++) {",
            f"    ks_at i = first; i.{group} += l; if (l < count) {fallback}(x, i, f[l]);",
            "}",
        ]
        yield _template(f"void {name}({_HEAD}, const ks_fields (&f)[V])", body)
        return
    for root in roots:
        step = view.step(root.array, root.axes, view.group_axis(group))
        store = f"ks_store<V>({view.address(root.array, root.axes)}, {step}, count, v);"
        body += ["{", *_compute(view, root.value, group), store, "}"]
    yield _template(f"void {name}({_HEAD}, const ks_fields (&f)[V])", body)


def _template(signature: str, body: Sequence[str]) -> str:
    lines = "\n".join(line if line.startswith("#") else f"    {line}" for line in body)
    return f"template <int V>\nKS_DEVICE {signature} {{\n{lines}\n}}"
