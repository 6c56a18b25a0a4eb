"""Values: the nodes of a program, their keys, and what is dropped after an edit.

A value is an input, a map or a reduction. A reduction has several fields that are computed together, and the body of
a field may look at earlier ones: contraction, the statistics of online softmax (m, l) and flash attention (m, l, o)
differ in their fields only. Names of values and fields mean nothing; keys do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import body as bodies
from .body import Body

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """One result of a value. `axes` is its order in memory if it is stored; a map's field has no monoid."""

    name: str
    axes: Axes
    monoid: str | None = None  # "sum" | "max"
    body: Body | None = None  # None for inputs


@dataclass(frozen=True)
class Use:
    """One read of a producer's field. `rename` pairs the producer's axes with the reader's where they differ."""

    node: str
    field: str
    rename: tuple[tuple[str, str], ...] = ()

    def seen(self, axes: Axes) -> Axes:
        """The producer's axes, as the reader names them."""
        if not self.rename:
            return axes
        names = dict(self.rename)
        return tuple(names.get(axis, axis) for axis in axes)


@dataclass(frozen=True)
class Node:
    """A value.

    op      "in" | "map" | "red"
    dtype   of what is stored; reductions accumulate in it
    args    reads, by position
    over    reduced axes
    slab    ((reduced axis, slab axis), ...): slab s of axis k covers [s * c, min(K, (s + 1) * c)), c = ceil(K, S)
    kernel  which kernel computes it; a label without meaning, None for inputs
    """

    op: str
    fields: tuple[Field, ...]
    dtype: str
    args: tuple[Use, ...] = ()
    over: Axes = ()
    slab: tuple[tuple[str, str], ...] = ()
    kernel: int | None = None

    def field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def index(self, name: str) -> int:
        for i, field in enumerate(self.fields):
            if field.name == name:
                return i
        raise KeyError(name)

    @property
    def axes(self) -> Axes:
        """Every axis of any field, in order of first appearance."""
        return tuple(dict.fromkeys(axis for field in self.fields for axis in field.axes))


def contraction(node: Node) -> tuple[Use, Use] | None:
    """The two operands of a sum over a product; None for any other value."""
    if node.op != "red" or len(node.fields) != 1 or node.fields[0].monoid != "sum":
        return None
    body = node.fields[0].body
    if body is None or body[0] != "mul" or any(part[0] != "arg" for part in body[1:]):
        return None
    return node.args[body[1][1]], node.args[body[2][1]]


@dataclass(frozen=True)
class Out:
    """An output of the program: the caller's array `name` holds this field."""

    name: str
    node: str
    field: str


Nodes = dict[str, Node]


_digests: dict[Any, str] = {}
_value_keys: dict[Any, tuple[tuple[Field, ...], str]] = {}  # by id of fields that are kept


def digest(signature: Any) -> str:
    """A short stable hash of nested tuples of strings and numbers."""
    known = _digests.get(signature)
    if known is None:
        known = hashlib.blake2b(repr(signature).encode(), digest_size=8).hexdigest()
        _digests[signature] = known
    return known


def resolved(node: Node, body: Body, keys: Mapping[str, str], nodes: Mapping[str, Node]) -> Body:
    """A body with the keys of what it reads in place of positions and names: equal for equal meanings."""

    def leaf(part: Body) -> Body:
        if part[0] == "arg":
            use = node.args[part[1]]
            return ("of", keys[use.node], nodes[use.node].index(use.field), use.rename)
        if part[0] == "field":
            return ("own", node.index(part[1]))
        return part

    return bodies.replace(body, leaf)


def value_key(name: str, keys: Mapping[str, str], nodes: Mapping[str, Node]) -> str:
    """The key of a value, given the keys of its producers. Blind to kernels, names and order of arguments."""
    node = nodes[name]
    if node.op == "in":
        return digest(("in", name, node.fields[0].axes, node.dtype))
    reads = tuple([(keys[use.node], nodes[use.node].index(use.field), use.rename) for use in node.args])
    known = _value_keys.get((id(node.fields), node.op, node.dtype, node.over, node.slab, reads))
    if known is None:
        fields = [(f.axes, f.monoid, resolved(node, f.body, keys, nodes)) for f in node.fields if f.body is not None]
        key = digest((node.op, node.dtype, tuple(sorted(node.over)), node.slab, tuple(fields)))
        known = node.fields, key
        _value_keys[id(node.fields), node.op, node.dtype, node.over, node.slab, reads] = known
    return known[1]


