"""Memory of the gates on a device: where operands lie, and, apart from them, workspace and scratch.

Unlike the CPU's arena nothing here keeps its contents when it grows, so each of the two grows only while nothing in it
is in use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DeviceError
from .machine import Machine

BASE = 4096  # bytes: what addresses of the start are multiples of, so that offsets tell alignments


class DeviceArena:
    """Device memory as a `Memory`. `beside` is where workspace and scratch of what lies here go."""

    stagger = 0

    def __init__(self, machine: Machine, beside: DeviceArena | None = None) -> None:
        self.tenant: object = None
        self.machine = machine
        self.beside = beside if beside is not None else self
        self.size = 0
        self._raw: Any = None
        self._base = 0

    def reserve(self, size: int) -> None:
        if size > self.size:
            self.release()
            self._raw = _allocated(self.machine, size + BASE)
            self.size = size
            self._base = -self.machine.address(self._raw) % BASE

    def bytes(self, offset: int, count: int) -> Any:
        return self._raw[self._base + offset : self._base + offset + count]

    def address(self, offset: int) -> int:
        """On the device, of a byte."""
        return self.machine.address(self._raw) + self._base + offset

    def discard(self, start: int, end: int) -> None:
        pass

    def release(self) -> None:
        """Give all of it back."""
        self._raw, self.size = None, 0
        self.machine.tidy()

    def upload(self, start: int, end: int) -> None:
        """Make the device see what was written by `bytes`."""

    def download(self, start: int, end: int) -> None:
        """Make `bytes` show what the device has written."""


class Image(DeviceArena):
    """Host memory with a twin on the device: small arrays are filled and compared on the host, which is quicker."""

    def __init__(self, machine: Machine, beside: Image | None = None) -> None:
        super().__init__(machine, beside)
        self._host = np.empty(0, np.uint8)

    def reserve(self, size: int) -> None:
        if size > self.size:
            super().reserve(2 * size)
            self._host = self.machine.pinned(self.size)

    def bytes(self, offset: int, count: int) -> Any:
        return self._host[offset : offset + count]

    def upload(self, start: int, end: int) -> None:
        twin = super().bytes(start, end - start)
        if isinstance(twin, np.ndarray):
            twin[:] = self._host[start:end]
        else:
            twin.set(self._host[start:end], self.machine.xp.cuda.get_current_stream())

    def download(self, start: int, end: int) -> None:
        twin = super().bytes(start, end - start)
        if isinstance(twin, np.ndarray):
            self._host[start:end] = twin
        else:
            stream = self.machine.xp.cuda.get_current_stream()
            twin.get(stream, out=self._host[start:end])
            stream.synchronize()


def _allocated(machine: Machine, count: int) -> Any:
    try:
        return machine.xp.empty(count, np.uint8)
    except MemoryError as error:
        free = machine.memory_bytes()[0]
        raise DeviceError(
            f"out of device memory: {count / 2**20:.0f} MiB for arrays, {free / 2**20:.0f} MiB are free"
        ) from error
