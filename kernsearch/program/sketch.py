"""How a textbook program is written down: one value after another, each its own kernel.

s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
acc = s.dot("acc", a, b, over="k")
d = s.map("D", ("mul", s.scalar("alpha"), acc), dtype="float32")
program = s.build(D=d)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import body as bodies
from .body import Body
from .graph import Program
from .value import Axes, Field, Node, Nodes, Out, Use, value_keys


@dataclass(frozen=True)
class Handle:
    """A field that later values may read, alone or inside an expression."""

    node: str
    field: str
    axes: Axes
    rename: tuple[tuple[str, str], ...] = ()

    def renamed(self, **names: str) -> Handle:
        """The same field, read along other axes: `x.renamed(m="n")` makes X X^T possible."""
        axes = tuple(names.get(axis, axis) for axis in self.axes)
        return Handle(self.node, self.field, axes, tuple(sorted(names.items())))


class Sketch:
    """Collects values; `acc` is the dtype of reductions and of maps that state none."""

    def __init__(self, extents: Mapping[str, str], acc: str):
        self._extents, self._acc = dict(extents), acc
        self._nodes: Nodes = {}
        self._facts: dict[str, str] = {}

    def input(self, name: str, axes: Iterable[str], dtype: str) -> Handle:
        """An input array; `axes` in the order of the caller's array."""
        axes = tuple(axes)
        self._add(name, Node("in", (Field(name, axes),), dtype))
        return Handle(name, name, axes)

    def scalar(self, name: str) -> Body:
        return bodies.scalar(name)

    def map(self, name: str, expression: Any, *, axes: Iterable[str] = (), dtype: str = "") -> Handle:
        """An elementwise value: an expression over handles, scalars and floats. A missing axis broadcasts."""
        body, uses, seen = self._body(expression)
        axes = tuple(axes) or seen
        field = Field(name, axes, None, body)
        self._add(name, Node("map", (field,), dtype or self._acc, uses, kernel=len(self._nodes)))
        return Handle(name, name, axes)

    def reduce(
        self, name: str, monoid: str, expression: Any, *, over: Iterable[str], axes: Iterable[str] = ()
    ) -> Handle:
        """monoid over the reduced axes of an expression."""
        body, uses, seen = self._body(expression)
        over = tuple(over)
        axes = tuple(axes) or tuple(axis for axis in seen if axis not in over)
        node = Node("red", (Field(name, axes, monoid, body),), self._acc, uses, over, kernel=len(self._nodes))
        self._add(name, node)
        return Handle(name, name, axes)

    def dot(self, name: str, a: Handle, b: Handle, *, over: Iterable[str]) -> Handle:
        """Sum over the reduced axes of a * b."""
        return self.reduce(name, "sum", ("mul", a, b), over=over)

    def fact(self, saved: Handle, value: Handle) -> None:
        """The caller passes `value`, saved from an earlier call, as the input `saved`. Axes have the same order."""
        self._facts[saved.node] = value.node

    def build(self, **outs: Handle) -> Program:
        """The program with these outputs, by the caller's names."""
        keys = value_keys(self._nodes)
        facts = tuple((saved, keys[value]) for saved, value in self._facts.items())
        returned = tuple(Out(name, h.node, h.field) for name, h in outs.items())
        return Program.of(self._nodes, returned, self._extents, facts=facts)

    def _add(self, name: str, node: Node) -> None:
        if name in self._nodes:
            raise ValueError(f"value {name!r} is defined twice")
        self._nodes[name] = node

    def _body(self, expression: Any) -> tuple[Body, tuple[Use, ...], Axes]:
        handles: dict[Handle, int] = {}

        def walk(part: Any) -> Body:
            if isinstance(part, Handle):
                return bodies.arg(handles.setdefault(part, len(handles)))
            if isinstance(part, int | float):
                return bodies.const(part)
            if part[0] in bodies.LEAVES:
                return part
            if part[0] == "mask":
                return ("mask", walk(part[1]), *part[2:])
            return (part[0], *map(walk, part[1:]))

        body = walk(expression)
        axes = tuple(dict.fromkeys(axis for handle in handles for axis in handle.axes))
        return body, tuple(Use(h.node, h.field, h.rename) for h in handles), axes
