"""Algebra: rules that change what is computed, before any kernel is fused."""

from __future__ import annotations

from dataclasses import replace

from ..program import Program
from ..program import body as bodies
from ..program.body import FREE, SCALE, Body
from ..program.value import Field, Node, Use, contraction, fresh, in_canonical_order, value_key
from . import Rewrites, rule

DIVISIONS = ("normalize", "div")


@rule(phase="algebra")
def merge_reductions(p: Program) -> Rewrites:
    """A sum whose body scales in a maximum over the same axis is computed together with it.

           m[q]   = max over k of x[q,k]
           l[q]   = sum over k of exp(x[q,k] - m[q])
     -> m, l[q]   = one reduction; a partial l is carried on by exp(old m - new m)

    Online softmax (m, l) and flash attention (m, l, o) are this law applied once and twice. Maps between the two
    reductions are drawn into the body, so mask, scale and bias are seen through.
    """
    for first, into in p.nodes.items():
        if into.op != "red" or into.slab or not any(f.monoid == "max" for f in into.fields):
            continue
        for second in p.order:
            node = p.nodes[second]
            if node.op != "red" or node.slab or set(node.over) != set(into.over) or first not in p.ancestors[second]:
                continue
            merged = _merged(p, first, second)
            if merged is not None:
                yield p.site(values=(first, second), axes=node.over), merged


def _merged(p: Program, first: str, second: str) -> Program | None:
    into, node = p.nodes[first], p.nodes[second]
    uses = list(into.args)
    names = {f.name: _free_name(f.name, into) for f in node.fields}
    added = []
    for f in node.fields:
        body = _drawn_in(p, first, node, f.body or (), {}, uses)
        if body is None:
            return None
        kinds = [bodies.dependence(body, other.name) for other in into.fields]
        scaled = [other for other, kind in zip(into.fields, kinds, strict=True) if kind is not FREE]
        if f.monoid != "sum" or len(scaled) != 1 or SCALE not in kinds or scaled[0].monoid != "max":
            return None
        if not set(scaled[0].axes) <= set(f.axes):
            return None
        added.append(Field(names[f.name], f.axes, f.monoid, body))
    whole = replace(into, args=tuple(uses))
    merged = replace(whole, fields=in_canonical_order((*into.fields, *added), whole, p.nodes))
    moved = {(second, f.name): (first, names[f.name]) for f in node.fields}
    return p.swapped(moved, {first: merged})


def _drawn_in(p: Program, first: str, node: Node, body: Body, names: dict[str, str], uses: list[Use]) -> Body | None:
    """A body of `node` over what does not depend on `first`, and over fields of `first`. New arguments are appended
    to `uses`. None when something between is no map."""
    failed = False

    def leaf(part: Body) -> Body:
        nonlocal failed
        if part[0] == "field":
            failed = True  # a reduction whose fields look at each other stays as it is
            return part
        if part[0] != "arg":
            return part
        use = node.args[part[1]]
        if use.node == first:
            failed |= bool(use.rename or names)
            return bodies.own(use.field)
        producer = p.nodes[use.node]
        composed = {a: names.get(b, b) for a, b in {**{x: x for x in names}, **dict(use.rename)}.items()}
        if first in p.ancestors[use.node]:
            inner = None
            if producer.op == "map":
                inner = _drawn_in(p, first, producer, producer.fields[0].body or (), composed, uses)
            failed |= inner is None
            return inner or part
        pairs = tuple(sorted((a, b) for a, b in composed.items() if a != b and a in producer.field(use.field).axes))
        moved = Use(use.node, use.field, pairs)
        if moved not in uses:
            uses.append(moved)
        return bodies.arg(uses.index(moved))

    drawn = bodies.replace(bodies.rename_axes(body, names), leaf)
    return None if failed else drawn


def _free_name(name: str, node: Node) -> str:
    taken = {f.name for f in node.fields}
    while name in taken:
        name += "_"
    return name


