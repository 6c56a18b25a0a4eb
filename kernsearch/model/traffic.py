"""What the blocks of one kernel move on a device, under many configs at once: how many blocks and tiles there are, what
each fetches, and what memory and the second-level cache make of it.
"""

from __future__ import annotations

import numpy as np

from .nest import Loop, Numbers, Operand
from .roofline import KernelRoofline

L2_BYTES_CLOCK = 64  # what one multiprocessor can fetch from the second-level cache in a clock
INTAKE = 0.8  # share of what the multiprocessors could take in that the second-level cache delivers
STREAMED = 0.85  # share of the copy rate of kernels that only stream
LEAST_L2_SHARE = 0.5  # of the second-level cache that a value left for the next kernel may have


class BlockTraffic(KernelRoofline):
    """Counts, bytes and seconds of data; `blocks` are the loops over the tiles of blocks."""

    def _size(self, operand: Operand) -> Numbers:
        """Bytes of an operand, all slabs of it."""
        size = np.array(float(operand.itemsize))
        for axis in operand.axes:
            size = size * self.extents[axis]
        return size

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
