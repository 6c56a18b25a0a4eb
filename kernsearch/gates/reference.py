"""The float64 reference of a problem and what a candidate may be off by, in blocks so that memory stays small.

An axis of the outputs that no reduction and no mask of the textbook program looks at may be cut: a slice of the
outputs needs the same slice of the inputs only. Blocks are kept as long as they fit a budget, else computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..meaning import interpret
from ..namespace import namespace, numpy_dtype
from ..problem import Problem
from ..space import Op

if TYPE_CHECKING:
    from ..program import Program
    from ..program.body import Body

BLOCK_BYTES = 32 << 20  # of float64 copies of a block's inputs
BLOCK_ELEMENTS = 1 << 19  # of a block's outputs
LEAST_BUDGET_BYTES = 64 << 20


@dataclass(frozen=True)
class Array:
    """An operand of a problem: its axes and shape in the caller's order."""

    name: str
    role: str  # "input" | "output"
    dtype: np.dtype
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Block:
    """Part of each output: where it is, what it should be, and the absolute error allowed, elementwise. The arrays lie
    where the inputs of the reference do."""

    where: dict[str, tuple[slice, ...]]
    expected: dict[str, Any]  # float64
    allowed: dict[str, Any]  # on the host float32 unless the output is float64; on a device, which may flush what is
    # subnormal in float32 to zero, always float64


def operands(op: Op, problem: Problem, program: Program | None = None) -> dict[str, Array]:
    """The arrays of a problem, inputs first, as its textbook program names them."""
    program = program or op.root(problem)
    sizes = op.sizes(problem)
    found = {}
    places = [(name, "input", name, program.nodes[name].fields[0].name) for name in program.inputs]
    places += [(out.name, "output", out.node, out.field) for out in program.outs]
    for name, role, node, field in places:
        axes = program.nodes[node].field(field).axes
        shape = tuple(program.extent(axis, sizes) for axis in axes)
        found[name] = Array(name, role, numpy_dtype(program.nodes[node].dtype), axes, shape)
    return found


def free_axes(program: Program, op: Op) -> tuple[str, ...]:
    """Axes of the outputs along which the problem may be cut: each has a size letter of its own."""
    outputs = [program.nodes[out.node].field(out.field).axes for out in program.outs]
    bound: set[str] = set()
    for node in program.nodes.values():
        bound |= set(node.over)
        for field in node.fields:
            bound |= _masked(field.body)
        for use in node.args:
            bound |= {axis for pair in use.rename for axis in pair}
    spelled = list(program.extents.values())
    return tuple(
        axis
        for axis in outputs[0]
        if axis not in bound
        and all(axis in axes for axes in outputs)
        and program.extents[axis] in op.letters
        and spelled.count(program.extents[axis]) == 1
    )


def _masked(body: Body | None) -> set[str]:
    if not isinstance(body, tuple) or not body:
        return set()
    if body[0] == "mask":
        return {body[2], body[3]} | _masked(body[1])
    return set().union(*(_masked(part) for part in body[1:] if isinstance(part, tuple)))


class Reference:
    """The reference of one problem on one set of inputs. `inputs` are kept by reference and must not change.

    `keeps`: blocks stay in memory once computed, as they are small beside the problem's arrays or `budget_bytes`.
    `large` times larger blocks suit a device, which would be idle with small ones.
    """

    def __init__(
        self,
        op: Op,
        problem: Problem,
        inputs: Mapping[str, Any],
        scalars: Mapping[str, float],
        *,
        budget_bytes: int | None = None,
        large: int = 1,
    ) -> None:
        self.op, self.problem, self.inputs, self.scalars = op, problem, dict(inputs), dict(scalars)
        self.program = op.root(problem)
        self.arrays = operands(op, problem, self.program)
        self._free = free_axes(self.program, op)
        self._large = large
        self._cuts = self._cut()
        outputs = [array for array in self.arrays.values() if array.role == "output"]
        budget = max(budget_bytes or LEAST_BUDGET_BYTES, sum(array.nbytes for array in self.arrays.values()) // 2)
        self.keeps = 12 * sum(prod(array.shape) for array in outputs) <= budget
        self._kept: dict[int, Block] = {}

    @property
    def known(self) -> bool:
        """Is every block computed and kept?"""
        return len(self._kept) == len(self)

    def __len__(self) -> int:
        return prod(len(c) for c in self._cuts.values())

    def blocks(self, chosen: frozenset[int] | None = None) -> Iterator[Block]:
        """All blocks, or the chosen ones, one at a time."""
        for index, cut in enumerate(product(*self._cuts.values())):
            if chosen is not None and index not in chosen:
                continue
            block = self._kept.get(index)
            if block is None:
                block = self._compute(dict(zip(self._cuts, cut, strict=True)))
                if self.keeps:
                    self._kept[index] = block
            yield block

    def _compute(self, cut: Mapping[str, slice]) -> Block:
        where = {a.name: tuple(cut.get(axis, slice(None)) for axis in a.axes) for a in self.arrays.values()}
        inputs = {name: array[where[name]] for name, array in self.inputs.items()}
        lengths = {self.program.extents[axis]: part.stop - part.start for axis, part in cut.items()}
        sizes = {**self.op.sizes(self.problem), **lengths}
        problem = self.problem.at(tuple(sizes[letter] for letter in self.op.letters))
        expected = interpret(self.program, inputs, sizes, self.scalars)
        allowed = self.op.bound(problem, inputs, self.scalars, expected)
        for name, bound in allowed.items():
            if self.arrays[name].dtype.itemsize <= 4 and namespace(bound) is np:
                allowed[name] = namespace(bound).asarray(bound, np.float32) * np.float32(1 + 2**-20)
        return Block({name: where[name] for name in expected}, expected, allowed)

    def _cut(self) -> dict[str, list[slice]]:
        """Slices of each free axis such that a block's float64 copies stay small."""
        sizes = self.op.sizes(self.problem)
        length = {axis: self.program.extent(axis, sizes) for axis in self._free}

        def size(role: str) -> int:
            found = [zip(array.axes, array.shape, strict=True) for array in self.arrays.values() if array.role == role]
            return sum(prod(length.get(axis, extent) for axis, extent in array) for array in found)

        def large() -> bool:
            return 8 * size("input") > BLOCK_BYTES * self._large or size("output") > BLOCK_ELEMENTS * self._large

        while self._free and large() and max(length.values()) > 64:
            longest = max(length, key=lambda axis: length[axis])
            length[longest] = -(-length[longest] // 2)
        return {
            axis: [slice(s, min(s + step, total)) for s in range(0, total, step)]
            for axis, step in length.items()
            for total in (self.program.extent(axis, sizes),)
        }
