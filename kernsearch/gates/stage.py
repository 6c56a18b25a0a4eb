"""A plan made ready to run: its arrays laid out in the arena, fenced, and its launches resolved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import launch
from ..backends import Compiled
from ..errors import DeviceError, Rejected
from ..namespace import widened
from ..plan import Plan
from ..worker import Launch, Layout, Memory
from .reference import Array

KEEP_BYTES = 1 << 20  # larger inputs are kept in a file of their own, not in this process
CHUNK_BYTES = 1 << 20


class Kept:
    """A bit-exact copy of an input, to compare with and to restore from. Large ones live in unmapped shared memory;
    those of arrays on a device stay there."""

    def __init__(self, array: Any) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._array: Any = None
        self._fd = -1
        if array.nbytes <= KEEP_BYTES or not isinstance(array, np.ndarray):
            self._array = array.copy()
        else:
            self._fd = os.memfd_create("kernsearch-input", os.MFD_CLOEXEC)
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while raw:
                raw = raw[os.write(self._fd, raw) :]

    @property
    def array(self) -> Any:
        """The copy, where it lies in memory."""
        return self._array

    def restore(self, view: Any) -> None:
        """Write the copy into an array of its shape."""
        for start, stop, rows in self._parts():
            _bits(view[start:stop])[...] = _bits(rows)

    def first_change(self, view: Any) -> tuple[int, ...] | None:
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
                return float(widened(rows[(at[0] - start, *at[1:])]))
        raise IndexError(at)

    def _parts(self) -> Iterator[tuple[int, int, Any]]:
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


def _bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


class Operands:
    """The arrays of one problem in the arena, inputs filled. They stay while plans come and go.

    `pad` elements are left between rows, and more until each row starts at a multiple of `align` bytes; the base is
    `shift` elements off.
    """

    def __init__(
        self,
        arena: Memory,
        start: int,
        arrays: Mapping[str, Array],
        inputs: Mapping[str, Kept],
        pad: int,
        shift: int,
        align: int = 1,
    ) -> None:
        self.arrays, self.inputs = arrays, inputs
        self.layout = Layout(arena, start)
        for array in arrays.values():
            row = (array.shape[-1] if array.shape else 1) + pad
            more = -row % max(1, align // array.dtype.itemsize)
            self.layout.add(array.name, array.role, array.dtype, array.shape, pad=pad + more, shift=shift)
        self.layout.commit()
        self.views = {name: self.layout.view(name) for name in arrays}
        for name in inputs:
            self.restore(name)

    def restore(self, name: str) -> None:
        self.inputs[name].restore(self.views[name])


class Stage:
    """A plan on operands, with its workspace and scratch from `start` of a memory on, ready to be run by a worker.

    Raises Rejected (gate "execution") when the plan assumes something of these arrays that they do not give, or wants
    more workspace than can be had.
    """

    def __init__(
        self,
        operands: Operands,
        memory: Memory,
        start: int,
        plan: Plan,
        compiled: Sequence[Compiled],
        scalars: Mapping[str, float],
        threads: int,
    ) -> None:
        self.operands, self.plan, self.compiled, self.threads = operands, plan, compiled, threads
        views = {}
        for name, array in operands.arrays.items():
            slot = operands.layout.slots[name]
            views[name] = launch.ArrayView(slot.offset, slot.shape, slot.strides, array.dtype.itemsize)
        known = launch.names(plan, views, threads)
        if (rule := launch.unmet(plan, known)) is not None:
            raise Rejected(f"assumes {rule}, which this problem does not give", gate="execution")
        self.known = known
        self.scalars = {**plan.scalars, **{name: x for name, x in scalars.items() if name in plan.scalars}}
        self.call = call = launch.resolve(plan, views, self.scalars, threads)
        self.workspace_bytes = call.workspace_bytes
        self.layout = Layout(memory, start)
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

    def buffers(self, index: int) -> list[tuple[str, Layout] | None]:
        """The buffers of one kernel in its order: names of their slots, and layouts that hold them. None is NULL."""
        found: list[tuple[str, Layout] | None] = []
        for name in self.call.kernels[index].buffers:
            name = _scratch(index) if name == launch.SCRATCH else name
            holder = next((held for held in (self.operands.layout, self.layout) if name in held.slots), None)
            found.append(None if holder is None else (name, holder))
        return found

    @cached_property
    def launches(self) -> list[Launch]:
        """What a worker on the CPU runs: one call of each kernel, buffers by their offsets."""
        made = []
        for index, (kernel, built) in enumerate(zip(self.call.kernels, self.compiled, strict=True)):
            places = [-1 if at is None else at[1].slots[at[0]].offset for at in self.buffers(index)]
            made.append(Launch(str(built.path), built.entry, tuple(places), kernel.sizes, kernel.scalars, self.threads))
        return made

    def poison(self) -> None:
        """Outputs, workspace and scratch to NaN."""
        self.operands.layout.poison()
        self.layout.poison()

    def spans(self) -> tuple[tuple[int, int], ...]:
        """(offset, bytes) of every buffer in the arena."""
        slots = [*self.operands.layout.slots.values(), *self.layout.slots.values()]
        return tuple((slot.offset, slot.span) for slot in slots)
