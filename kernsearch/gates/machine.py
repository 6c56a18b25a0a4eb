"""The seam between the gates and a device: what the process that owns the device must be able to do there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..backends import Compiled
from ..launch import Call
from ..plan import Plan

Launch = Callable[[Sequence[Sequence[int]], tuple[float, ...]], None]  # addresses by kernel and buffer, scalars by plan


class Loaded(Protocol):
    """The kernels of one plan, loaded on the device."""

    def launcher(self, call: Call) -> Launch:
        """A function that starts all launches of a call and returns. Raises Rejected for what cannot be launched."""

    def close(self) -> None:
        """Unload; nothing of it runs any more."""


class Machine(Protocol):
    """A device with its arrays.

    xp       the array module: NumPy, or one that follows it
    threads  the THREADS of plans
    """

    xp: Any
    threads: int

    def address(self, array: Any) -> int:
        """Of the first element of an array."""

    def pinned(self, count: int) -> np.ndarray:
        """Host bytes that are quickly copied from and to the device."""

    def load(self, plan: Plan, compiled: Sequence[Compiled]) -> Loaded:
        """Raises Rejected for an object that the device does not take."""

    def synchronize(self) -> None:
        """Wait for all that was started. Raises whatever error a kernel has left."""

    def cause(self, error: Exception) -> tuple[str, bool] | None:
        """What a kernel did, in words, when an error is a kernel's doing, and whether the process is lost with it."""

    def copies(self, nbytes: int) -> int:
        """Sets of operands, of so many bytes each, that take turns in a cold timing."""

    def timer(
        self, launch: Callable[[int], None], copies: int, rough: Callable[[float], None]
    ) -> Callable[[int], list[float]]:
        """Seconds of one launch each, for so many samples; `launch(copy)` starts one. `rough` is told a sample's."""

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) memory of the device."""

    def tidy(self) -> None:
        """Give back what the array module keeps for later."""
