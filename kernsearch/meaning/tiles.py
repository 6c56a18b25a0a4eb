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
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .. import sizes as expressions
from ..program import Place, Program
from ..program.body import Body, Dependence, dependence, rescale
from ..program.value import Axes, Field, Node
from .chip import Chip, Counts, aligned
from .frames import Array, Box, Frame, Loop, Range, TileError
from .whole import FUNCTIONS, IDENTITY

FAULTS = {
    "no guard": "elements past the end of a reduced axis take part",
    "no rescale": "an accumulator is not carried over when its running maximum moves",
    "no slab rescale": "slabs are combined as if they had the same maximum",
    "no wait": "a moved tile is used without waiting for it",
    "early issue": "a move is issued into the slot that is being read",
    "no skip": "nothing is wrong: masked tiles are computed after all",
}


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


class _KernelRun(Chip):
    """Runs every block of a kernel."""

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
                {**block, slab: whole[slab].only(s, nowhere)} for block in blocks for s in range(self.extent(slab))
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
                self.around = {**box, **tile}
                for place in places:
                    self.output(place, {**box, **tile})

    def owns(self, place: Place, box: Box) -> bool:
        """An output without an axis of the grid is left by the first block along it."""
        axes = self.program.at(place).axes
        shared = self.loops.atomic if self.is_atomic(place) else ()
        return all(r.lo == 0 for axis, r in box.items() if axis not in (*axes, *shared))

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

    def reduce(self, name: str, box: Box) -> None:
        """Compute a reduction, and those that share its loop, for a box of its free axes."""
        node = self.program.nodes[name]
        box = {axis: self.known(axis, box) for axis in node.axes}
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
        for tile in self.iterate(loop, self.loops.reducing, node.over, windows, masked):
            for n, b in group:
                self.accumulate(self.program.nodes[n], {**b, **tile}, totals[n])
        for n, b in group:
            for f in self.program.nodes[n].fields:
                self.remember((n, f.name), b, totals[n][f.name])

    def known(self, axis: str, box: Box) -> Range:
        """The range of an axis; one that the asked field lacks comes from the loops around."""
        return box.get(axis) or self.around.get(axis) or self.whole(axis, self.stack[0])

    def slab_by_slab(self, name: str, node: Node, box: Box, slab: str) -> None:
        """Several slabs in one place: a cluster, or the interpreter's way to read all of them."""
        results = {f.name: np.full([box[a].size for a in f.axes], np.nan) for f in node.fields}
        for s in range(box[slab].lo, box[slab].lo + box[slab].valid):
            frame = Frame(len(self.stack), loop=Loop([{}]))
            self.stack.append(frame)
            one = {**box, slab: box[slab].only(s, frame)}
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
        node = self.program.nodes[name]
        known: Box = {}
        for axis in node.axes:
            if axis in box:
                known[axis] = box[axis]
            elif any(axis in t.axes for t in (*self.loops.block, *self.loops.serial)) or axis in self.loops.slabs:
                return None
            else:
                known[axis] = self.whole(axis, self.stack[0])
        done = all(self.find((name, f.name), known) is not None for f in node.fields)
        return None if done else known

    def window(self, axis: str, node: Node, box: Box) -> Range:
        n = self.extent(axis)
        slab = dict(node.slab).get(axis)
        if slab is None:
            return Range(0, n, n, self.stack[0], variable=object())
        width = -(-n // self.extent(slab))
        lo, hi = min(n, box[slab].lo * width), min(n, (box[slab].lo + 1) * width)
        return Range(lo, hi - lo, hi, self.stack[0], variable=object())

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
                value = np.where(aligned(exists, (axis,), axes), value, IDENTITY[f.monoid or "sum"])
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
                total = total * aligned(factor, r.axes, f.axes)
            elif kind is not Dependence.FREE:
                raise TileError(f"field {f.name} cannot be carried over when {r.name} moves")
        return total + value.sum(axis=over)

    @staticmethod
    def carried(old: Array, new: Array) -> Array:
        function, (inner, *_) = rescale(("old",), ("new",))
        return FUNCTIONS[function](FUNCTIONS[inner](old, new))


def _without_scale(body: Body, node: Node) -> Body:
    """The body with every factor that carries a slab to the common maximum replaced by 1."""
    if body[0] in ("arg", "field", "scalar", "const"):
        return body
    if body[0] == "exp" and any(dependence(body, f.name) is Dependence.SCALE for f in node.fields):
        return ("const", 1.0)
    if body[0] == "mask":
        return ("mask", _without_scale(body[1], node), *body[2:])
    return (body[0], *(_without_scale(child, node) for child in body[1:]))
