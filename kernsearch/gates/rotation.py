"""Sets of operands that take turns in a timing, so that no call finds its own in a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import launch
from ..errors import Rejected
from ..plan import Plan
from ..workspace import ALIGNMENT
from .machine import Loaded, Machine
from .stage import Operands


class Rotation:
    """Copies of the operands of a problem, C-contiguous, inputs filled. `addresses` are by name, one dict a copy."""

    def __init__(self, machine: Machine, tuned: Operands, copies: int) -> None:
        self.machine, self.arrays = machine, tuned.arrays
        offsets, self._each = {}, 0
        for name, array in tuned.arrays.items():
            offsets[name] = self._each
            self._each += _up(array.nbytes)
        self._slab = machine.xp.empty(copies * self._each + ALIGNMENT, np.uint8)
        start = -machine.address(self._slab) % ALIGNMENT
        base = machine.address(self._slab) + start
        for copy in range(copies):
            for name in tuned.inputs:
                at = start + copy * self._each + offsets[name]
                array, source = tuned.arrays[name], tuned.views[name]
                bits = np.dtype(f"u{array.dtype.itemsize}")
                self._slab[at : at + array.nbytes].view(bits).reshape(array.shape)[...] = source.view(bits)
        self.addresses = [{n: base + c * self._each + o for n, o in offsets.items()} for c in range(copies)]

    def launches(self, plan: Plan, loaded: Loaded, copies: int) -> Callable[[int], None]:
        """A function that starts a call of a plan on one of the first `copies`; each has workspace of its own.

        Raises Rejected when the plan assumes what C-contiguous arrays do not give, or wants too much workspace.
        """
        views = {
            name: launch.ArrayView(0, array.shape, launch.contiguous(array.shape), array.dtype.itemsize)
            for name, array in self.arrays.items()
        }
        threads = self.machine.threads
        if (rule := launch.unmet(plan, launch.names(plan, views, threads))) is not None:
            raise Rejected(f"assumes {rule}, which this problem does not give", gate="execution")
        call = launch.resolve(plan, views, dict.fromkeys(plan.scalars, 1.0), threads)
        offsets, size = call.layout
        end = _up(size)
        room, base = self._workspace(copies * end)

        def places(copy: int) -> list[list[int]]:
            known = {name: base + copy * end + at for name, at in offsets.items()} | self.addresses[copy]
            return [[known[name] for name in kernel.buffers] for kernel in call.kernels]

        scalars = (1.0,) * len(plan.scalars)
        go, buffers = loaded.launcher(call), [places(copy) for copy in range(copies)]

        def start(copy: int, keep: Any = room) -> None:
            go(buffers[copy], scalars)

        return start

    def _workspace(self, size: int) -> tuple[Any, int]:
        if size == 0:
            return None, 0
        try:
            room = self.machine.xp.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise Rejected(f"workspace: {size >> 20} MiB for timing cannot be had", gate="execution") from error
        address = self.machine.address(room)
        return room, address + -address % ALIGNMENT


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
