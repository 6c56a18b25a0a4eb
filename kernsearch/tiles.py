"""Programs executed tile by tile, as their annotations say: what schedules are checked with, before any hardware.

NumPy in float64. Every tile is a buffer of the tile's full size, filled with NaN where it reaches past the end of an
axis or of a slab, so a kernel that forgets to guard its last tile gives a wrong result here. Blocks run in a shuffled
order and share nothing but memory. Moves go through a queue of slots with explicit completion, and using a slot before
its copy is complete is an error. Values read from memory and written there are counted, which the cost walk must match.

Executed: block, serial, warp, thread and register tiles, slabs, keep, move and its stages, atomic and cluster combines,
skipped tiles. Not executed, only priced: the compute unit, the persistent grid, and which threads issue the moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from . import sizes as expressions
from .body import Body, Dependence, dependence, positions, rescale
from .loops import ASYNCHRONOUS, Loops, Tiling, loops_of, masks_above
from .meaning import FUNCTIONS, IDENTITY
from .program import Kernel, Place, Program
from .value import Axes, Field, Node, Use

Array = np.ndarray

FAULTS = {
    "no guard": "elements past the end of a reduced axis take part",
    "no rescale": "an accumulator is not carried over when its running maximum moves",
    "no slab rescale": "slabs are combined as if they had the same maximum",
    "no wait": "a moved tile is used without waiting for it",
    "early issue": "a move is issued into the slot that is being read",
    "no skip": "nothing is wrong: masked tiles are computed after all",
}


class TileError(Exception):
    """A schedule that no machine could run right: a value used before its move completed, an element left unwritten."""


@dataclass
class Counts:
    """Elements read from memory and written to it, by place."""

    reads: dict[Place, int] = field(default_factory=dict)
    writes: dict[Place, int] = field(default_factory=dict)

    def add(self, to: dict[Place, int], place: Place, count: int) -> None:
        to[place] = to.get(place, 0) + count


@dataclass(frozen=True)
class Range:
    """A tile along one axis: `size` elements from `lo`, of which those below `stop` exist.

    `frame` is the iteration it belongs to, `axis` the name it has there.
    """

    lo: int
    size: int
    stop: int
    frame: Frame
    axis: str = ""

    @property
    def valid(self) -> int:
        return max(0, min(self.size, self.stop - self.lo))


Box = dict[str, Range]


@dataclass(eq=False)
class Frame:
    """One iteration of a loop, and the values at hand until it ends. `part` tells inner tiles of a block apart."""

    depth: int
    inner: bool = False
    part: tuple = ()
    loop: Loop | None = None
    values: dict[Place, list[tuple[Box, Array]]] = field(default_factory=dict)


@dataclass(eq=False)
class Loop:
    """A serial loop: all its tiles, the current one, and the moves that run ahead of it."""

    tiles: list[Box]
    at: int = 0
    queues: dict[tuple, Queue] = field(default_factory=dict)


@dataclass(eq=False)
class Slot:
    tile: int
    buffer: Array  # NaN until the copy is complete
    copy: Callable[[], Array]
    complete: bool = False


class Queue:
    """Copies in flight: `stages` slots, used in turn. Copies complete in the order in which they were issued."""

    def __init__(self, stages: int, asynchronous: bool, tiles: int, faults: frozenset[str]):
        self.stages, self.asynchronous, self.tiles, self.faults = stages, asynchronous, tiles, faults
        self.slots: dict[int, Slot] = {}
        self.next: int | None = None
        self.reading: int | None = None

    def use(self, tile: int, copy: Callable[[int], tuple[tuple[int, ...], Callable[[], Array]]]) -> Array:
        """The tile, after issuing as many later ones as there are free slots. Raises TileError when it is not there."""
        self.reading = None
        self.next = tile if self.next is None else self.next
        self._issue(max(tile + 1, tile + self.stages - 1), copy)
        if "no wait" not in self.faults:
            for slot in sorted(self.slots.values(), key=lambda slot: slot.tile):
                if slot.tile <= tile:
                    self._finish(slot)
        slot = self.slots[tile % self.stages]
        if slot.tile != tile or not slot.complete:
            raise TileError(f"tile {tile} is used before its move completed")
        self.reading = tile
        self._issue(tile + self.stages + ("early issue" in self.faults), copy)
        return slot.buffer

    def _issue(self, end: int, copy: Callable[[int], tuple[tuple[int, ...], Callable[[], Array]]]) -> None:
        assert self.next is not None
        while self.next < min(end, self.tiles):
            if self.reading is not None and self.next % self.stages == self.reading % self.stages:
                raise TileError(f"the move of tile {self.next} overwrites tile {self.reading}, which is being read")
            shape, fill = copy(self.next)
            slot = Slot(self.next, np.full(shape, np.nan), fill)
            self.slots[self.next % self.stages] = slot
            if not self.asynchronous:
                self._finish(slot)
            self.next += 1

    @staticmethod
    def _finish(slot: Slot) -> None:
        if not slot.complete:
            slot.buffer[...] = slot.copy()
            slot.complete = True


def run_tiles(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
    config: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    *,
    faults: frozenset[str] = frozenset(),
    seed: int = 0,
    counts: Counts | None = None,
) -> dict[str, Array]:
    """The outputs, by name, in float64: equal to `meaning.interpret` but for rounding.

    `sizes` gives size letters, `config` the symbols of annotations and slab axes. `faults`, of FAULTS, break the
    execution on purpose. Raises TileError, and KeyError for a size or symbol that is not given.
    """
    if unknown := faults - FAULTS.keys():
        raise ValueError(f"fault {sorted(unknown)[0]!r}: want one of {', '.join(FAULTS)}")
    names = {**sizes, **config}
    memory: dict[Place, Array] = {
        (name, program.nodes[name].fields[0].name): np.asarray(inputs[name], dtype=np.float64)
        for name in program.inputs
    }
    counts = counts if counts is not None else Counts()
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            run = _KernelRun(program, kernel, memory, names, scalars or {}, faults, counts)
            run.all_blocks(np.random.default_rng(seed))
    return {out.name: memory[out.node, out.field] for out in program.outs}


class _KernelRun:
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
        self.kept: dict[tuple, tuple[Array, Array]] = {}

    # -- loops

    def extent(self, axis: str) -> int:
        return self.program.extent(axis, self.names)

    def whole(self, axis: str, frame: Frame) -> Range:
        n = self.extent(axis)
        return Range(0, n, n, frame)

    def cut(self, axes: Axes, size: int, box: Box, frame: Frame) -> list[Box]:
        """Tiles of a group of axes within a box. A tile of several axes falls into runs along the last one."""
        if len(axes) == 1:
            r = box[axes[0]]
            return [
                {axes[0]: Range(lo, size, r.lo + r.valid, frame)} for lo in range(r.lo, r.lo + r.valid, max(1, size))
            ]
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
                tile = {
                    a: Range(box[a].lo + int(i), 1, box[a].lo + int(i) + 1, frame)
                    for a, i in zip(outer, index, strict=False)
                }
                lo = box[last].lo + int(index[-1])
                found.append({**tile, last: Range(lo, length + padding, lo + length, frame)})
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

    def all_blocks(self, rng: np.random.Generator) -> None:
        for place in self.kernel.outputs:
            at = self.program.at(place)
            shape = [self.extent(axis) for axis in at.axes]
            start = IDENTITY[at.monoid or "sum"] if self.is_atomic(place) else np.nan
            self.memory[place] = np.full(shape, start)
        self.written = {place: np.zeros(self.memory[place].shape, int) for place in self.kernel.outputs}
        nowhere = Frame(0)
        free = tuple(dict.fromkeys(axis for place in self.kernel.outputs for axis in self.program.at(place).axes))
        walked = tuple(dict.fromkeys((*(a for t in self.loops.block for a in t.axes), *self.loops.slabs)))
        whole = {axis: self.whole(axis, nowhere) for axis in (*free, *walked)}
        blocks = self.tiles(self.loops.block, tuple(a for a in walked if a not in self.loops.slabs), whole, nowhere)
        for slab in self.loops.slabs:
            blocks = [
                {**block, slab: Range(s, 1, s + 1, nowhere)} for block in blocks for s in range(self.extent(slab))
            ]
        for i in rng.permutation(len(blocks)):
            frame = Frame(0)
            self.stack, self.kept = [frame], {}
            self.block({axis: replace(r, frame=frame) for axis, r in {**whole, **blocks[i]}.items()})
        for place, times in self.written.items():
            if not self.is_atomic(place) and times.size and (times != 1).any():
                raise TileError(f"{self.kernel.key}: elements of an output are written {set(times.flat)} times")

    def is_atomic(self, place: Place) -> bool:
        return bool(set(self.program.nodes[place[0]].over) & set(self.loops.atomic))

    def serial_axes(self, place: Place) -> Axes:
        axes = self.program.at(place).axes
        return tuple(dict.fromkeys(a for t in self.loops.serial for a in t.axes if a in axes))

    def block(self, box: Box) -> None:
        """One block: its outputs, those with the same serial loops together."""
        groups: dict[frozenset[str], list[Place]] = {}
        for place in self.kernel.outputs:
            if self.owns(place, box):
                groups.setdefault(frozenset(self.serial_axes(place)), []).append(place)
        for places in groups.values():
            axes = self.serial_axes(places[0])
            loop = Loop([])
            for tile in self.iterate(loop, self.loops.serial, axes, box):
                for place in places:
                    self.output(place, {**box, **tile})

    def owns(self, place: Place, box: Box) -> bool:
        """An output without an axis of the grid is left by the first block along it."""
        axes = self.program.at(place).axes
        shared = self.loops.atomic if self.is_atomic(place) else ()
        return all(r.lo == 0 for axis, r in box.items() if axis not in (*axes, *shared))

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

    # -- outputs

    def output(self, place: Place, box: Box) -> None:
        node, at = self.program.nodes[place[0]], self.program.at(place)
        atomic = self.is_atomic(place)
        box = {axis: r for axis, r in box.items() if axis in (*at.axes, *node.over)}
        if atomic:
            for use in node.args:
                self.prepare((use.node, use.field), self.seen(use, box))
        else:
            self.prepare(place, box)
        for part in self.parts(at.axes, box, self.loops.inner):
            where = tuple(slice(part[a].lo, part[a].lo + part[a].valid) for a in at.axes)
            cut = tuple(slice(0, part[a].valid) for a in at.axes)
            if atomic:
                value = self.evaluate(node, at.body or (), (*at.axes, *node.over), part, {})
                value = value.sum(axis=tuple(range(len(at.axes), value.ndim)))
                join = np.add if at.monoid == "sum" else np.maximum
                self.memory[place][where] = join(self.memory[place][where], value[cut])
            else:
                self.memory[place][where] = self.value(place, part)[cut]
            self.written[place][where] += 1
            self.counts.add(self.counts.writes, place, math.prod(part[a].valid for a in at.axes))

    # -- values

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
                if all(
                    known[a].lo <= box[a].lo and box[a].lo + box[a].valid <= known[a].lo + known[a].valid for a in axes
                ):
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
        """Registers belong to one warp, thread or register tile, everything else to the block."""
        if self.loops.keep.get(place[0]) != "registers":
            return (place,)
        return (place, *(frame.part for frame in self.stack if frame.inner))

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

    # -- reductions

    def reduce(self, name: str, box: Box) -> None:
        """Compute a reduction, and those that share its loop, for a box of its free axes."""
        node = self.program.nodes[name]
        box = {axis: box[axis] for axis in node.axes}
        slab = next((s for _, s in node.slab if box[s].size != 1), None)
        if slab is not None:
            self.slab_by_slab(name, node, box, slab)
            return
        group = [(n, b) for n in self.loops.together(self.program, name) if (b := self.box_of(n, name, box))]
        windows = {axis: self.window(axis, node, box) for axis in node.over}
        totals = {n: self.start(self.program.nodes[n], b) for n, b in group}

        def masked(tile: Box) -> bool:
            return all(self.all_masked(n, {**b, **tile}) for n, b in group)

        loop = Loop([])
        for tile in self.iterate(loop, self.loops.serial, node.over, windows, masked):
            for n, b in group:
                self.accumulate(self.program.nodes[n], {**b, **tile}, totals[n])
        for n, b in group:
            for f in self.program.nodes[n].fields:
                self.remember((n, f.name), b, totals[n][f.name])

    def slab_by_slab(self, name: str, node: Node, box: Box, slab: str) -> None:
        """Several slabs in one place: a cluster, or the interpreter's way to read all of them."""
        results = {f.name: np.full([box[a].size for a in f.axes], np.nan) for f in node.fields}
        for s in range(box[slab].lo, box[slab].lo + box[slab].valid):
            frame = Frame(len(self.stack), loop=Loop([{}]))
            self.stack.append(frame)
            one = {**box, slab: Range(s, 1, s + 1, frame)}
            self.reduce(name, one)
            for f in node.fields:
                value = self.find((name, f.name), one)
                assert value is not None
                cut = tuple(slice(s - box[slab].lo, s - box[slab].lo + 1) if a == slab else slice(None) for a in f.axes)
                results[f.name][cut] = value
            self.stack.pop()
        for f in node.fields:
            self.remember((name, f.name), box, results[f.name])

    def box_of(self, name: str, asked: str, box: Box) -> Box | None:
        """The box of a reduction that shares the loop of the asked one; None when it is computed elsewhere."""
        if name == asked:
            return box
        block = self.stack[0]
        node = self.program.nodes[name]
        known: Box = {}
        for axis in node.axes:
            if axis in box:
                known[axis] = box[axis]
            elif any(axis in t.axes for t in (*self.loops.block, *self.loops.serial)) or axis in self.loops.slabs:
                return None
            else:
                known[axis] = self.whole(axis, block)
        done = all(self.find((name, f.name), known) is not None for f in node.fields)
        return None if done else known

    def window(self, axis: str, node: Node, box: Box) -> Range:
        n = self.extent(axis)
        slab = dict(node.slab).get(axis)
        if slab is None:
            return Range(0, n, n, self.stack[0])
        width = -(-n // self.extent(slab))
        lo, hi = min(n, box[slab].lo * width), min(n, (box[slab].lo + 1) * width)
        return Range(lo, hi - lo, hi, self.stack[0])

    def start(self, node: Node, box: Box) -> dict[str, Array]:
        return {f.name: np.full([box[a].size for a in f.axes], IDENTITY[f.monoid or "sum"]) for f in node.fields}

    def all_masked(self, name: str, box: Box) -> bool:
        """Is every element of the tile masked, and may it be skipped?"""
        if "no skip" in self.faults:
            return False
        for q, k, off in self.masks[name]:
            if k in self.loops.skip and k in box and q in box:
                last_row = box[q].lo + box[q].valid - 1
                if box[k].lo > last_row + expressions.evaluate(off, self.names):
                    return True
        return False

    def accumulate(self, node: Node, box: Box, totals: dict[str, Array]) -> None:
        """Add one tile of the reduced axes to the totals of a reduction."""
        for use in node.args:
            self.prepare((use.node, use.field), self.seen(use, box))
        for part in self.parts(node.axes, box, self.loops.inner):
            where = {f.name: self.within(f.axes, box, part) for f in node.fields}
            old = {f.name: self.padded(totals[f.name][where[f.name]], f.axes, part) for f in node.fields}
            new: dict[str, tuple[Array, Axes]] = {}
            for f in node.fields:
                total = self.step(node, f, part, old, new)
                new[f.name] = (total, f.axes)
            for f in node.fields:
                target = totals[f.name][where[f.name]]
                totals[f.name][where[f.name]] = new[f.name][0][tuple(slice(0, n) for n in target.shape)]

    @staticmethod
    def within(axes: Axes, box: Box, part: Box) -> tuple[slice, ...]:
        return tuple(slice(part[a].lo - box[a].lo, part[a].lo - box[a].lo + part[a].size) for a in axes)

    @staticmethod
    def padded(value: Array, axes: Axes, part: Box) -> Array:
        full = np.full([part[a].size for a in axes], np.nan)
        full[tuple(slice(0, n) for n in value.shape)] = value
        return full

    def step(self, node: Node, f: Field, box: Box, old: dict[str, Array], new: dict[str, tuple[Array, Axes]]) -> Array:
        """The total of one field after one more tile."""
        axes = (*f.axes, *node.over)
        body = f.body or ()
        if "no slab rescale" in self.faults and set(node.over) & set(self.program.slabs):
            body = _without_scale(body, node)
        value = self.evaluate(node, body, axes, box, new)
        if "no guard" not in self.faults:
            for axis in node.over:
                exists = np.arange(box[axis].size) < box[axis].valid
                value = np.where(_aligned(exists, (axis,), axes), value, IDENTITY[f.monoid or "sum"])
        over = tuple(range(len(f.axes), len(axes)))
        if f.monoid == "max":
            return np.maximum(old[f.name], value.max(axis=over, initial=-np.inf))
        total = old[f.name]
        for r in node.fields:
            if r.name not in new or "no rescale" in self.faults:
                continue
            kind = dependence(f.body or (), r.name)
            if kind is Dependence.SCALE:
                factor = self.carried(old[r.name], new[r.name][0])
                total = total * _aligned(factor, r.axes, f.axes)
            elif kind is not Dependence.FREE:
                raise TileError(f"field {f.name} cannot be carried over when {r.name} moves")
        return total + value.sum(axis=over)

    @staticmethod
    def carried(old: Array, new: Array) -> Array:
        function, (inner, *_) = rescale(("old",), ("new",))
        return FUNCTIONS[function](FUNCTIONS[inner](old, new))

    def evaluate(self, node: Node, body: Body, axes: Axes, box: Box, own: Mapping[str, tuple[Array, Axes]]) -> Array:
        """A body over a box: an array in the order of `axes`."""

        def ev(part: Body) -> Array:
            match part:
                case ("arg", position):
                    use = node.args[position]
                    seen = use.seen(self.program.at((use.node, use.field)).axes)
                    return _aligned(self.value((use.node, use.field), self.seen(use, box)), seen, axes)
                case ("field", earlier):
                    return _aligned(*own[earlier], axes)
                case ("scalar", name):
                    return np.float64(self.scalars[name])
                case ("const", number):
                    return np.float64(number)
                case ("mask", inner, q, k, off):
                    rows, columns = (_aligned(box[a].lo + np.arange(box[a].size), (a,), axes) for a in (q, k))
                    return np.where(columns <= rows + expressions.evaluate(off, self.names), ev(inner), -np.inf)
                case (function, *parts):
                    return FUNCTIONS[function](*map(ev, parts))
            raise ValueError(part)

        return np.array(np.broadcast_to(ev(body), [box[a].size for a in axes]))


def _aligned(value: Array, seen: Axes, axes: Axes) -> Array:
    """A view with one dimension for each of `axes`, of length 1 where the value has no such axis."""
    length = dict(zip(seen, value.shape, strict=True))
    value = value.transpose([seen.index(axis) for axis in axes if axis in length])
    return value.reshape([length.get(axis, 1) for axis in axes])


def _without_scale(body: Body, node: Node) -> Body:
    """The body with every factor that carries a slab to the common maximum replaced by 1."""
    if body[0] in ("arg", "field", "scalar", "const"):
        return body
    if body[0] == "exp" and any(dependence(body, f.name) is Dependence.SCALE for f in node.fields):
        return ("const", 1.0)
    if body[0] == "mask":
        return ("mask", _without_scale(body[1], node), *body[2:])
    return (body[0], *(_without_scale(child, node) for child in body[1:]))