def topological(nodes: Mapping[str, Node]) -> list[str]:
    """Names, producers first; the order of `nodes` decides ties."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in done:
            for use in nodes[name].args:
                visit(use.node)
            done[name] = None

    for name in nodes:
        visit(name)
    return list(done)


def value_keys(nodes: Mapping[str, Node]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for name in topological(nodes):
        keys[name] = value_key(name, keys, nodes)
    return keys


def in_canonical_order(fields: tuple[Field, ...], node: Node, nodes: Mapping[str, Node]) -> tuple[Field, ...]:
    """Fields sorted so that the same set always comes in the same order, each after the fields it looks at."""
    keys = value_keys(nodes)
    placed: list[Field] = []
    left = list(fields)
    while left:
        so_far = replace(node, fields=tuple(placed))
        names = {f.name for f in placed}
        ready = [f for f in left if f.body and all(leaf[1] in names for leaf in bodies.leaves(f.body, "field"))]
        chosen = min(ready, key=lambda f: repr((f.monoid, f.axes, resolved(so_far, f.body or (), keys, nodes))))
        placed.append(chosen)
        left.remove(chosen)
    return tuple(placed)


def _live(nodes: Nodes, outs: tuple[Out, ...]) -> Nodes:
    """Only fields and arguments that an output needs."""
    needed: set[tuple[str, str]] = set()
    stack = [(out.node, out.field) for out in outs]
    while stack:
        item = stack.pop()
        if item in needed:
            continue
        needed.add(item)
        node = nodes[item[0]]
        body = node.field(item[1]).body
        if body is not None:
            stack += [(node.args[p].node, node.args[p].field) for p in bodies.positions(body)]
            stack += [(item[0], leaf[1]) for leaf in bodies.leaves(body, "field")]
    kept: Nodes = {}
    for name, node in nodes.items():
        fields = tuple(f for f in node.fields if (name, f.name) in needed)
        if fields:
            kept[name] = _tidy_arguments(node, fields)
    return kept


def _tidy_arguments(node: Node, fields: tuple[Field, ...]) -> Node:
    """Arguments in order of first use, each once."""
    if node.op == "in":
        return node
    uses = dict.fromkeys(node.args[p] for f in fields for p in bodies.positions(f.body or ()))
    if fields == node.fields and tuple(uses) == node.args:
        return node
    at = {use: position for position, use in enumerate(uses)}

    def leaf(part: Body) -> Body:
        return ("arg", at[node.args[part[1]]]) if part[0] == "arg" else part

    fields = tuple(replace(f, body=bodies.replace(f.body or (), leaf)) for f in fields)
    return replace(node, fields=fields, args=tuple(uses))


def _shared(nodes: Nodes, outs: tuple[Out, ...]) -> tuple[Nodes, tuple[Out, ...]]:
    """Equal values inside one kernel become one; a kernel that holds a value does not read it from another."""
    keys = value_keys(nodes)
    first: dict[tuple[int | None, str], str] = {}
    for name in topological(nodes):
        first.setdefault((nodes[name].kernel, keys[name]), name)
    if len(first) == len(nodes) and len(set(keys.values())) == len(nodes):
        return nodes, outs

    def best(kernel: int | None, use: Use) -> Use:
        key, at = keys[use.node], nodes[use.node].index(use.field)
        chosen = first.get((kernel, key)) or first[nodes[use.node].kernel, key]
        return use if chosen == use.node else replace(use, node=chosen, field=nodes[chosen].fields[at].name)

    nodes = {name: replace(n, args=tuple(best(n.kernel, use) for use in n.args)) for name, n in nodes.items()}
    moved = [best(nodes[out.node].kernel, Use(out.node, out.field)) for out in outs]
    return nodes, tuple(Out(out.name, use.node, use.field) for out, use in zip(outs, moved, strict=True))


def cleaned(nodes: Nodes, outs: tuple[Out, ...]) -> tuple[Nodes, tuple[Out, ...]]:
    """Without dead values, fields and arguments, and without the same value twice in a kernel."""
    while True:
        before = nodes
        nodes = _live(nodes, outs)
        nodes, outs = _shared(nodes, outs)
        if nodes == before:
            return nodes, outs


def fresh(nodes: Mapping[str, Node], like: str) -> str:
    """A name not yet taken: like, like_2, like_3 ..."""
    base = like.rsplit("_", 1)[0] if like.rsplit("_", 1)[-1].isdigit() else like
    name, number = base, 1
    while name in nodes:
        number += 1
        name = f"{base}_{number}"
    return name