@rule(phase="algebra")
def defer_division(p: Program) -> Rewrites:
    """A division by something that the sum does not run over is done once, after the sum.

       o[q,e] = sum over k of (x[q,k] / l[q]) * v[k,e]
    -> o[q,e] = (sum over k of x[q,k] * v[k,e]) / l[q]
    """
    for name in p.order:
        node = p.nodes[name]
        if node.op != "red" or node.slab or len(node.fields) != 1 or node.fields[0].monoid != "sum":
            continue
        for factor in bodies.factors(node.fields[0].body or ()):
            if factor[0] != "arg" or node.args[factor[1]].rename:
                continue
            divided = node.args[factor[1]].node
            body = p.nodes[divided].fields[0].body
            if p.nodes[divided].op != "map" or not body or body[0] not in DIVISIONS:
                continue
            if _free_of(p, divided, body[2], node.over):
                yield p.site(values=(name, divided), axes=node.over), _deferred(p, name, factor, divided)


def _free_of(p: Program, name: str, body: Body, axes: tuple[str, ...]) -> bool:
    uses = [p.nodes[name].args[position] for position in bodies.positions(body)]
    seen = {a for use in uses for a in use.seen(p.nodes[use.node].field(use.field).axes)}
    return not (seen | bodies.mask_axes(body)) & set(axes)


def _deferred(p: Program, name: str, factor: Body, divided: str) -> Program:
    node, division = p.nodes[name], p.nodes[divided]
    kind, numerator, denominator = division.fields[0].body or ()
    old = node.fields[0]
    offset = len(node.args)
    moved = bodies.replace(numerator, lambda leaf: ("arg", leaf[1] + offset) if leaf[0] == "arg" else leaf)
    body = bodies.replace(old.body or (), lambda leaf: moved if leaf == factor else leaf)
    total = replace(node, fields=(replace(old, body=body),), args=(*node.args, *division.args))
    below = bodies.replace(denominator, lambda leaf: ("arg", leaf[1] + 1) if leaf[0] == "arg" else leaf)
    after = fresh(p.nodes, f"{name}_divided")
    result = Node(
        "map",
        (Field(after, old.axes, None, (kind, bodies.arg(0), below)),),
        division.dtype,
        (Use(name, old.name), *division.args),
        kernel=max(p.members) + 1,
    )
    return p.swapped({(name, old.name): (after, after)}, {name: total, after: result})


@rule(phase="algebra")
def row_correction(p: Program) -> Rewrites:
    """Two nested sums change places when what is then inside is a value already at hand, or saved by the caller.

           d[q]   = sum over k of x[q,k] * (sum over e of y[q,e] * z[k,e])
        -> d[q]   = sum over e of y[q,e] * o[q,e]
           o[q,e] = sum over k of x[q,k] * z[k,e], known

    In the backward pass of attention o is the output of the forward pass, and no q x k value is needed for d.
    """
    for outer in p.order:
        node = p.nodes[outer]
        operands = contraction(node)
        if operands is None or node.slab:
            continue
        for x, between in (operands, operands[::-1]):
            inner = p.nodes[between.node]
            nested = contraction(inner)
            if nested is None or inner.slab or between.rename or set(_seen(p, x)) & set(inner.over):
                continue
            for y, z in (nested, nested[::-1]):
                if set(_seen(p, y)) & set(node.over):
                    continue
                for known in _known(p, node, x, z):
                    fields = _product(node, node.fields[0].axes)
                    changed = p.edited({outer: replace(node, args=(y, known), over=inner.over, fields=fields)})
                    yield p.site(values=(outer, between.node, known.node), axes=node.over), changed


def _seen(p: Program, use: Use) -> tuple[str, ...]:
    return use.seen(p.at((use.node, use.field)).axes)


def _product(node: Node, axes: tuple[str, ...]) -> tuple[Field, ...]:
    return (Field(node.fields[0].name, axes, "sum", ("mul", bodies.arg(0), bodies.arg(1))),)


def _known(p: Program, node: Node, x: Use, z: Use) -> list[Use]:
    """Values of the program, or saved inputs, that are the sum of x * z over the node's reduced axes."""
    found = []
    for name, other in p.nodes.items():
        operands = contraction(other)
        if operands and set(operands) == {x, z} and set(other.over) == set(node.over) and not other.slab:
            found.append(Use(name, other.fields[0].name))
    for saved, key in p.facts:
        axes = p.nodes[saved].fields[0].axes
        for args in ((x, z), (z, x)):
            value = replace(node, args=args, fields=_product(node, axes))
            if value_key("value", p.keys, {**p.nodes, "value": value}) == key:
                found.append(Use(saved, saved))
    return found
