"""What one kernel costs on a device of many multiprocessors, under many configs at once.

Blocks run in waves, as many at a time as fit the multiprocessors; a wave lasts as long as one block. A block takes the
longest of its arithmetic, of fetching its operands at the rate that its multiprocessor gets from the second-level
cache, and of waiting for them when too few bytes are under way. The whole takes no less than the traffic of the
second-level cache and of memory. What a block does before its first and after its last step does not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from .. import sizes as expressions
from ..device import Device
from ..errors import KernsearchError
from ..meaning.loops import ASYNCHRONOUS
from .nest import Loop, Numbers, Operand
from .roofline import NAIVE, Cost, KernelRoofline

OVERLAP = 0.1  # share of the time of the resources that are not the slowest which is not hidden
LATENCY_S = 9e-7  # from asking for data in memory until it is there
BLOCK_S = 1.2e-6  # starting a block: barriers, descriptors, the first fetch
L2_BYTES_CLOCK = 64  # what one multiprocessor can fetch from the second-level cache in a clock
SYNCHRONOUS = 0.55  # share of the rate left when a step's fetch and its arithmetic take turns
MMA_SYNC = 0.62  # share of the tensor rate that mma.sync reaches where wgmma exists
REGISTERS_APART = 48  # of a thread, beside its sums
KEPT_APART = 24  # registers of a thread beside what it keeps of a row
MOST_REGISTERS = 65536  # of a block
BY_THREADS = 2.0  # how much longer threads take to store a tile of sums than the copy engine
INTAKE = 0.8  # share of what the multiprocessors could take in that the second-level cache delivers
LOST = 8.0  # multiprocessors that clusters of more than two blocks cannot use
PACKED = 0.5  # share of the copy rate at which rows of any alignment are copied
STREAMED = 0.85  # share of the copy rate of kernels that only stream
LEAST_L2_SHARE = 0.5  # of the second-level cache that a value left for the next kernel may have


def occupancy(device: Device, *, registers: int, threads: int, shared: int) -> int:
    """Blocks that one multiprocessor holds at once: by registers (of a thread), threads and bytes of shared memory of a
    block. A block takes 1 KiB of shared memory more than it asks for; warps take registers by 8 a thread."""
    facts = device.facts
    warps = -(-threads // 32)
    return min(
        int(facts.get("shared_sm_bytes", 1 << 17)) // (shared + 1024),
        int(facts.get("max_threads_sm", 2048)) // max(32 * warps, 1),
        int(facts.get("registers_sm", 65536)) // max(-(-registers // 8) * 8 * 32 * warps, 1),
        int(facts.get("max_blocks_sm", 32)),
    )


class DeviceKernel(KernelRoofline):
    """One kernel under many configs, on a device whose arrays are its own."""

    def best(self) -> Cost:
        """The cost of each config."""
        blocks = [loop for loop in self.loops if loop.kind == "block" and loop.axes[0] not in self.slabs]
        resident = self._occupancy()
        if not blocks:
            return self._streaming()
        compute, waves = self._compute_s(blocks, resident)
        parts = {
            "compute": compute,
            "l2": (self._l2_bytes(blocks) + self._spilled_bytes(blocks) + self._twice()) / self._intake(),
            "memory": self._memory_s() + self._again_s(blocks, waves, resident) + self._twice_s(blocks, resident),
            "waiting": waves * self._waiting_s(blocks, resident),
        }
        parts = {name: self._spread(value) for name, value in parts.items()}
        packing = sum((2 * self._size(o) for o in self.operands if o.packed), start=np.zeros(()))
        alone = waves * BLOCK_S + self._epilogue_s(blocks, waves)
        longest, total = np.max(np.stack([*parts.values()]), axis=0), sum(parts.values())
        parts["packing"] = self._spread(packing / (PACKED * self.ceilings.copy))
        parts["start"] = self._spread(np.array(self.ceilings.launch_s * self._launches()))
        hidden = (1 - OVERLAP) * longest + OVERLAP * total
        seconds = hidden + alone + parts["packing"] + parts["start"]
        parts["compute"] = parts["compute"] + alone
        return Cost(seconds, parts, self._spread(self._unique_bytes()), self.flops)

    def _threads(self) -> Numbers:
        return np.array(float(self.device.facts.get("sms", 1)))

    def _streaming(self) -> Cost:
        """A kernel without tiles: it reads and writes everything once, or once a step where it sums."""
        sums, others = self._operations()
        self.flops = float(np.max(sums + others))
        again = np.maximum(1.0, self.flops / 2 / np.maximum(1.0, self._written())) if np.any(sums) else np.ones(())
        parts = {
            "compute": self._spread((sums / NAIVE + 2 * others) / self._peak()),
            "l2": self._spread(self._unique_bytes() * (again / 32 + 1) / self._rate("l2")),
            "memory": self._spread(self._memory_s()),
            "start": self._spread(np.array(self.ceilings.launch_s * self._launches())),
        }
        longest = np.max(np.stack([parts[name] for name in ("compute", "l2", "memory")]), axis=0)
        return Cost(longest + parts["start"] + BLOCK_S, parts, self._spread(self._unique_bytes()), self.flops)

    def _written(self) -> Numbers:
        """Elements of the outputs."""
        return sum((self._size(o) / o.itemsize for o in self.operands if o.written), start=np.zeros(()))

    def _size(self, operand: Operand) -> Numbers:
        """Bytes of an operand, all slabs of it."""
        size = np.array(float(operand.itemsize))
        for axis in operand.axes:
            size = size * self.extents[axis]
        return size

    # -- arithmetic

    def _compute_s(self, blocks: list[Loop], resident: Numbers) -> tuple[Numbers, Numbers]:
        """Seconds of arithmetic of all waves, and how many waves there are (the last one may be short)."""
        sums, others = self._operations()
        self.flops = float(np.max(sums + others))
        count, padded = self._count(blocks), np.ones(())
        for loop in blocks:
            padded = padded * self._tiles(loop) * loop.size / self._extent(loop)
        sms = float(self.device.facts.get("sms", 1))
        usable = self._usable(sms)
        waves = np.ceil(count / (usable * resident))
        each = (sums * padded / self._share() + 2 * others) / np.maximum(count, 1)
        turns = np.floor(count / (usable * resident))  # in which every multiprocessor has all the blocks that fit
        busiest = turns * resident + np.ceil((count - turns * usable * resident) / usable)  # blocks of one of them
        # All multiprocessors together are held to less than what one can do, by the power that they draw.
        return np.maximum(count * each / self._peak(), busiest * each / self._peak_one()), waves

    def _extent(self, loop: Loop) -> Numbers:
        """How far the axes of a loop reach together."""
        return np.prod(np.stack([self._spread(self.extents[axis]) for axis in loop.axes]), axis=0)

    def _tiles(self, loop: Loop) -> Numbers:
        return np.ceil(self._extent(loop) / loop.size)

    def _count(self, blocks: list[Loop]) -> Numbers:
        """How many blocks there are, of all slabs."""
        count = np.ones(())
        for loop in blocks:
            together = self._clustered(set(loop.axes))
            count = count * np.ceil(self._tiles(loop) / together) * together
        for slab in self.slabs:
            count = count * self.extents[slab]
        return count

    def _clustered(self, axes: set[str]) -> Numbers:
        """Blocks of a cluster along these axes: CM along those tiled by BM, CN along those of BN."""
        together = np.ones(())
        for step in self.matched.annotations:
            letter = f"C{str(step[3])[-1]}" if step[0] == "tile" and step[2] == "block" and set(step[1]) & axes else ""
            if letter in self.configs[0]:
                together = together * self._numbers(letter)
        return together

    def _usable(self, sms: float) -> Numbers:
        """Multiprocessors that blocks can lie on: a cluster lies within a group of them, and what is left of a group
        takes no other. Groups differ from chip to chip; an H200 held 31 clusters of 4, 15 of 8 and 7 of 16."""
        size = np.ones(())
        for letter in ("CM", "CN"):
            if letter in self.configs[0]:
                size = size * self._numbers(letter)
        if any(step[0] == "combine" and step[2] == "cluster" for step in self.matched.annotations):
            size = size * self._numbers("SPLIT")
        whole = np.floor(np.where(size > 2, max(sms - LOST, 1.0), sms) / size)
        return np.maximum(whole, 1.0) * size

    def _unit(self) -> str:
        return next((str(step[2]) for step in self.matched.annotations if step[0] == "unit"), "")

    def _peak(self) -> float:
        """FLOP/s of the units that sums run on, all together."""
        return self._of(self.ceilings.flops)

    def _peak_one(self) -> float:
        """FLOP/s of those of one multiprocessor."""
        return self._of(self.ceilings.flops_one)

    def _of(self, flops: Mapping[str, float]) -> float:
        if self._unit():
            return flops.get(self._narrowest(), max(flops.values()))
        return flops.get("float32", min(flops.values()))

    def _narrowest(self) -> str:
        names = [self.program.nodes[name].dtype for name, _ in self.kernel.reads]
        return next((name for name in names if name in self.ceilings.flops), "float32")

    def _share(self) -> Numbers:
        """Share of the peak of the inner loop."""
        hook = self.matched.template.efficiency
        if hook is not None:
            shares = [hook(config, self.device, self.sizes) for config in self.configs]
            return np.clip(np.array(shares, dtype=float), 1e-3, 1.0)
        moves = {step[2] for step in self.matched.annotations if step[0] == "move"}
        if not any(step[0] == "tile" and step[2] == "block" for step in self.matched.annotations):
            return np.array(NAIVE)
        share = MMA_SYNC if self._unit() == "mma" and int(self.device.facts.get("cc_major", 0)) >= 9 else 0.9
        return np.array(share if moves & set(ASYNCHRONOUS) else share * SYNCHRONOUS)

    def _occupancy(self) -> Numbers:
        """Blocks that fit one multiprocessor, by shared memory, threads and an estimate of registers."""
        facts = self.device.facts
        launch = self.matched.template.launches[-1] if self.matched.template.launches else None
        found = []
        for config in self.configs:
            names: Mapping[str, int] = {**self.sizes, **config, "SMS": int(facts.get("sms", 1))}
            shared, threads = self._geometry(launch, names)
            sums = 1
            for step in self.matched.annotations:
                if step[0] == "tile" and step[2] == "block" and step[3] in config:
                    sums *= config[step[3]]
            wanted = sums // max(threads, 1) + REGISTERS_APART + self._kept(config)
            registers = min(255, MOST_REGISTERS // max(threads, 1), wanted) if launch is not None else 64
            fit = occupancy(self.device, registers=registers, threads=threads, shared=shared)
            found.append(max(1, min(fit, config.get("WAVES", fit))))
        return np.array(found, dtype=float)

    def _kept(self, config: Mapping[str, int]) -> int:
        """Registers of a thread that hold what the kernel has read: an element of each kept operand for each of its
        elements of a reduced axis."""
        count, symbols = self._keeping
        return count * math.prod(config[symbol] for symbol in symbols)

    @cached_property
    def _keeping(self) -> tuple[int, list[str]]:
        """(operands that are kept in registers, symbols of a thread's elements of a reduced axis)."""
        sums = {self.program.keys[name] for name in self.kernel.anchors}
        steps = self.matched.annotations
        kept = [s for s in steps if s[0] == "keep" and s[2] == "registers" and s[1] not in sums]
        tiles = [s for s in steps if s[0] == "tile" and s[2] == "thread" and set(s[1]) <= self.reduced]
        return len(kept), [str(step[3]) for step in tiles]

    def _spilled_bytes(self, blocks: list[Loop]) -> Numbers:
        """What goes to local memory and back for each element that is kept and finds no register."""
        if not self._keeping[0]:
            return np.zeros(())
        launch = self.matched.template.launches[-1] if self.matched.template.launches else None
        spilled = []
        for config in self.configs:
            threads = self._geometry(launch, {**self.sizes, **config, "SMS": self.device.facts.get("sms", 1)})[1]
            room = min(255, MOST_REGISTERS // max(threads, 1)) - KEPT_APART
            spilled.append(4 * 2 * threads * max(0, self._kept(config) - room))
        return np.array(spilled, dtype=float) * self._count(blocks)

    @staticmethod
    def _geometry(launch: object, names: Mapping[str, int]) -> tuple[int, int]:
        """(bytes of shared memory, threads) of a block; a guess where an expression needs what is not known here."""
        try:
            return tuple(expressions.evaluate(getattr(launch, part), names) for part in ("shared", "block"))  # type: ignore[return-value]
        except (AttributeError, KeyError, KernsearchError):
            return 0, 256

    # -- traffic

    def _rate(self, level: str) -> float:
        return float(self.ceilings.read.get(level, self.ceilings.read["memory"]))

    def _clock(self) -> float:
        """Clocks of a multiprocessor in a second."""
        return 1e3 * float(self.device.facts.get("sm_clock_khz", 1.7e6))

    def _intake(self) -> float:
        """Bytes/s that all multiprocessors take in from the second-level cache."""
        return max(self._rate("l2"), INTAKE * L2_BYTES_CLOCK * self._clock() * float(self.device.facts.get("sms", 1)))

    def _reads(self) -> list[Operand]:
        return [operand for operand in self.operands if not operand.written]

    def _tile_bytes(self, operand: Operand, blocks: list[Loop]) -> Numbers:
        """What one block fetches of an operand, over all of its steps."""
        size = np.array(float(operand.itemsize))
        for axis in operand.axes:
            if axis in self.slabs:
                continue
            loop = next((loop for loop in blocks if axis in loop.axes), None)
            size = size * (self.extents[axis] if loop is None else np.minimum(loop.size, self.extents[axis]))
        return size

    def _shared_by(self, operand: Operand) -> Numbers:
        """Blocks of a cluster that fetch an operand together: those along axes that it does not have."""
        return self._clustered({axis for axis in self.extents if axis not in operand.axes})

    def _lines(self, operand: Operand) -> Numbers:
        """How many times as many lines of the cache a bulk copy touches where rows do not begin with one: each piece of
        a row, as long as a line, lies in two."""
        bulk = any(step[0] == "move" and step[2] == "bulk" for step in self.matched.annotations)
        own = [axis for axis in operand.axes if axis not in self.slabs]
        if not bulk or operand.packed or len(own) < 2:
            return np.ones(())
        line = int(self.device.facts.get("line_bytes", 128))
        return np.where(self.whole[own[-1]] * operand.itemsize % line, 2.0, 1.0)

    def _block_bytes(self, blocks: list[Loop]) -> Numbers:
        each = (self._tile_bytes(o, blocks) / self._shared_by(o) * self._lines(o) for o in self._reads())
        return sum(each, start=np.zeros(()))

    def _l2_bytes(self, blocks: list[Loop]) -> Numbers:
        written = sum((self._size(operand) for operand in self.operands if operand.written), start=np.zeros(()))
        return self._count(blocks) * self._block_bytes(blocks) + written

    def _unique_bytes(self) -> Numbers:
        return sum((self._size(operand) for operand in self.operands), start=np.zeros(()))

    def _memory_s(self) -> Numbers:
        """Every operand once; what an earlier kernel left, and what is left for a later one, stays in the cache if it
        is small."""
        room = LEAST_L2_SHARE * float(self.device.facts.get("l2_bytes", 0))
        inner = {name for name, place in self._labels().items() if place in self.program.materialised - self._outs()}
        seconds = np.zeros(())
        for operand in self.operands:
            size, memory = self._size(operand), STREAMED * self.ceilings.copy
            near = (operand.name in inner) & (size < room)
            seconds = seconds + size / np.where(near, self._rate("l2"), memory)
        return seconds

    def _again_s(self, blocks: list[Loop], waves: Numbers, resident: Numbers) -> Numbers:
        """Reading operands from memory again, when they do not fit the second-level cache: what the blocks of a wave
        share they read once. GROUP rows of tiles (columns, if ALONG) are walked together."""
        room = LEAST_L2_SHARE * float(self.device.facts.get("l2_bytes", 0))
        read = sum((self._size(operand) for operand in self._reads()), start=np.zeros(()))
        if len(blocks) < 2 or float(np.max(read)) <= room:
            return np.zeros(())
        named = self.configs[0]
        group = self._numbers("GROUP") if "GROUP" in named else np.ones(())
        along = self._numbers("ALONG") if "ALONG" in named else np.zeros(())
        tiles = [self._tiles(loop) for loop in blocks[:2]]
        major, minor = np.where(along > 0, tiles[1], tiles[0]), np.where(along > 0, tiles[0], tiles[1])
        at_once = np.minimum(float(self.device.facts.get("sms", 1)) * resident, tiles[0] * tiles[1])
        high = np.minimum(group, major)
        wide = np.minimum(np.ceil(at_once / high), minor)
        across = [np.where(along > 0, wide, high), np.where(along > 0, high, wide)]
        wave = np.zeros(())
        for operand in self._reads():
            lines = self._tile_bytes(operand, blocks)
            for loop, count in zip(blocks[:2], across, strict=True):
                if set(loop.axes) & set(operand.axes):
                    lines = lines * count
            wave = wave + lines
        return np.maximum(0.0, waves * wave - read) / (STREAMED * self.ceilings.copy)

    def _twice(self) -> Numbers:
        """Bytes of what a reduction reads and an output reads again, unless the kernel keeps it."""
        p, kept = self.program, {step[1] for step in self.matched.annotations if step[0] == "keep"}
        after = {name for name in self.kernel.members if set(self.kernel.anchors) & set(p.ancestors[name])}
        before = {use for name in set(self.kernel.members) - after for use in p.nodes[name].args}
        again = {use for name in after for use in p.nodes[name].args} & before
        if kept or not self.kernel.anchors:
            return np.zeros(())
        names = {p.arrays[use.node, use.field] for use in again if use.node not in self.kernel.members}
        return sum((self._size(o) for o in self._reads() if o.name in names), start=np.zeros(()))

    def _twice_s(self, blocks: list[Loop], resident: Numbers) -> Numbers:
        """Reading it from memory, as far as what is under way does not fit the second-level cache."""
        room = LEAST_L2_SHARE * float(self.device.facts.get("l2_bytes", 1))
        under_way = float(self.device.facts.get("sms", 1)) * resident * self._block_bytes(blocks)
        return self._twice() * np.minimum(1.0, under_way / max(room, 1.0)) / (STREAMED * self.ceilings.copy)

    def _labels(self) -> dict[str, tuple[str, str]]:
        places = [*self.kernel.reads, *self.kernel.outputs]
        return {self.program.arrays[place]: place for place in places}

    def _outs(self) -> set[tuple[str, str]]:
        return {(out.node, out.field) for out in self.program.outs}

    def _waiting_s(self, blocks: list[Loop], resident: Numbers) -> Numbers:
        """How long one block waits for its operands: at most what its multiprocessor can take in, and what is under
        way divided by the latency."""
        at_once = np.minimum(L2_BYTES_CLOCK * self._clock(), resident * self._in_flight(blocks) / LATENCY_S)
        return resident * self._block_bytes(blocks) / at_once

    def _in_flight(self, blocks: list[Loop]) -> Numbers:
        """Bytes of one block that are asked for and not there yet."""
        moves = [step for step in self.matched.annotations if step[0] == "move" and step[2] in ASYNCHRONOUS]
        serial = [loop for loop in self.loops if loop.kind == "serial" and loop.reduced]
        if self._keeping[0]:
            return self._block_bytes(blocks)  # a block asks for all that it keeps
        if not moves or not serial:
            return np.array(256 * 16.0)  # a 16-byte load of each thread
        depth = np.prod(np.stack([self._spread(self.extents[axis]) for axis in serial[0].axes]), axis=0)
        step = self._block_bytes(blocks) * np.minimum(1.0, serial[0].size / depth)
        stages = self._numbers(str(moves[0][3])) if len(moves[0]) > 3 else np.array(2.0)
        return np.maximum(step * (stages - 1), 1024.0)

    def _epilogue_s(self, blocks: list[Loop], waves: Numbers) -> Numbers:
        """Writing the last tiles; persistent kernels hide the earlier ones."""
        size = np.array(float(sum(operand.itemsize for operand in self.operands if operand.written)))
        for loop in blocks:
            size = size * loop.size
        shown = np.ones(()) if any(step[0] == "grid" for step in self.matched.annotations) else waves
        by_threads = self._unit() == "wgmma" and not any(tile.role == "D" for tile in self.matched.template.maps)
        shown = shown * (1.0 + BY_THREADS * float(by_threads))
        return shown * size / (L2_BYTES_CLOCK / 2 * self._clock())

    def _launches(self) -> int:
        return max(1, len(self.matched.template.launches))
