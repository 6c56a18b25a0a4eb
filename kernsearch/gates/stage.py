"""A plan made ready to run: its arrays laid out in the arena, fenced, and its launches resolved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .. import launch
from ..backends import Compiled
from ..errors import DeviceError, Rejected
from ..plan import Plan
from ..worker import Arena, Launch, Layout
from .reference import Array

KEEP_BYTES = 1 << 20  # larger inputs are kept in a file of their own, not in this process
CHUNK_BYTES = 1 << 20


class Kept:
    """A bit-exact copy of an input, to compare with and to restore from. Large ones live in unmapped shared memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._array: np.ndarray | None = None
        self._fd = -1
        if array.nbytes <= KEEP_BYTES:
            self._array = array.copy()
        else:
            self._fd = os.memfd_create("kernsearch-input", os.MFD_CLOEXEC)
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while raw:
                raw = raw[os.write(self._fd, raw) :]

    def restore(self, view: np.ndarray) -> None:
        """Write the copy into an array of its shape."""
        for start, stop, rows in self._parts():
            view[start:stop] = rows

    def first_change(self, view: np.ndarray) -> tuple[int, ...] | None:
        """Where an array first differs from the copy in any bit."""
        for start, stop, rows in self._parts():
            other = _bits(view[start:stop]) != _bits(rows)
            if other.any():
                at = np.unravel_index(int(other.argmax()), other.shape)
                return (start + int(at[0]), *map(int, at[1:]))
        return None

    def element(self, at: tuple[int, ...]) -> float:
        """One element of the copy."""
        for start, stop, rows in self._parts():
            if start <= at[0] < stop:
                return float(rows[at[0] - start, *at[1:]])
        raise IndexError(at)

    def _parts(self) -> Iterator[tuple[int, int, np.ndarray]]:
        if self._array is not None:
            yield 0, self.shape[0], self._array
            return
        row = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        step = max(1, CHUNK_BYTES // row)
        buffer = np.empty((min(step, self.shape[0]), *self.shape[1:]), self.dtype)
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            part = buffer[: stop - start]
            raw = part.reshape(-1).view(np.uint8).data
            done = 0
            while done < len(raw):
                done += os.preadv(self._fd, [raw[done:]], start * row + done)
            yield start, stop, part

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _scratch(index: int) -> str:
    return f"scratch of kernel {index + 1}"


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


class Operands:
    """The arrays of one problem in the arena, inputs filled. They stay while plans come and go."""

    def __init__(
        self, arena: Arena, start: int, arrays: Mapping[str, Array], inputs: Mapping[str, Kept], pad: int, shift: int
    ) -> None:
        self.arrays, self.inputs = arrays, inputs
        self.layout = Layout(arena, start)
        for array in arrays.values():
            self.layout.add(array.name, array.role, array.dtype, array.shape, pad=pad, shift=shift)
        self.layout.commit()
        self.views = {name: self.layout.view(name) for name in arrays}
        for name in inputs:
            self.restore(name)

    def restore(self, name: str) -> None:
        self.inputs[name].restore(self.views[name])


class Stage:
    """A plan on operands, with its workspace and scratch behind them, ready to be run by a worker.

    Raises Rejected (gate "execution") when the plan assumes something of these arrays that they do not give, or wants
    more workspace than can be had.
    """

    def __init__(
        self,
        operands: Operands,
        start: int,
        plan: Plan,
        compiled: Sequence[Compiled],
        scalars: Mapping[str, float],
        threads: int,
    ) -> None:
        self.operands, self.plan = operands, plan
        views = {}
        for name, array in operands.arrays.items():
            slot = operands.layout.slots[name]
            views[name] = launch.ArrayView(slot.offset, slot.shape, slot.strides, array.dtype.itemsize)
        known = launch.names(plan, views, threads)
        if (rule := launch.unmet(plan, known)) is not None:
            raise Rejected(f"assumes {rule}, which this problem does not give", gate="execution")
        call = launch.resolve(plan, views, {k: v for k, v in scalars.items() if k in plan.scalars}, threads)
        self.workspace_bytes = call.workspace_bytes
        self.layout = Layout(operands.layout.arena, start)
        for buffer in plan.workspace:
            count = call.workspace[buffer.name] // launch.itemsize(buffer.dtype)
            self.layout.add(buffer.name, "workspace", np.dtype(f"u{launch.itemsize(buffer.dtype)}"), (count,))
        for index, kernel in enumerate(call.kernels):
            if kernel.scratch_bytes:
                self.layout.add(_scratch(index), "scratch", np.dtype("u8"), (-(-kernel.scratch_bytes // 8),))
        try:
            self.layout.commit()
        except DeviceError as error:
            raise Rejected(f"workspace: {error}", gate="execution") from error
        slots = {**operands.layout.slots, **self.layout.slots}
        self.launches = []
        for index, (kernel, built) in enumerate(zip(call.kernels, compiled, strict=True)):
            own = slots.get(_scratch(index))
            found = [own if name == launch.SCRATCH else slots[name] for name in kernel.buffers]
            offsets = tuple(slot.offset if slot else -1 for slot in found)
            self.launches.append(Launch(str(built.path), built.entry, offsets, kernel.sizes, kernel.scalars, threads))

    def poison(self) -> None:
        """Outputs, workspace and scratch to NaN."""
        self.operands.layout.poison()
        self.layout.poison()

    def spans(self) -> tuple[tuple[int, int], ...]:
        """(offset, bytes) of every buffer in the arena."""
        slots = [*self.operands.layout.slots.values(), *self.layout.slots.values()]
        return tuple((slot.offset, slot.span) for slot in slots)
