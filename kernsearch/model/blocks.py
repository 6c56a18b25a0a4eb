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
from ..program import Annotation
from .banks import counted
from .nest import Loop, Numbers
from .roofline import NAIVE, Cost
from .traffic import L2_BYTES_CLOCK, BlockTraffic

OVERLAP = 0.1  # share of the time of the resources that are not the slowest which is not hidden
LATENCY_S = 9e-7  # from asking for data in memory until it is there
EXCHANGE_S = 5e-7  # blocks of a cluster that give each other what they found of a row
AHEAD_SHOWN = 0.25  # share of the other resources' time that shows where the next stretch is asked for ahead
KEPT_SHOWN = 0.3  # the same where a block keeps a stretch, of that of as many blocks as a multiprocessor has
KEPT_OPERATIONS = 0.5  # FLOPs of the peak that an operation on what is kept costs
LIFTED = 0.7  # of that where exponentials are lifted clear of subnormal numbers, instructions counted
SPILLED = 5.0  # bytes that move for each byte that is spilled
STEP_S = 6e-8  # of a thread that adds up, several loads under way
ALONG_ROWS = 5.0  # how much longer a step takes where neighbours in memory belong to one thread
BLOCK_S = 1.2e-6  # starting a block: barriers, descriptors, the first fetch
SYNCHRONOUS = 0.55  # share of the rate left when a step's fetch and its arithmetic take turns
MMA_SYNC = 0.62  # share of the tensor rate that mma.sync reaches where wgmma exists
KEEPING_APART = 40  # registers of a thread that keeps a stretch, beside it, as the kernels ask for
REGISTERS_APART = 48  # of a thread, beside its sums
KEPT_APART = 24  # registers of a thread beside what it keeps of a row
MOST_REGISTERS = 65536  # of a block
WORD_BYTES = 16  # that a kernel on rows moves at once
BY_THREADS = 2.0  # how much longer threads take to store a tile of sums than the copy engine
SECTOR = 32.0  # bytes that the caches fetch at least
LOST = 8.0  # multiprocessors that clusters of more than two blocks cannot use
PACKED = 0.5  # share of the copy rate at which rows of any alignment are copied


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


