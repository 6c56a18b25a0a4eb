"""What one kernel costs, under many configs at once: its arithmetic, and what its loops move between memory levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import sizes as expressions
from ..device import Device
from ..launch import itemsize
from ..program import Kernel, Program
from ..program import body as bodies
from ..space import Config, Sizes
from .ceilings import Ceilings
from .nest import Loop, Nest, Numbers, Operand, orders

if TYPE_CHECKING:
    from ..template import Matched

OVERLAP = 0.15  # share of the time of the resources that are not the slowest which is not hidden
FILL = {"l1": 0.75, "l2": 0.6, "l3": 0.5}  # share of a level that a kernel's data can really have
PACKING = 0.25  # share of the second level's read rate at which packing copies
APART = 0.5  # how much slower an inner loop gets that reads unpacked rows of a large array, one cache line each
PIECES = 4.0  # how much slower memory delivers single lines that lie on pages of their own
PAGE = 4096.0
PACKED_LINES = 8  # lines of a row that packing reads at a time
GATHERED = 12.0  # how much slower vectors are that are put together from elements
WIDENED = 0.35  # how much slower an inner loop gets with each operand that it reads in a narrower dtype and widens
COSTLY = 12  # operations that exp, tanh, erf and division count for
CHAINS = 8  # independent vector sums that hide the latency of a multiply-add
SPILLED = 0.3  # share of the speed left when a register tile does not fit the registers
UNKEPT = 0.15  # of the peak, when sums go through the caches
NAIVE = 0.02  # of the peak, when nothing is tiled but blocks


@dataclass(frozen=True)
class Cost:
    """Seconds, by resource too, bytes moved between memory and the caches, one value a config; and operations."""

    seconds: Numbers
    parts: Mapping[str, Numbers]
    moved: Numbers
    flops: float


class KernelRoofline:
    """One kernel under many configs."""

    def __init__(
        self, matched: Matched, configs: Sequence[Config], device: Device, sizes: Sizes, ceilings: Ceilings
    ) -> None:
        self.matched, self.configs, self.device, self.ceilings = matched, configs, device, ceilings
        self.sizes = sizes
        self.program: Program = matched.program
        self.kernel: Kernel = matched.kernel
        self.threads = int(sizes.get("THREADS", device.facts.get("threads", 1)))
        self.extents = {axis: self._numbers(text) for axis, text in self.program.extents.items()}
        self.whole = dict(self.extents)  # before slabs cut them
        cut = [pair for name in self.kernel.anchors for pair in self.program.nodes[name].slab]
        self.slabs = {slab for _, slab in cut}
        for axis, slab in cut:
            self.extents[axis] = np.ceil(self.extents[axis] / self.extents[slab])
        self.reduced = {axis for name in self.kernel.anchors for axis in self.program.nodes[name].over}
        self.operands = self._operands()
        self.loops = self._loops()
        self.operands = tuple(replace(operand, rough=self._rough(operand)) for operand in self.operands)
        self._busy = self._threads()
        self.itemsize = max(operand.itemsize for operand in self.operands)
        units = (str(step[2]) for step in self.matched.annotations if step[0] == "unit")
        self.rate = next(units, "float64" if self.itemsize == 8 else "float32")  # by which its arithmetic is counted

    # -- what the kernel is

    def _numbers(self, text: str) -> Numbers:
        """An extent or a tile size under every config."""
        if text in self.configs[0]:
            return np.array([config[text] for config in self.configs], dtype=float)
        try:
            return np.array(float(expressions.evaluate(text, self.sizes)))
        except KeyError:
            return np.array(
                [expressions.evaluate(text, {**self.sizes, **config}) for config in self.configs], dtype=float
            )

    def _operands(self) -> tuple[Operand, ...]:
        p, inside = self.program, set(self.kernel.members)
        packed = {step[1] for step in self.matched.annotations if step[0] == "move" and step[2] == "pack"}
        found: dict[tuple[Any, ...], Operand] = {}
        for name in self.kernel.members:
            for use in p.nodes[name].args:
                if use.node not in inside:
                    axes = use.seen(p.at((use.node, use.field)).axes)
                    size = itemsize(p.nodes[use.node].dtype)
                    label = p.arrays[use.node, use.field]
                    found[label, axes] = Operand(label, axes, size, packed=p.keys[use.node] in packed)
        for place in self.kernel.outputs:
            label, axes = p.arrays[place], p.at(place).axes
            found[label, axes] = Operand(label, axes, itemsize(p.nodes[place[0]].dtype), written=True)
        cut = {axis: slab for slab, axis in p.slabs.items() if slab in self.slabs}
        return tuple(
            replace(o, axes=(*o.axes, *(cut[a] for a in o.axes if a in cut and cut[a] not in o.axes)))
            for o in found.values()
        )

    def _loops(self) -> tuple[Loop, ...]:
        loops = []
        for slab in sorted(self.slabs):
            loops.append(Loop((slab,), np.ones(()), "block"))
        for step in self.matched.annotations:
            if step[0] == "tile":
                _, axes, level, symbol = step
                kind = level if level in ("block", "serial") else "inner"
                loops.append(Loop(tuple(axes), self._numbers(symbol), kind, set(axes) <= self.reduced))
        return tuple(loops)

    # -- what it costs

    def best(self) -> Cost:
        """The cost under the best order of loops, for each config."""
        compute = self._compute()
        costs = [self._cost(Nest(order, self.operands, self.extents), compute) for order in orders(self.loops)]
        if len(costs) == 1:
            return costs[0]
        chosen = np.argmin(np.stack([cost.seconds for cost in costs]), axis=0)

        def pick(values: list[Numbers]) -> Numbers:
            return np.choose(chosen, values)

        return Cost(
            pick([c.seconds for c in costs]),
            {name: pick([c.parts[name] for c in costs]) for name in costs[0].parts},
            pick([c.moved for c in costs]),
            costs[0].flops,
        )

    def _cost(self, nest: Nest, compute: Numbers) -> Cost:
        d, rates = self.device.facts, self._rates
        shared = [name for name in ("l1", "l2", "l3") if d.get(f"{name.replace('l1', 'l1d')}_bytes")]
        parts: dict[str, Numbers] = {"compute": self._spread(compute)}
        delivered = np.zeros(())  # by the memory
        for level, source in zip(shared, [*shared[1:], "memory"], strict=True):
            size = float(d[f"{level.replace('l1', 'l1d')}_bytes"]) * FILL[level]
            copies = self.threads if level == "l3" else 1
            delivered = nest.traffic(size, copies)
            moved = nest.traffic(size, copies, rough=True) if source == "memory" else delivered
            parts[source] = self._spread(moved / rates(source))
        parts["packing"] = self._spread(nest.packing() / (PACKING * rates("l2")))
        start = self.ceilings.launch_s + (self.ceilings.parallel_s if self.threads > 1 else 0.0)
        parts["start"] = self._spread(np.array(start))
        hidden = [parts[name] for name in parts if name not in ("packing", "start")]
        longest = np.max(np.stack(hidden), axis=0)
        seconds = (1 - OVERLAP) * longest + OVERLAP * sum(hidden) + parts["packing"] + parts["start"]
        return Cost(seconds, parts, self._spread(delivered), self.flops)

    def _rates(self, level: str) -> Numbers:
        """Bytes/s from a level with as many threads as have work."""
        every, one = self.ceilings.read, self.ceilings.read_one
        return np.minimum(every.get(level, every["memory"]), one.get(level, one["memory"]) * self._busy)

    def _spread(self, values: Numbers) -> Numbers:
        return np.broadcast_to(np.asarray(values, dtype=float), (len(self.configs),))

    def _compute(self) -> Numbers:
        """Seconds of arithmetic."""
        sums, others = self._operations()
        self.flops = float(np.max(sums + others))
        peak = self.ceilings.flops_one.get(self.rate) or min(self.ceilings.flops_one.values())
        share = self._efficiency()
        if not np.any(sums) and self.matched.template.efficiency is not None:
            others = others / share  # of elementwise arithmetic, where a kernel has nothing else
        return (sums * self._apart() * self._narrow() / share + 2 * others) / (peak * self._busy)

    def _apart(self) -> Numbers:
        """What it costs to read short rows where they are: each is on a page of its own."""
        slower = np.ones(())
        line, second = self.device.facts.get("line_bytes", 64), self.device.facts.get("l2_bytes", 0)
        for operand in self.operands:
            row = [loop for loop in self._inner() if operand.axes and loop.axes == self._last(operand)]
            if row and not operand.packed and not operand.written and self._bytes(operand) > second:
                lines = np.maximum(1, row[-1].size * operand.itemsize / line)
                slower = np.maximum(slower, 1 + APART / lines**2 * self._between(operand, row[-1]))
        return slower

    def _rough(self, operand: Operand) -> Numbers:
        """What it costs at the memory to read an array in pieces of rows: the tile along its last axis that is not
        walked along next."""
        last = self._last(operand)
        along = [loop for loop in self.loops if loop.axes == last]
        if self._across(operand) and not along:
            along = [Loop(last, np.ones(()), "inner")]
        if operand.written or not along or (along[-1].kind == "inner" and along[-1].reduced):
            return np.ones(())
        line = self.device.facts.get("line_bytes", 64)
        lines = np.maximum(1, along[-1].size * operand.itemsize / line)
        lines = np.maximum(lines, PACKED_LINES) if operand.packed else lines
        return 1 + PIECES / lines**1.3 * self._between(operand, along[-1])

    def _across(self, operand: Operand) -> bool:
        """Does a kernel that only maps read an array across its rows: along the last axis of its outputs, which is not
        the array's last?"""
        written = {axis for o in self.operands if o.written for axis in self._last(o)}
        inside = bool(written) and written <= set(operand.axes)
        return not operand.written and not self.kernel.anchors and inside and not written & set(self._last(operand))

    def _between(self, operand: Operand, loop: Loop) -> Numbers:
        """How far pieces of neighbouring rows lie apart, as a share of a page, at most 1."""
        skipped = np.maximum(0, self.extents[loop.axes[0]] - loop.size) * operand.itemsize
        return np.minimum(1, skipped / PAGE)

    def _last(self, operand: Operand) -> tuple[str, ...]:
        """The axis along which an array is contiguous: its last one, slabs of it apart."""
        return tuple(axis for axis in operand.axes if axis not in self.slabs)[-1:]

    def _narrow(self) -> Numbers:
        """Operands that the inner loop itself must widen or gather. Vectors go along the reduced axis if that has the
        innermost tile, else along the output's last one; a tile along that packs what is not contiguous."""
        slower = np.ones(())
        innermost = [loop for loop in self.loops if loop.kind == "inner"][-1:]
        along = {axis for loop in innermost if loop.reduced for axis in loop.axes}
        if not along and self.loops:
            last = {axis for operand in self.operands if operand.written for axis in self._last(operand)}
            along = last - {axis for loop in self._inner() for axis in loop.axes}
        for operand in self.operands:
            if operand.written or operand.packed:
                continue
            contiguous = [axis for axis in operand.axes if axis not in self.slabs and np.max(self.extents[axis]) > 1][
                -1:
            ]
            if along & set(operand.axes) and not along & set(contiguous):
                slower = slower * GATHERED
            if operand.itemsize < 4 and self._inner():
                slower = slower + WIDENED
        return slower

    def _operations(self) -> tuple[Numbers, Numbers]:
        """(operations of sums of products, others): the first are multiply-adds, the second whatever comes."""
        sums, others = np.zeros(()), np.zeros(())
        for name in self.kernel.members:
            node = self.program.nodes[name]
            own = {**self.whole, **{axis: self.extents[axis] for axis, _ in node.slab}}  # what slabs share counts whole
            for f in node.fields:
                count = np.ones(())
                for axis in dict.fromkeys((*f.axes, *node.over)):
                    count = count * own[axis]
                if node.op == "red" and f.monoid == "sum" and f.body is not None and f.body[0] == "mul":
                    sums = sums + 2 * count
                else:
                    others = others + count * (_operations(f.body) + (1 if node.op == "red" else 0))
        return sums, others

    def _inner(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.kind == "inner" and not loop.reduced]

    def _padding(self) -> Numbers:
        """Work on ragged register tiles as a multiple of the work wanted."""
        result = np.ones(())
        for loop in self._inner():
            extent = np.prod(np.stack([self._spread(self.extents[axis]) for axis in loop.axes]), axis=0)
            result = result * (np.ceil(extent / loop.size) * loop.size / extent)
        return result

    def _threads(self) -> Numbers:
        """How many threads' worth of work gets done at a time: tiles are dealt out, the last round may be short.

        A kernel evens its blocks out among threads, so only tiles that cannot be cut count, and lines of an axis that
        has none; without register tiles these are the blocks.
        """
        inner, blocks = self._inner(), [loop for loop in self.loops if loop.kind == "block"]
        cut = {axis for loop in inner for axis in loop.axes} | self.slabs
        line = self.device.facts.get("line_bytes", 64) / 4
        whole = [replace(loop, size=np.array(line)) for loop in blocks if inner and not cut & set(loop.axes)]
        dealt = [*inner, *whole] or blocks
        tiles = np.ones(())
        for loop in dealt:
            for axis in loop.axes:
                tiles = tiles * self.extents[axis]
            tiles = np.ceil(tiles / loop.size)
        for loop in self.loops:
            if loop.axes[0] in self.slabs and loop not in dealt:
                tiles = tiles * self.extents[loop.axes[0]]
        return tiles / np.ceil(tiles / self.threads)

    def _efficiency(self) -> Numbers:
        """Share of the peak that the inner loop can reach, ragged tiles included: what the template says, else a guess
        from its register tile."""
        hook = self.matched.template.efficiency
        if hook is not None:
            sizes = self.matched.sizes(self.sizes)
            share = [hook(config, self.device, sizes) for config in self.configs]
            return np.clip(np.array(share, dtype=float), 1e-3, 1.0)
        inner = self._inner()
        kept = any(step[0] == "keep" and step[2] == "registers" for step in self.matched.annotations)
        if not inner or not kept:
            tiled = any(loop.kind == "serial" for loop in self.loops)
            return np.array(UNKEPT if tiled else NAIVE)
        lanes = self.device.facts["vector_bytes"] / self.itemsize
        columns = np.ceil(inner[-1].size / lanes)
        rows = np.ones(())
        for loop in inner[:-1]:
            rows = rows * loop.size
        sums = rows * columns
        cycles = np.maximum(sums, np.maximum(rows + columns, CHAINS))  # half cycles: two of each a cycle
        share = sums / cycles * (inner[-1].size / (columns * lanes)) / self._padding()
        fits = sums + columns + 1 <= self.device.facts["vector_registers"]
        return np.clip(np.where(fits, share, share * SPILLED), 1e-3, 1.0)

    def _bytes(self, operand: Operand) -> float:
        size = float(operand.itemsize)
        for axis in operand.axes:
            size *= float(np.max(self.extents[axis]))
        return size


def _operations(body: bodies.Body | None) -> int:
    """Arithmetic in a body, costly functions weighed."""
    if body is None or bodies.is_leaf(body):
        return 0
    own = 1 if body[0] in ("add", "sub", "mul", "max", "mask", "weigh", "shift", "relu") else COSTLY
    return own + sum(map(_operations, bodies.children(body)))
