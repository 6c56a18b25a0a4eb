"""Bulk-tensor maps (CUtensorMap, tiled), made by the driver and remembered.

A map is 128 bytes that name an address, extents, pitches, a box and a swizzle; a kernel gets it as a parameter. Reads
past the extents give 0, writes past them are dropped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import Rejected
from ...launch import itemsize
from . import driver

BYTES, ALIGNMENT = 128, 64
KEEP = 1024  # maps of one spec that are remembered before all are forgotten
DTYPES = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}  # CUtensorMapDataType
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes to CUtensorMapSwizzle
L2_256 = 3  # CUtensorMapL2promotion: what is fetched comes into L2 by 256 bytes
NO_INTERLEAVE = ZEROS = 0
MOST_PITCH = 2**40  # bytes
MOST_BOX = 256


@dataclass
class Spec:
    """All of a map but its address; one for each thread. Extents and pitches in elements, innermost dimension first.

    A pitch along a dimension of extent 1, or less, means nothing and may be anything. Raises Rejected for what no map
    can hold.
    """

    dtype: str
    extents: Sequence[int]
    pitches: Sequence[int]
    box: Sequence[int]
    swizzle: int
    name: str = "map"
    made: dict[int, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise Rejected(f"{self.name}: no map holds {self.dtype}", gate="execution")
        size, rank = itemsize(self.dtype), len(self.extents)
        extents = [max(1, extent) for extent in self.extents]
        steps, least = [], size * extents[0]
        for extent, pitch in zip(extents[1:], self.pitches, strict=True):
            step = pitch * size if extent > 1 else -(-least // 16) * 16
            if step % 16 or not 0 < step < MOST_PITCH:
                raise Rejected(f"{self.name}: a pitch of {step} bytes, want a multiple of 16", gate="execution")
            steps.append(step)
            least = step * extent
        if max(extents) >= 2**31:
            raise Rejected(f"{self.name}: {max(extents)} elements along one dimension, too many", gate="execution")
        if max(self.box) > MOST_BOX or self.box[0] * size % 16 or (self.swizzle and self.box[0] * size > self.swizzle):
            raise Rejected(f"{self.name}: no map has a box of {tuple(self.box)}", gate="execution")
        self._rank = rank
        self._dims = (ctypes.c_uint64 * rank)(*extents)
        self._steps = (ctypes.c_uint64 * max(rank - 1, 1))(*steps)
        self._box = (ctypes.c_uint32 * rank)(*self.box)
        self._ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        room = np.zeros(BYTES + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        self._place = room[start : start + BYTES]  # the driver wants it aligned

    def at(self, address: int) -> bytes:
        """The map over memory that begins at a device address, a multiple of 16. Raises DriverError."""
        found = self.made.get(address)
        if found is None:
            if len(self.made) >= KEEP:
                self.made.clear()
            found = self.made[address] = self._encode(address)
        return found

    def _encode(self, address: int) -> bytes:
        code = driver.library().cuTensorMapEncodeTiled(
            self._place.ctypes.data, DTYPES[self.dtype], self._rank, address, self._dims, self._steps, self._box,
            self._ones, NO_INTERLEAVE, SWIZZLES[self.swizzle], L2_256, ZEROS,
        )  # fmt: skip
        what = f"{self.name} at {address:#x}: {tuple(self.extents)} of {self.dtype}, pitches {tuple(self.pitches)}"
        driver.check(what, code)
        return self._place.tobytes()
