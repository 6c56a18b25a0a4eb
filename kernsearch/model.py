"""The model: a roofline over ceilings and what a program's loops move, to seed the search and to pick the default.

A kernel takes as long as its slowest resource: arithmetic, given the share of the peak that its inner loop can reach
and how evenly its tiles divide among threads; and each memory level, given what the loop nest moves through it. The
others overlap with it, but not wholly; packing and starting do not overlap at all. Kernels run one after another.

The model ranks; it does not promise. What it says is checked by measuring, never used in place of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from . import body as bodies
from . import sizes as expressions
from .ceilings import Ceilings
from .device import Device
from .nest import Loop, Nest, Numbers, Operand, orders
from .program import Kernel, Program
from .space import Config, Sizes

if TYPE_CHECKING:
    from .derive import Variant
    from .feasible import FeasibleSpace
    from .template import Matched

OVERLAP = 0.15  # share of the time of the resources that are not the slowest which is not hidden
FILL = {"l1": 0.75, "l2": 0.6, "l3": 0.5}  # share of a level that a kernel's data can really have
PACKING = 0.25  # share of the second level's read rate at which packing copies
APART = 0.5  # how much slower an inner loop gets that reads unpacked rows of a large array, one cache line each
COSTLY = 12  # operations that exp, tanh, erf and division count for
CHAINS = 8  # independent vector sums that hide the latency of a multiply-add
SPILLED = 0.3  # share of the speed left when a register tile does not fit the registers
UNKEPT = 0.15  # of the peak, when sums go through the caches
NAIVE = 0.02  # of the peak, when nothing is tiled but blocks
ENUMERATED = 1024  # configs of a space that are all predicted
GUESSED = 2000  # random ones of a larger space are tried until
SAMPLED = 32  # so many are feasible; these are improved letter by letter
CLIMBED = 4  # of which so many are improved at a time
CLIMB_STEPS = 6
KEPT = 0.15  # of the peak, when sums go through the caches
NAIVE = 0.02  # of the peak, when nothing is tiled but blocks
ENUMERATED = 4096  # configs of a space that are all predicted
SAMPLED = 768  # random ones of a larger space, improved by neighbours
CLIMBED = 12  # of which this many are improved
CLIMB_STEPS = 24
KEPT = 48  # of a ranking


@dataclass(frozen=True)
class Prediction:
    """What the model says of a candidate.

    seconds   of all kernels
    bound     what takes longest: "compute", a memory level, "packing" or "start"
    parts     seconds by resource, summed over the kernels
    flops     operations, padding not counted; bytes: moved between memory and the caches
    """

    seconds: float
    bound: str
    parts: Mapping[str, float] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    launches: int = 1


def predict(variant: Variant, config: Config, device: Device, sizes: Sizes, ceilings: Ceilings) -> Prediction:
    """Seconds of one candidate at these sizes (size letters, THREADS, ITEMSIZE)."""
    return predict_all(variant, [config], device, sizes, ceilings)[0]


def predict_all(
    variant: Variant, configs: Sequence[Config], device: Device, sizes: Sizes, ceilings: Ceilings
) -> list[Prediction]:
    """The same for many configs at once; thousands take a fraction of a second."""
    if not configs:
        return []
    kernels = [_Kernel(matched, configs, device, sizes, ceilings).best() for matched in variant.kernels]
    total = sum((k.seconds for k in kernels), start=np.zeros(len(configs)))
    names = tuple(dict.fromkeys(name for k in kernels for name in k.parts))
    parts = {
        name: sum((k.parts[name] for k in kernels if name in k.parts), start=np.zeros(len(configs))) for name in names
    }
    slowest = np.argmax(np.stack([parts[name] for name in names]), axis=0)
    moved = sum((k.moved for k in kernels), start=np.zeros(len(configs)))
    flops = sum(k.flops for k in kernels)
    return [
        Prediction(
            float(total[i]),
            names[slowest[i]],
            {name: float(values[i]) for name, values in parts.items()},
            flops,
            float(moved[i]),
            len(kernels),
        )
        for i in range(len(configs))
    ]


def rank(
    variant: Variant,
    space: FeasibleSpace,
    device: Device,
    sizes: Sizes,
    ceilings: Ceilings,
    *,
    seed: int = 0,
    apart: int = 2,
) -> list[tuple[Prediction, dict[str, int]]]:
    """Feasible configs of a variant with what the model says, the fastest first; equal times by config.

    A small space is predicted whole, a large one sampled and improved step by step. After the first, a config is left
    out when it differs from a better one in fewer than `apart` letters: seeds should not all say the same.
    """
    found = _candidates(variant, space, device, sizes, ceilings, seed)
    ordered = sorted(found, key=lambda pair: (pair[0].seconds, tuple(pair[1].items())))
    kept: list[tuple[Prediction, dict[str, int]]] = []
    for prediction, config in ordered:
        if len(kept) == KEPT:
            break
        if all(sum(config[name] != other[name] for name in config) >= min(apart, len(config)) for _, other in kept):
            kept.append((prediction, config))
    return kept


def _candidates(
    variant: Variant, space: FeasibleSpace, device: Device, sizes: Sizes, ceilings: Ceilings, seed: int
) -> list[tuple[Prediction, dict[str, int]]]:
    def told(configs: list[dict[str, int]]) -> list[tuple[Prediction, dict[str, int]]]:
        return list(zip(predict_all(variant, configs, device, sizes, ceilings), configs, strict=True))

    first = list(islice(space.iterate(), ENUMERATED + 1))
    if len(first) <= ENUMERATED:
        return told(first)
    rng = random.Random(seed)
    guesses = ({n: rng.choice(values) for n, values in space.domains.items()} for _ in range(GUESSED))
    drawn = list(islice((config for config in guesses if space.contains(config) is None), SAMPLED)) or first
    known = {tuple(c.items()): (p, c) for p, c in told(drawn)}
    improved: set[tuple[tuple[str, int], ...]] = set()
    for _ in range(CLIMB_STEPS):
        best = sorted((pair for key, pair in known.items() if key not in improved), key=lambda pair: pair[0].seconds)
        fresh: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        for _, config in best[:CLIMBED]:
            improved.add(tuple(config.items()))
            fresh.update((tuple(c.items()), c) for c in _one_letter_away(space, config))
        wanted = [config for key, config in fresh.items() if key not in known]
        if not wanted:
            break
        known |= {tuple(c.items()): (p, c) for p, c in told(wanted)}
    return list(known.values())


def _one_letter_away(space: FeasibleSpace, config: dict[str, int]) -> Iterator[dict[str, int]]:
    """The feasible configs that differ in one letter."""
    for name, values in space.domains.items():
        for value in values:
            moved = {**config, name: value}
            if value != config[name] and space.contains(moved) is None:
                yield moved


@dataclass(frozen=True)
class _Cost:
    seconds: Numbers
    parts: Mapping[str, Numbers]
    moved: Numbers
    flops: float


class _Kernel:
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
        cut = [pair for name in self.kernel.anchors for pair in self.program.nodes[name].slab]
        self.slabs = {slab for _, slab in cut}
        for axis, slab in cut:
            self.extents[axis] = np.ceil(self.extents[axis] / self.extents[slab])
        self.reduced = {axis for name in self.kernel.anchors for axis in self.program.nodes[name].over}
        self.operands = self._operands()
        self.loops = self._loops()
        self.itemsize = max(operand.itemsize for operand in self.operands)
        self.dtype = "float64" if self.itemsize == 8 else "float32"

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
                    itemsize = _itemsize(p.nodes[use.node].dtype)
                    label = p.arrays[use.node, use.field]
                    found[label, axes] = Operand(label, axes, itemsize, packed=p.keys[use.node] in packed)
        for place in self.kernel.outputs:
            label, axes = p.arrays[place], p.at(place).axes
            found[label, axes] = Operand(label, axes, _itemsize(p.nodes[place[0]].dtype), written=True)
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

    def best(self) -> _Cost:
        """The cost under the best order of loops, for each config."""
        compute = self._compute()
        costs = [self._cost(Nest(order, self.operands, self.extents), compute) for order in orders(self.loops)]
        if len(costs) == 1:
            return costs[0]
        chosen = np.argmin(np.stack([cost.seconds for cost in costs]), axis=0)

        def pick(values: list[Numbers]) -> Numbers:
            return np.choose(chosen, values)

        return _Cost(
            pick([c.seconds for c in costs]),
            {name: pick([c.parts[name] for c in costs]) for name in costs[0].parts},
            pick([c.moved for c in costs]),
            costs[0].flops,
        )

    def _cost(self, nest: Nest, compute: Numbers) -> _Cost:
        d, rates = self.device.facts, self.ceilings.read
        shared = [name for name in ("l1", "l2", "l3") if d.get(f"{name.replace('l1', 'l1d')}_bytes")]
        parts: dict[str, Numbers] = {"compute": self._spread(compute)}
        for level, source in zip(shared, [*shared[1:], "memory"], strict=True):
            size = float(d[f"{level.replace('l1', 'l1d')}_bytes"]) * FILL[level]
            moved = self._spread(nest.traffic(size, self.threads if level == "l3" else 1))
            parts[source] = moved / rates.get(source, rates["memory"])
        parts["packing"] = self._spread(nest.packing() / (PACKING * rates.get("l2", rates["memory"])))
        start = self.ceilings.launch_s + (self.ceilings.parallel_s if self.threads > 1 else 0.0)
        parts["start"] = self._spread(np.array(start))
        hidden = [parts[name] for name in parts if name not in ("packing", "start")]
        longest = np.max(np.stack(hidden), axis=0)
        seconds = (1 - OVERLAP) * longest + OVERLAP * sum(hidden) + parts["packing"] + parts["start"]
        return _Cost(seconds, parts, parts["memory"] * rates["memory"], self.flops)

    def _spread(self, values: Numbers) -> Numbers:
        return np.broadcast_to(np.asarray(values, dtype=float), (len(self.configs),))

    def _compute(self) -> Numbers:
        """Seconds of arithmetic."""
        sums, others = self._operations()
        self.flops = float(np.max(sums + others))
        threads = self._threads()
        peak = self.ceilings.flops_one.get(self.dtype) or min(self.ceilings.flops_one.values())
        return (sums * self._apart() / self._efficiency() + 2 * others) / (peak * threads)

    def _apart(self) -> Numbers:
        """What it costs to read short rows where they are: each is on a page of its own."""
        slower = np.ones(())
        line, second = self.device.facts.get("line_bytes", 64), self.device.facts.get("l2_bytes", 0)
        for operand in self.operands:
            row = [loop for loop in self._inner() if operand.axes and loop.axes == operand.axes[-1:]]
            if row and not operand.packed and not operand.written and self._bytes(operand) > second:
                lines = np.maximum(1, row[-1].size * operand.itemsize / line)
                slower = np.maximum(slower, 1 + APART / lines**2)
        return slower

    def _operations(self) -> tuple[Numbers, Numbers]:
        """(operations of sums of products, others): the first are multiply-adds, the second whatever comes."""
        sums, others = np.zeros(()), np.zeros(())
        for name in self.kernel.members:
            node = self.program.nodes[name]
            for f in node.fields:
                count = np.ones(())
                for axis in dict.fromkeys((*f.axes, *node.over)):
                    count = count * self.extents[axis]
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

        A kernel evens its blocks out among threads, so only tiles that cannot be cut count; without register tiles
        these are the blocks.
        """
        dealt = self._inner() or [loop for loop in self.loops if loop.kind == "block"]
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
            share = [hook(config, self.device, self.sizes) for config in self.configs]
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


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)
