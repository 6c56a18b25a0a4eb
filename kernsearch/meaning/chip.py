"""Values of a kernel while it runs tile by tile: read, computed, kept, moved, and at hand in which loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from .. import sizes as expressions
from ..program import Kernel, Place, Program
from ..program.body import Body, positions
from ..program.value import Axes, Node, Use
from .frames import Array, Box, Frame, Loop, Queue, Range
from .loops import ASYNCHRONOUS, Loops, Tiling, loops_of, masks_above
from .whole import FUNCTIONS


@dataclass
class Counts:
    """Elements read from memory and written to it, by place."""

    reads: dict[Place, int] = field(default_factory=dict)
    writes: dict[Place, int] = field(default_factory=dict)

    def add(self, to: dict[Place, int], place: Place, count: int) -> None:
        to[place] = to.get(place, 0) + count


class Chip:
    """A kernel, the memory it works on, the loops around the current point, and the values at hand there.

    `stack` holds a frame for the block and each loop inside it; `kept` the buffers of the block.
    """

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        memory: dict[Place, Array],
        names: Mapping[str, int],
        scalars: Mapping[str, float],
        faults: frozenset[str],
        counts: Counts,
    ):
        self.program, self.kernel, self.memory, self.names = program, kernel, memory, names
        self.scalars, self.faults, self.counts = scalars, faults, counts
        self.inside = frozenset(kernel.members)
        self.loops: Loops = loops_of(program, kernel)
        self.masks = {name: masks_above(program, kernel, program.nodes[name]) for name in kernel.anchors}
        self.stack: list[Frame] = []
        self.around: Box = {}
        self.kept: dict[tuple, tuple[Array, Array]] = {}

    def extent(self, axis: str) -> int:
        return self.program.extent(axis, self.names)

    def whole(self, axis: str, frame: Frame) -> Range:
        n = self.extent(axis)
        return Range(0, n, n, frame, variable=axis)

    def cut(self, axes: Axes, size: int, box: Box, frame: Frame) -> list[Box]:
        """Tiles of a group of axes within a box. A tile of several axes falls into runs along the last one."""
        if len(axes) == 1:
            r = box[axes[0]]
            end, step = r.lo + r.valid, max(1, size)
            return [{axes[0]: replace(r, lo=lo, size=size, stop=end, frame=frame)} for lo in range(r.lo, end, step)]
        *outer, last = axes
        shape = [box[axis].valid for axis in axes]
        total, run = math.prod(shape), box[last].valid
        found = []
        for start in range(0, total, size):
            at, end = start, min(start + size, total)
            while at < end:
                index = np.unravel_index(at, shape)
                length = min(run - int(index[-1]), end - at)
                padding = start + size - total if at + length == total else 0
                tile = {a: box[a].only(box[a].lo + int(i), frame) for a, i in zip(outer, index, strict=False)}
                lo = box[last].lo + int(index[-1])
                tile[last] = replace(box[last], lo=lo, size=length + padding, stop=lo + length, frame=frame)
                found.append(tile)
                at += length
        return found

    def tiles(self, tilings: tuple[Tiling, ...], axes: Axes, box: Box, frame: Frame) -> list[Box]:
        """All tiles of nested loops over some axes, outermost first; axes without a tiling stay whole."""
        found = [{axis: replace(box[axis], frame=frame) for axis in axes}]
        for tiling in tilings:
            group = tuple(axis for axis in tiling.axes if axis in axes)
            if group:
                size = self.names[tiling.symbol]
                found = [{**tile, **part} for tile in found for part in self.cut(group, size, tile, frame)]
        return [tile for tile in found if all(r.valid for r in tile.values())]

    def iterate(
        self,
        loop: Loop,
        tilings: tuple[Tiling, ...],
        axes: Axes,
        box: Box,
        drop: Callable[[Box], bool] = lambda tile: False,
    ) -> Iterator[Box]:
        """Run a serial loop: yields each tile with its frame on the stack."""
        if not axes:
            yield {}
            return
        shape = self.tiles(tilings, axes, box, self.stack[0])
        loop.tiles = [tile for tile in shape if not drop(tile)]
        for number, tile in enumerate(loop.tiles):
            loop.at = number
            frame = Frame(len(self.stack), loop=loop)
            self.stack.append(frame)
            yield {axis: replace(r, frame=frame, axis=axis) for axis, r in tile.items()}
            self.stack.pop()

    def parts(self, axes: Axes, box: Box, tilings: tuple[Tiling, ...]) -> Iterator[Box]:
        """The warp, thread and register tiles of a box along free axes."""
        if not tilings:
            yield box
            return
        group = tuple(axis for axis in tilings[0].axes if axis in axes and axis not in self.program.slabs)
        if not group:
            yield from self.parts(axes, box, tilings[1:])
            return
        for tile in self.cut(group, self.names[tilings[0].symbol], box, self.stack[0]):
            frame = Frame(len(self.stack), inner=True, part=tuple((a, r.lo) for a, r in sorted(tile.items())))
            self.stack.append(frame)
            yield from self.parts(axes, {**box, **{a: replace(r, frame=frame) for a, r in tile.items()}}, tilings[1:])
            self.stack.pop()

    def seen(self, use: Use, box: Box) -> Box:
        """The box of what is read, in the producer's axes."""
        own = self.program.at((use.node, use.field)).axes
        return {axis: box[name] for axis, name in zip(own, use.seen(own), strict=True)}

    def prepare(self, place: Place, box: Box) -> None:
        """Everything that is shared by the warp, thread and register tiles of a box: reductions, kept and moved."""
        name = place[0]
        if self.find(place, box) is not None:
            return
        if name in self.inside and self.program.nodes[name].op == "red":
            self.reduce(name, box)
        elif self.shared(name):
            self.fetch(place, box)
        elif name in self.inside:
            node = self.program.nodes[name]
            for position in positions(node.field(place[1]).body or ()):
                use = node.args[position]
                self.prepare((use.node, use.field), self.seen(use, box))

    def shared(self, name: str) -> bool:
        """Do all warp, thread and register tiles of a block use the same copy?"""
        level = self.loops.keep.get(name)
        return name in self.loops.move or (level is not None and (level != "registers" or not self.loops.inner))

    def reduce(self, name: str, box: Box) -> None:
        """Compute a reduction for a box of its free axes, and remember it."""
        raise NotImplementedError

    def value(self, place: Place, box: Box) -> Array:
        """The values of a box: an array in the field's axis order, NaN where the box reaches past the end."""
        known = self.find(place, box)
        if known is not None:
            return known
        node = self.program.nodes[place[0]]
        if place[0] in self.inside and node.op == "red":
            self.reduce(place[0], box)
            found = self.find(place, box)
            assert found is not None
            return found
        return self.fetch(place, box)

    def fetch(self, place: Place, box: Box) -> Array:
        name = place[0]
        if name in self.loops.keep:
            return self.hold(place, box)
        value = self.staged(place, box) if name in self.loops.move else self.fresh(place, box)
        self.remember(place, box, value)
        return value

    def fresh(self, place: Place, box: Box) -> Array:
        """Read from memory, or computed."""
        if place[0] not in self.inside:
            self.counts.add(self.counts.reads, place, math.prod(r.valid for r in box.values()))
            return self.copied(place, box)
        node, at = self.program.nodes[place[0]], self.program.at(place)
        return self.evaluate(node, at.body or (), at.axes, box, {})

    def copied(self, place: Place, box: Box) -> Array:
        axes = self.program.at(place).axes
        tile = np.full([box[a].size for a in axes], np.nan)
        where = tuple(slice(box[a].lo, box[a].lo + box[a].valid) for a in axes)
        tile[tuple(slice(0, box[a].valid) for a in axes)] = self.memory[place][where]
        return tile

    def find(self, place: Place, box: Box) -> Array | None:
        """A value at hand: kept, or remembered by a loop that is still in the same iteration."""
        axes = self.program.at(place).axes
        box = {axis: box[axis] for axis in axes}
        if (kept := self.kept.get(self.keep_key(place))) is not None:
            buffer, present = kept
            where = tuple(slice(box[a].lo, box[a].lo + box[a].valid) for a in axes)
            if present[where].all():
                tile = np.full([box[a].size for a in axes], np.nan)
                tile[tuple(slice(0, box[a].valid) for a in axes)] = buffer[where]
                return tile
        for frame in reversed(self.stack):
            for known, value in frame.values.get(place, ()):
                if all(known[a].holds(box[a]) for a in axes):
                    return self.part_of(known, value, box, axes)
        return None

    @staticmethod
    def part_of(known: Box, value: Array, box: Box, axes: Axes) -> Array:
        tile = np.full([box[a].size for a in axes], np.nan)
        at = [box[a].lo - known[a].lo for a in axes]
        lengths = [min(box[a].size, known[a].size - lo) for a, lo in zip(axes, at, strict=True)]
        source = tuple(slice(lo, lo + n) for lo, n in zip(at, lengths, strict=True))
        tile[tuple(slice(0, n) for n in lengths)] = value[source]
        return tile

    def remember(self, place: Place, box: Box, value: Array) -> None:
        depth = max((box[a].frame.depth for a in self.program.at(place).axes), default=0)
        depth = max([depth, *(frame.depth for frame in self.stack if frame.inner)])
        self.stack[depth].values.setdefault(place, []).append((box, value))

    def keep_key(self, place: Place) -> tuple:
        """Registers belong to one warp, thread or register tile, along axes that the value lacks; everything else
        to the block."""
        if self.loops.keep.get(place[0]) != "registers":
            return (place,)
        axes = self.program.at(place).axes
        return (place, *(part for frame in self.stack for part in frame.part if part[0] not in axes))

    def hold(self, place: Place, box: Box) -> Array:
        """Keep a value on chip for the rest of the block; only what is not there yet is read."""
        axes = self.program.at(place).axes
        shape = [self.extent(a) for a in axes]
        buffer, present = self.kept.setdefault(
            self.keep_key(place), (np.full(shape, np.nan), np.zeros(shape, dtype=bool))
        )
        where = tuple(slice(box[a].lo, box[a].lo + box[a].valid) for a in axes)
        cut = tuple(slice(0, box[a].valid) for a in axes)
        missing = int((~present[where]).sum())
        if place[0] in self.loops.move:
            value = self.staged(place, box)
        elif place[0] in self.inside:
            value = self.fresh(place, box)
        else:
            self.counts.add(self.counts.reads, place, missing)
            value = self.copied(place, box)
        buffer[where], present[where] = value[cut], True
        return value

    def staged(self, place: Place, box: Box) -> Array:
        """A tile that comes through the slots of a queue, ahead of the innermost loop that moves it."""
        how, symbol = self.loops.move[place[0]]
        stages = self.names[symbol] if symbol else 1
        asynchronous = how in ASYNCHRONOUS
        moving = [r.frame for r in box.values() if r.frame.loop is not None and len(r.frame.loop.tiles) > 1]
        frame = max(moving, key=lambda frame: frame.depth, default=None)
        if place[0] in self.inside:  # a computed value that is copied into a buffer
            return self.fresh(place, box)

        def copy(number: int) -> tuple[tuple[int, ...], Callable[[], Array]]:
            tile = frame.loop.tiles[number] if frame is not None and frame.loop is not None else {}
            there = {a: self.moved(r, tile, frame) for a, r in box.items()}
            self.counts.add(self.counts.reads, place, math.prod(r.valid for r in there.values()))
            axes = self.program.at(place).axes
            return tuple(there[a].size for a in axes), lambda: self.copied(place, there)

        if frame is None or frame.loop is None:
            return Queue(1, asynchronous, 1, self.faults).use(0, copy)
        rest = tuple((a, r.lo, r.size) for a, r in sorted(box.items()) if r.frame is not frame)
        queue = frame.loop.queues.setdefault(
            (place, rest), Queue(stages, asynchronous, len(frame.loop.tiles), self.faults)
        )
        return queue.use(frame.loop.at, copy)

    @staticmethod
    def moved(r: Range, tile: Box, frame: Frame | None) -> Range:
        """The range at another iteration of the frame's loop."""
        if frame is None or r.frame is not frame or frame.loop is None:
            return r
        return replace(tile[r.axis], frame=frame, axis=r.axis)

    def evaluate(self, node: Node, body: Body, axes: Axes, box: Box, own: Mapping[str, tuple[Array, Axes]]) -> Array:
        """A body over a box: an array in the order of `axes`."""

        def ev(part: Body) -> Array:
            match part:
                case ("arg", position):
                    use = node.args[position]
                    seen = use.seen(self.program.at((use.node, use.field)).axes)
                    return aligned(self.value((use.node, use.field), self.seen(use, box)), seen, axes)
                case ("field", earlier):
                    return aligned(*own[earlier], axes)
                case ("scalar", name):
                    return np.asarray(self.scalars[name], dtype=np.float64)
                case ("const", number):
                    return np.asarray(number, dtype=np.float64)
                case ("mask", inner, q, k, off):
                    rows, columns = (aligned(box[a].lo + np.arange(box[a].size), (a,), axes) for a in (q, k))
                    return np.where(columns <= rows + expressions.evaluate(off, self.names), ev(inner), -np.inf)
                case (function, *parts):
                    return FUNCTIONS[function](*map(ev, parts))
            raise ValueError(part)

        return np.array(np.broadcast_to(ev(body), [box[a].size for a in axes]))


def aligned(value: Array, seen: Axes, axes: Axes) -> Array:
    """A view with one dimension for each of `axes`, of length 1 where the value has no such axis."""
    length = dict(zip(seen, value.shape, strict=True))
    value = value.transpose([seen.index(axis) for axis in axes if axis in length])
    return value.reshape([length.get(axis, 1) for axis in axes])
