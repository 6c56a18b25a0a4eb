"""What programs mean: NumPy in float64. The ground truth for rules and for the correctness gate.

Arrays of a device library that follows NumPy are taken too, and give such arrays. Functions that carry a policy for
masked rows are named apart from plain arithmetic: `shift`, `normalize` and `weigh`. Plain `sub`, `div` and `mul` keep
their IEEE meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import sizes as expressions
from ..namespace import namespace, widened
from ..program import Program
from ..program.body import Body, children, factors, is_leaf
from ..program.value import Axes, Field, Node

Array = np.ndarray
_CHUNK = 1 << 16


def _erf(x: Array) -> Array:
    if (xp := namespace(x)) is not np:
        return xp.ElementwiseKernel("float64 x", "float64 y", "y = erf(x)", "kernsearch_erf")(x)
    out = np.empty(x.shape)
    flat, result = np.ascontiguousarray(x).reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        result[start : start + _CHUNK] = np.fromiter(map(math.erf, part.tolist()), float, len(part))
    return out


def shift(x: Array, m: Array) -> Array:
    """x - m; -inf where x is -inf, whatever m is (a row that is masked all over has m = -inf)."""
    xp = namespace(x, m)
    return xp.where(xp.isneginf(x), -np.inf, x - m)


def normalize(x: Array, total: Array) -> Array:
    """x / total; 0 where total is 0 (a row that is masked all over)."""
    xp = namespace(total)
    return xp.where(total == 0, 0.0, x / xp.where(total == 0, 1.0, total))


def weigh(w: Array, x: Array) -> Array:
    """w * x; 0 where w is 0, whatever x is (beta = 0 does not look at C)."""
    return namespace(w).where(w == 0, 0.0, w * x)


def where(x: Array, w: Array) -> Array:
    """x; -inf where w is 0, whatever x is (a position that a mask leaves out)."""
    return namespace(x, w).where(w == 0, -np.inf, x)


def gelu(x: Array) -> Array:
    """0.5 x (1 + erf(x / sqrt 2))."""
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """x / (1 + exp(-x))."""
    return x / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(x, 0.0)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "shift": shift,
    "normalize": normalize,
    "weigh": weigh,
    "where": where,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
WHOLE = frozenset({"add", "sub", "mul", "max", "neg", "weigh", "relu", "mask"})  # whole numbers give whole numbers
IDENTITY = {"sum": 0.0, "max": -math.inf}


def keeps_whole(program: Program) -> bool:
    """Do whole inputs and scalars give whole outputs? False as soon as there is a function like exp."""

    def good(body: Body) -> bool:
        return is_leaf(body) or (body[0] in WHOLE and all(map(good, children(body))))

    return all(good(f.body) for node in program.nodes.values() for f in node.fields if f.body)


def interpret(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], scalars: Mapping[str, float] | None = None
) -> dict[str, Array]:
    """The outputs, by name, in float64 and in the axis order of the output's field.

    `inputs` are arrays by name, in the order of each input's axes (the caller's order); `sizes` gives size letters and
    the symbols of slab axes; `scalars` the run-time scalars. Values are dropped after their last use.
    """
    run = _Run(program, sizes, scalars or {}, namespace(*inputs.values()))
    last = {use.node: name for name in program.order for use in program.nodes[name].args}
    kept = {out.node for out in program.outs}
    with np.errstate(all="ignore"):
        for name in program.order:
            node = program.nodes[name]
            if node.op == "in":
                run.known[name, node.fields[0].name] = run.taken(inputs[name])
                continue
            run.compute(name, node)
            for use in node.args:
                if last[use.node] == name and use.node not in kept:
                    run.known.pop((use.node, use.field), None)
    return {out.name: run.known[out.node, out.field] for out in program.outs}


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a body is evaluated: its value, the axes in order, what it reads, and which part of the reduced axis."""

    name: str
    node: Node
    axes: Axes
    reads: list[tuple[Array, Axes]]
    window: Mapping[str, range]
    slab: tuple[str, int] | None


