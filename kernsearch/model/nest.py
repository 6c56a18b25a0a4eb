"""How much a loop nest moves between memory levels, for many configs at once.

A kernel is a nest of loops over tiles; a level that can hold everything touched inside some loop fetches each array
once an iteration of the loops around it, or less often where the loops next to it leave the array as it is. Numbers of
all configs are computed together: every tile size and trip count is an array over configs.

The annotations fix what is tiled, not in which order the blocks follow one another; `orders` gives the sensible ones
and the model takes the best, as the author of a kernel would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import permutations, product

import numpy as np

from ..program.value import Axes

Numbers = np.ndarray  # one value a config, float64


@dataclass(frozen=True)
class Operand:
    """An array that a kernel reads or writes; `packed`: it is copied into a buffer of its own first. `rough`: how much
    longer memory takes to deliver it in the pieces in which it is read than in one."""

    name: str
    axes: Axes
    itemsize: int
    written: bool = False
    packed: bool = False
    rough: Numbers | float = 1.0


@dataclass(frozen=True)
class Loop:
    """A loop over tiles of a group of axes. kind: "block" (between threads), "serial" or "inner"."""

    axes: Axes
    size: Numbers
    kind: str
    reduced: bool = False


@dataclass(frozen=True)
class Nest:
    """Loops outermost first, the operands, and the extent of every axis."""

    loops: tuple[Loop, ...]
    operands: tuple[Operand, ...]
    extents: Mapping[str, Numbers]

    @cached_property
    def ranges(self) -> list[dict[Axes, Numbers]]:
        """What each group of axes runs through inside the first d loops, for d = 0 .. number of loops."""
        now = {loop.axes: self._whole(loop.axes) for loop in self.loops}
        found = [dict(now)]
        for loop in self.loops:
            now[loop.axes] = np.minimum(now[loop.axes], loop.size)
            found.append(dict(now))
        return found

    @cached_property
    def trips(self) -> list[Numbers]:
        """How often each loop runs, per iteration of the loops around it."""
        ranges = self.ranges
        return [np.ceil(ranges[d][loop.axes] / ranges[d + 1][loop.axes]) for d, loop in enumerate(self.loops)]

    @cached_property
    def footprints(self) -> list[list[Numbers]]:
        """Bytes of each operand inside the first d loops."""
        return [[self.footprint(operand, ranges) for operand in self.operands] for ranges in self.ranges]

    @cached_property
    def visits(self) -> list[list[Numbers]]:
        """Bytes of each operand that a level holding what is inside d loops takes in."""
        depths = range(len(self.ranges))
        return [[self.footprints[d][i] * self._fetches(o, d) for d in depths] for i, o in enumerate(self.operands)]

    def footprint(self, operand: Operand, ranges: Mapping[Axes, Numbers]) -> Numbers:
        """Bytes of an operand touched while the groups run through these ranges."""
        elements: Numbers = np.ones(())
        grouped: set[str] = set()
        for group, size in ranges.items():
            own = tuple(axis for axis in operand.axes if axis in group)
            grouped.update(own)
            if own:
                elements = elements * np.minimum(size, self._whole(own))
        for axis in operand.axes:
            if axis not in grouped:
                elements = elements * self.extents[axis]
        return elements * operand.itemsize

    def traffic(self, capacity: float, copies: int = 1, *, rough: bool = False) -> Numbers:
        """Bytes that a level of this capacity takes in; what is written counts twice, as it is fetched or allocated
        too. `copies` threads fill the level with blocks of their own. `rough`: bytes in small pieces count for more."""
        deep = [any(loop.kind == "block" for loop in self.loops[:d]) for d in range(len(self.ranges))]
        total = [sum(parts) * (copies if own else 1) for parts, own in zip(self.footprints, deep, strict=True)]
        depth = np.full(np.shape(total[-1]), len(self.loops))
        for d in range(len(self.loops) - 1, -1, -1):
            depth = np.where(total[d] <= capacity, d, depth)
        moved: Numbers = np.zeros(())
        for operand, visits in zip(self.operands, self.visits, strict=True):
            moved = moved + np.choose(depth, visits) * (2 if operand.written else 1) * (operand.rough if rough else 1)
        return moved

    def packing(self) -> Numbers:
        """Bytes copied into packed buffers, each filled as far out as its loops allow."""
        moved: Numbers = np.zeros(())
        for operand in self.operands:
            if operand.packed:
                around = [
                    d + 1 for d, loop in enumerate(self.loops) if loop.kind != "inner" and _indexes(loop, operand)
                ]
                depth = max(around, default=0)
                moved = moved + self.footprint(operand, self.ranges[depth]) * _times(self.trips[:depth])
        return moved

    def _fetches(self, operand: Operand, depth: int) -> Numbers:
        """How often what an operand holds inside `depth` loops must come in anew."""
        while depth > 0 and not _indexes(self.loops[depth - 1], operand):
            depth -= 1
        return _times(self.trips[:depth])

    def _whole(self, axes: Axes) -> Numbers:
        return _times([self.extents[axis] for axis in axes])


def orders(loops: Sequence[Loop]) -> Iterator[tuple[Loop, ...]]:
    """Sensible orders: blocks in any order, serial loops together after the first block or later, inner loops last."""
    blocks = [loop for loop in loops if loop.kind == "block"]
    serial = [loop for loop in loops if loop.kind == "serial"]
    inner = [loop for loop in loops if loop.kind == "inner"]
    places = range(min(1, len(blocks)), len(blocks) + 1) if serial else (0,)
    for outer, last, place in product(permutations(blocks), permutations(inner), places):
        yield (*outer[:place], *serial, *outer[place:], *last)


def _indexes(loop: Loop, operand: Operand) -> bool:
    return any(axis in operand.axes for axis in loop.axes)


def _times(numbers: Sequence[Numbers]) -> Numbers:
    return reduce(np.multiply, numbers, _ONE)


_ONE = np.ones(())