class DeviceKernel(BlockTraffic):
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
        if self.matched.template.accesses is not None:
            parts["shared"] = self._shared_s(blocks)
        parts = {name: self._spread(value) for name, value in parts.items()}
        packing = sum((2 * self._size(o) for o in self.operands if o.packed), start=np.zeros(()))
        alone = self._starts(waves) * BLOCK_S + self._exchange_s(waves) + self._epilogue_s(blocks, waves)
        longest, total = np.max(np.stack([*parts.values()]), axis=0), sum(parts.values())
        parts["packing"] = self._spread(packing / (PACKED * self.ceilings.copy))
        parts["start"] = self._spread(np.array(self.ceilings.launch_s * self._launches()))
        shown = self._unhidden(blocks, resident)
        hidden = (1 - shown) * longest + shown * total
        seconds = hidden + alone + parts["packing"] + parts["start"]
        parts["compute"] = parts["compute"] + alone
        return Cost(seconds, parts, self._spread(self._unique_bytes()), self.flops)

    def _loops(self) -> tuple[Loop, ...]:
        """Also those over a batch, each element of which has blocks of its own."""
        loops, batch = super()._loops(), self.matched.found.groups.get("B", ())
        tiled = any(loop.kind == "block" and loop.axes[0] not in self.slabs for loop in loops)
        return (Loop(tuple(batch), np.ones(()), "block"), *loops) if batch and tiled else loops

    def _shared_s(self, blocks: list[Loop]) -> Numbers:
        """Turns of shared memory, one a clock of each multiprocessor."""
        accesses = self.matched.template.accesses
        assert accesses is not None
        sizes = {**self.sizes, "ITEMSIZE": self.itemsize}
        taken = [counted(a for each in accesses(config, sizes).values() for a in each) for config in self.configs]
        turns = self._count(blocks) * np.array([found.turns for found in taken], dtype=float)
        return turns / (self._clock() * float(self.device.facts.get("sms", 1)))

    def _keeps(self) -> bool:
        """Is what is read kept until the outputs are made, a stretch of the reduced axis in a block?"""
        return bool(self._held)

    def _starts(self, waves: Numbers) -> Numbers:
        """Starts of blocks that nothing hides: where a block keeps a stretch, or only moves a tile, others are at work
        meanwhile."""
        return np.ones(()) if self._keeps() or not self.kernel.anchors else waves

    def _exchange_s(self, waves: Numbers) -> Numbers:
        """What blocks of a cluster wait for each other's values."""
        clustered = any(step[0] == "combine" and step[2] == "cluster" for step in self.matched.annotations)
        return waves * EXCHANGE_S if clustered and self._keeps() else np.zeros(())

    def _unhidden(self, blocks: list[Loop], resident: Numbers) -> Numbers:
        """Share of the time of the resources that are not the slowest which is not hidden: a block that keeps a stretch
        takes its turns one after the other, unless it asks for the next one ahead."""
        if not self._keeps():
            return np.array(OVERLAP)
        ahead = self._numbers("AHEAD") if "AHEAD" in self.configs[0] else np.zeros(())
        rows = np.prod(np.stack([self._spread(loop.size) for loop in blocks]), axis=0)
        return np.where(ahead > 0, AHEAD_SHOWN, np.maximum(OVERLAP, KEPT_SHOWN / (resident * rows)))

    def _threads(self) -> Numbers:
        return np.array(float(self.device.facts.get("sms", 1)))

    def _streaming(self) -> Cost:
        """A kernel without tiles: it reads and writes everything once, or once a step where it sums."""
        sums, others = self._operations()
        self.flops = float(np.max(sums + others))
        again = np.maximum(1.0, self.flops / 2 / np.maximum(1.0, self._written())) if np.any(sums) else np.ones(())
        scattered = self._scattered()
        parts = {
            "compute": self._spread((sums / NAIVE + 2 * others) / self._peak()),
            "l2": self._spread((self._unique_bytes() * (again / 32 + 1) + scattered) / self._rate("l2")),
            "memory": self._spread(self._memory_s()),
            "waiting": self._spread(self._depth() * STEP_S * (ALONG_ROWS if self._along_rows() else 1.0)),
            "start": self._spread(np.array(self.ceilings.launch_s * self._launches())),
        }
        hidden = [parts[name] for name in ("compute", "l2", "memory", "waiting")]
        longest = np.max(np.stack(hidden), axis=0)
        if np.any(scattered):
            longest = longest + OVERLAP * (sum(hidden) - longest)
        return Cost(longest + parts["start"] + BLOCK_S, parts, self._spread(self._unique_bytes()), self.flops)

    def _scattered(self) -> Numbers:
        """Bytes fetched in vain for maps that read along another axis than they write: a sector for each element."""
        return sum((self._size(o) * (SECTOR / o.itemsize - 1) for o in self.operands if self._across(o)), np.zeros(()))

    def _depth(self) -> Numbers:
        """Elements of the longest reduction: a thread walks along all of them."""
        depth = np.zeros(())
        for node in (self.program.nodes[name] for name in self.kernel.members):
            over = [self.extents[axis] for axis in node.over if axis not in self.slabs]
            depth = np.maximum(depth, np.prod(np.stack([self._spread(e) for e in over]), axis=0) if over else 0.0)
        return depth

    def _along_rows(self) -> bool:
        return any(o.axes and o.axes[-1] in self.reduced for o in self._reads())

    def _written(self) -> Numbers:
        """Elements of the outputs."""
        return sum((self._size(o) / o.itemsize for o in self.operands if o.written), start=np.zeros(()))

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
        others = others * (KEPT_OPERATIONS * self._lifted() if self._keeps() else 2.0)
        each = (sums * padded / self._share() + others) / np.maximum(count, 1)
        turns = np.floor(count / (usable * resident))  # in which every multiprocessor has all the blocks that fit
        busiest = turns * resident + np.ceil((count - turns * usable * resident) / usable)  # blocks of one of them
        # All multiprocessors together are held to less than what one can do, by the power that they draw.
        return np.maximum(count * each / self._peak(), busiest * each / self._peak_one()), waves

    def _lifted(self) -> Numbers:
        return np.where(self._numbers("LIFT") > 0, LIFTED, 1.0) if "LIFT" in self.configs[0] else np.ones(())

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
            sizes = self.matched.sizes(self.sizes)
            shares = [hook(config, self.device, sizes) for config in self.configs]
            return np.clip(np.array(shares, dtype=float), 1e-3, 1.0)
        moves = {step[2] for step in self.matched.annotations if step[0] == "move"}
        if not any(step[0] == "tile" and step[2] == "block" for step in self.matched.annotations):
            return np.array(NAIVE)
        share = MMA_SYNC if self._unit() == "mma" and int(self.device.facts.get("cc_major", 0)) >= 9 else 0.9
        return np.array(share if moves & set(ASYNCHRONOUS) else share * SYNCHRONOUS)

    def _occupancy(self) -> Numbers:
        """Blocks that fit one multiprocessor, by shared memory, threads and an estimate of registers."""
        launch = self.matched.template.launches[-1] if self.matched.template.launches else None
        found = []
        for config in self.configs:
            shared, threads = self._geometry(launch, config)
            sums = 1
            for step in self.matched.annotations:
                if step[0] == "tile" and step[2] == "block" and step[3] in config:
                    sums *= config[step[3]]
            apart = KEEPING_APART if self._keeps() else REGISTERS_APART
            wanted = sums // max(threads, 1) + apart + self._kept(config)
            most = min(255, MOST_REGISTERS // max(threads, 1))
            registers = 64 if launch is None else most if self._takes_all() else min(most, wanted)
            fit = occupancy(self.device, registers=registers, threads=threads, shared=shared)
            found.append(max(1, min(fit, config.get("WAVES", fit))))
        return np.array(found, dtype=float)

    def _takes_all(self) -> bool:
        """Does a block have all registers, which its producers leave to its consumers?"""
        return any(step[0] == "roles" for step in self.matched.annotations)

    def _kept(self, config: Mapping[str, int]) -> int:
        """Registers of a thread that hold what the kernel has read: an element of each kept operand for each of its
        elements of a reduced axis."""
        count, symbols = self._keeping
        return count * math.prod(config[symbol] for symbol in symbols)

    @cached_property
    def _held(self) -> list[Annotation]:
        """Steps that keep what is read; not those that keep sums."""
        sums = {self.program.keys[name] for name in self.kernel.anchors}
        return [step for step in self.matched.annotations if step[0] == "keep" and step[1] not in sums]

    @cached_property
    def _keeping(self) -> tuple[int, list[str]]:
        """(operands that are kept in registers, symbols of a thread's elements of a reduced axis)."""
        steps = self.matched.annotations
        kept = [s for s in self._held if s[2] == "registers"]
        tiles = [s for s in steps if s[0] == "tile" and s[2] == "thread" and set(s[1]) <= self.reduced]
        return len(kept), [str(step[3]) for step in tiles]

    def _spilled_bytes(self, blocks: list[Loop]) -> Numbers:
        """What goes to local memory and back for each element that is kept and finds no register."""
        if not self._keeping[0]:
            return np.zeros(())
        launch = self.matched.template.launches[-1] if self.matched.template.launches else None
        spilled = []
        for config in self.configs:
            threads = self._geometry(launch, config)[1]
            room = min(255, MOST_REGISTERS // max(threads, 1)) - KEPT_APART
            spilled.append(SPILLED * 4 * 2 * threads * max(0, self._kept(config) - room))
        return np.array(spilled, dtype=float) * self._count(blocks)

    def _geometry(self, launch: object, config: Mapping[str, int]) -> tuple[int, int]:
        """(bytes of shared memory, threads) of a block; a guess where an expression needs what is not known here."""
        word = WORD_BYTES // max((operand.itemsize for operand in self.operands), default=4)
        names = {**self.sizes, **config, "SMS": int(self.device.facts.get("sms", 1)), "WORD": word}
        try:
            return tuple(expressions.evaluate(getattr(launch, part), names) for part in ("shared", "block"))  # type: ignore[return-value]
        except (AttributeError, KeyError, KernsearchError):
            return 0, 256

    def _waiting_s(self, blocks: list[Loop], resident: Numbers) -> Numbers:
        """How long one block waits for its operands: at most what its multiprocessor can take in, and what is under
        way divided by the latency."""
        at_once = np.minimum(L2_BYTES_CLOCK * self._clock(), resident * self._in_flight(blocks) / LATENCY_S)
        return resident * self._block_bytes(blocks) / at_once

    def _in_flight(self, blocks: list[Loop]) -> Numbers:
        """Bytes of one block that are asked for and not there yet."""
        moves = [step for step in self.matched.annotations if step[0] == "move" and step[2] in ASYNCHRONOUS]
        serial = [loop for loop in self.loops if loop.kind == "serial" and loop.reduced]
        if self._keeps() or not self.kernel.anchors:
            return self._block_bytes(blocks)  # a block asks for all that it keeps, or only moves
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