class _Run:
    def __init__(self, program: Program, sizes: Mapping[str, int], scalars: Mapping[str, float], xp: Any):
        self.program, self.sizes, self.scalars, self.xp = program, sizes, scalars, xp
        self.known: dict[tuple[str, str], Array] = {}

    def taken(self, array: Any) -> Array:
        """An input in float64."""
        return np.asarray(array, dtype=np.float64) if self.xp is np else widened(array, np.float64)

    def compute(self, name: str, node: Node) -> None:
        for field in node.fields:
            compute = self._slabs if node.slab else self._field
            self.known[name, field.name] = compute(name, node, field)

    def _slabs(self, name: str, node: Node, field: Field) -> Array:
        """Each slab on its own. The last one may be ragged, later ones empty."""
        ((axis, slab),) = node.slab
        extent, count = self.program.extent(axis, self.sizes), self.program.extent(slab, self.sizes)
        width = -(-extent // count)
        whole = Field(field.name, tuple(a for a in field.axes if a != slab), field.monoid, field.body)
        parts = []
        for s in range(count):
            window = range(min(s * width, extent), min((s + 1) * width, extent))
            parts.append(self._field(name, node, whole, {axis: window}, (slab, s)))
        stacked = self.xp.stack(parts)
        return self._to_order(stacked, (slab, *whole.axes), field.axes)

    def _field(
        self,
        name: str,
        node: Node,
        field: Field,
        window: Mapping[str, range] | None = None,
        slab: tuple[str, int] | None = None,
    ) -> Array:
        window = window or {}
        axes = tuple(dict.fromkeys((*field.axes, *node.over)))
        reads: list[tuple[Array, Axes]] = []
        for use in node.args:
            value = self.known[use.node, use.field]
            seen = use.seen(self.program.at((use.node, use.field)).axes)
            for at, axis in enumerate(seen):
                if axis in window:
                    cut = window[axis]
                    value = value[(slice(None),) * at + (slice(cut.start, cut.stop),)]
            reads.append((value, seen))
        assert field.body is not None
        body = field.body
        if field.monoid == "sum" and (product := self._contraction(node, field, body, reads)) is not None:
            return product

        shape = [len(window[a]) if a in window else self.program.extent(a, self.sizes) for a in axes]
        value = self.xp.broadcast_to(self._evaluate(body, _Place(name, node, axes, reads, window, slab)), shape)
        if field.monoid is None:
            return self.xp.array(value)
        return self._reduce(field.monoid, value, tuple(axes.index(axis) for axis in node.over))

    def _reduce(self, monoid: str, value: Array, over: tuple[int, ...]) -> Array:
        function = {"sum": self.xp.sum, "max": self.xp.max}[monoid]
        if self.xp is np:
            # NumPy adds in pairs along the last axis only; along others an error grows with the length.
            kept = [at for at in range(value.ndim) if at not in over]
            rows = np.ascontiguousarray(value.transpose(*kept, *over))
            rows = rows.reshape(*rows.shape[: len(kept)], math.prod(rows.shape[len(kept) :]))
            return function(rows, axis=-1, initial=IDENTITY[monoid])
        if all(value.shape[at] for at in over):
            return function(value, axis=over)
        return self.xp.full([n for at, n in enumerate(value.shape) if at not in over], IDENTITY[monoid])

    def _evaluate(self, body: Body, at: _Place) -> Array:
        """A body over all axes of the place. A method and not a closure: one that calls itself would keep what it has
        read until the next collection of cycles."""
        match body:
            case ("arg", position):
                return self._aligned(at.reads[position][0], at.reads[position][1], at.axes)
            case ("field", earlier):
                value, seen = self.known[at.name, earlier], at.node.field(earlier).axes
                if at.slab and at.slab[0] in seen:
                    value = self.xp.take(value, at.slab[1], axis=seen.index(at.slab[0]))
                    seen = tuple(a for a in seen if a != at.slab[0])
                return self._aligned(value, seen, at.axes)
            case ("scalar", scalar):
                return self.xp.asarray(self.scalars[scalar], dtype=np.float64)
            case ("const", number):
                return self.xp.asarray(number, dtype=np.float64)
            case ("mask", inner, q, k, off):
                rows, columns = self._index(q, at.window, at.axes), self._index(k, at.window, at.axes)
                seen_by = columns <= rows + expressions.evaluate(off, self.sizes)
                return self.xp.where(seen_by, self._evaluate(inner, at), -np.inf)
            case (function, *parts):
                return FUNCTIONS[function](*(self._evaluate(part, at) for part in parts))
        raise ValueError(body)

    def _contraction(self, node: Node, field: Field, body: Body, reads: list[tuple[Array, Axes]]) -> Array | None:
        """A sum of products of arguments, through matrix multiplication; None when it is not one."""
        parts = factors(body)
        if len(parts) != 2 or any(part[0] != "arg" for part in parts):
            return None
        (a, a_axes), (b, b_axes) = (reads[part[1]] for part in parts)
        if set(a_axes) | set(b_axes) != set(field.axes) | set(node.over):
            return None
        letters = {axis: chr(97 + i) for i, axis in enumerate(dict.fromkeys((*a_axes, *b_axes)))}

        def spell(axes: Axes) -> str:
            return "".join(letters[axis] for axis in axes)

        return self.xp.einsum(f"{spell(a_axes)},{spell(b_axes)}->{spell(field.axes)}", a, b, optimize=True)

    def _index(self, axis: str, window: Mapping[str, range], axes: Axes) -> Array:
        indices = np.array(window[axis]) if axis in window else np.arange(self.program.extent(axis, self.sizes))
        return self._aligned(self.xp.asarray(indices), (axis,), axes)

    @staticmethod
    def _aligned(value: Array, seen: Axes, axes: Axes) -> Array:
        """A view with one dimension for each of `axes`, of length 1 where the value has no such axis."""
        order = [seen.index(axis) for axis in axes if axis in seen]
        value = value.transpose(order)
        return value.reshape([value.shape[[a for a in axes if a in seen].index(x)] if x in seen else 1 for x in axes])

    def _to_order(self, value: Array, have: Axes, want: Axes) -> Array:
        return self.xp.ascontiguousarray(value.transpose([have.index(axis) for axis in want]))
