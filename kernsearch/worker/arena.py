"""Shared memory for the arrays of a candidate, fenced: red zones around every buffer, poison in every output.

On the CPU one memfd, mapped by the host and by the worker's child. It can grow but is sealed against shrinking, so that
nothing a kernel does to the file can fault the host. On a device the same layout lies in memory that only its own
process sees (`Memory`). Patterns are 16-bit NaNs, which are NaN in float64, float32, float16 and
bfloat16 alike; each use has its own payload, so a NaN that reaches an output tells where it was read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from ..errors import DeviceError
from ..namespace import namespace
from .child import CONTROL_BYTES

PAGE = mmap.PAGESIZE
RED_ZONE_BYTES = 4096
LARGEST_RED_ZONE_BYTES = 65536
LINE = 64

OUTSIDE = 0x7FFB  # red zones, and gaps between the rows of an input
UNWRITTEN = 0x7FFE  # outputs, and gaps between their rows; 0x7FFF is what GPUs make of any NaN
STALE = 0x7FFD  # workspace and scratch
PATTERNS = {"input": OUTSIDE, "output": UNWRITTEN, "workspace": STALE, "scratch": STALE}


class Memory(Protocol):
    """What a layout needs of the memory that it lies in.

    tenant    whoever laid it out last
    stagger   bytes by which buffers lie farther from a page's start, one after the other; 0 for none
    """

    tenant: object
    size: int
    stagger: int

    def reserve(self, size: int) -> None:
        """Be at least `size` bytes long. Raises DeviceError when that cannot be."""

    def bytes(self, offset: int, count: int) -> Any:
        """A writable uint8 array, NumPy's or the device's, of part of the memory."""

    def discard(self, start: int, end: int) -> None:
        """What lies in [start, end) is not needed any more."""


class Arena:
    """One growable shared memory file. `tenant` is whoever laid it out last."""

    stagger = LINE

    def __init__(self) -> None:
        self.tenant: object = None
        self.fd = apart(os.memfd_create("kernsearch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self.size = 0
        self._map: mmap.mmap | None = None
        self.reserve(CONTROL_BYTES)

    def reserve(self, size: int) -> None:
        """Make the file at least `size` bytes long. Earlier views stay valid. Raises DeviceError when it cannot be."""
        if size <= self.size:
            return
        size = -(-size // PAGE) * PAGE
        try:
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DeviceError(f"shared memory: {size / 2**20:.0f} MiB for arrays cannot be had ({why})") from error
        self.size = size

    def bytes(self, offset: int, count: int) -> np.ndarray:
        """A writable uint8 view of part of the arena."""
        assert self._map is not None
        return np.frombuffer(self._map, np.uint8, count, offset)

    def progress(self) -> int:
        """How many repeats the running request has finished; written by the child."""
        return int(self.bytes(0, 8).view(np.int64)[0])

    def reset_progress(self) -> None:
        self.bytes(0, 8).view(np.int64)[0] = 0

    def discard(self, start: int, end: int) -> None:
        """Give whole pages inside [start, end) back to the system; they read as zero afterwards."""
        start, end = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if self._map is not None and end > start:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def close(self) -> None:
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True)
class Slot:
    """A fenced buffer. `offset` is the byte of its first element in the arena; strides are in elements."""

    name: str
    role: str  # "input" | "output" | "workspace" | "scratch"
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    span: int  # bytes from the first element to the end of the last row's gap
    zone: int  # bytes of each red zone

    def pitched(self) -> bool:
        return len(self.shape) > 1 and self.strides[-2] != self.shape[-1]


@dataclass
class Layout:
    """Buffers laid one after another in [start, end) of an arena."""

    arena: Memory
    start: int
    slots: dict[str, Slot] = field(default_factory=dict)
    end: int = 0

    def __post_init__(self) -> None:
        self.start = -(-max(self.start, CONTROL_BYTES) // PAGE) * PAGE
        self.end = max(self.end, self.start)

    def add(
        self, name: str, role: str, dtype: np.dtype, shape: tuple[int, ...], *, pad: int = 0, shift: int = 0
    ) -> Slot:
        """Lay out a buffer. `pad` elements are left between rows; the base is `shift` elements off a cache line."""
        dtype = np.dtype(dtype)
        row = (shape[-1] if shape else 1) + (pad if len(shape) > 1 else 0)
        strides = tuple(prod(shape[i + 1 : -1]) * row for i in range(len(shape) - 1)) + ((1,) if shape else ())
        span = dtype.itemsize * row * prod(shape[:-1])
        zone = min(max(RED_ZONE_BYTES, 2 * row * dtype.itemsize), LARGEST_RED_ZONE_BYTES)
        stagger = self.arena.stagger * (
            len(self.slots) * 5 % 48
        )  # equal offsets within a page would alias in the first-level cache
        offset = -(-(self.end + zone) // PAGE) * PAGE + stagger + shift * dtype.itemsize
        zone += zone % 2
        slot = Slot(name, role, dtype, shape, strides, offset, span, zone)
        self.end = offset + span + zone
        self.slots[name] = slot
        return slot

    def commit(self) -> None:
        """Reserve the memory and draw all red zones and gaps. Views are valid from here on."""
        self.arena.reserve(self.end)
        for slot in self.slots.values():
            for zone in self._zones(slot):
                zone[:] = OUTSIDE
            if slot.pitched():
                self._gaps(slot)[:] = _pattern(slot)

    def view(self, name: str) -> Any:
        """The buffer as a writable array of its shape."""
        slot = self.slots[name]
        flat = self.arena.bytes(slot.offset, max(slot.span, slot.dtype.itemsize)).view(slot.dtype)
        strides = tuple(s * slot.dtype.itemsize for s in slot.strides)
        return namespace(flat).lib.stride_tricks.as_strided(flat, slot.shape, strides)

    def whole(self, name: str) -> Any:
        """The buffer with its gaps, as bytes."""
        slot = self.slots[name]
        return self.arena.bytes(slot.offset, slot.span)

    def poison(self) -> None:
        """Fill outputs, workspace and scratch with NaN."""
        for slot in self.slots.values():
            if slot.role != "input":
                fill(self.whole(slot.name), PATTERNS[slot.role])

    def damage(self) -> Iterator[str]:
        """What was written outside the buffers: in red zones and in gaps between rows, compared exactly."""
        for slot in self.slots.values():
            before, after = self._zones(slot)
            if (at := _first_other(after, OUTSIDE)) is not None:
                yield f"wrote past the end of {slot.name}, {2 * at} bytes after it"
            if (at := _first_other(before[::-1], OUTSIDE)) is not None:
                yield f"wrote before the start of {slot.name}, {2 * (at + 1)} bytes before it"
            if slot.pitched():
                gaps = self._gaps(slot)
                bad = gaps != _pattern(slot)
                if bad.any():
                    yield f"wrote between the rows of {slot.name}, after row {int(bad.argmax()) // bad.shape[1]}"

    def redraw(self) -> None:
        """Make red zones and gaps whole again after damage."""
        self.commit()

    def _zones(self, slot: Slot) -> tuple[Any, Any]:
        before = self.arena.bytes(slot.offset - slot.zone, slot.zone).view(np.uint16)
        after = self.arena.bytes(slot.offset + slot.span, slot.zone).view(np.uint16)
        return before, after

    def _gaps(self, slot: Slot) -> Any:
        """The gap after each row, as raw bits of the dtype: (rows, pad)."""
        row, columns = slot.strides[-2], slot.shape[-1]
        return self.whole(slot.name).view(_bits(slot.dtype)).reshape(-1, row)[:, columns:]


def apart(fd: int) -> int:
    """The same as a descriptor above 2: those below are a child's standard streams, even where they are free here."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def fill(raw: Any, pattern: int) -> None:
    """Fill uint8 memory, of even length and start, with a 16-bit pattern."""
    if not isinstance(raw, np.ndarray):
        raw.view(np.uint16)[:] = pattern
        return
    wide = len(raw) // 8 * 8
    if raw.ctypes.data % 8 == 0:
        raw[:wide].view(np.uint64)[:] = pattern * 0x0001000100010001
        raw = raw[wide:]
    raw.view(np.uint16)[:] = pattern


def pattern_bits(dtype: np.dtype, pattern: int) -> int:
    """The 16-bit pattern repeated to the width of a dtype."""
    return int.from_bytes(pattern.to_bytes(2, "little") * 4, "little") & ((1 << 8 * dtype.itemsize) - 1)


def _bits(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def _pattern(slot: Slot) -> int:
    return pattern_bits(slot.dtype, PATTERNS[slot.role])


def _first_other(words: Any, pattern: int) -> int | None:
    other = words != pattern
    return int(other.argmax()) if other.any() else None
