"""A stand-in for a GPU that takes real kernels: this machine's memory and C kernels, in the gates' device process.

So that process is tested for real without a GPU: arenas, images, deadlines, what ends it, and who is blamed. Errors
that a driver reports, and that a process survives, are for the tests on a GPU.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernsearch.backends import Compiled
from kernsearch.device import Device
from kernsearch.launch import Call
from kernsearch.plan import Plan
from kernsearch.worker.child import KsCall


class HostMachine:
    xp = np

    def __init__(self, device: Device) -> None:
        self.threads = 1

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def pinned(self, count: int) -> np.ndarray:
        return np.empty(count, np.uint8)

    def load(self, plan: Plan, compiled: Sequence[Compiled]) -> HostLoaded:
        return HostLoaded(plan, compiled)

    def synchronize(self) -> None:
        pass

    def cause(self, error: Exception) -> tuple[str, bool] | None:
        return None

    def copies(self, nbytes: int) -> int:
        return 3

    def timer(
        self, launch: Callable[[int], None], copies: int, rough: Callable[[float], None]
    ) -> Callable[[int], list[float]]:
        def sample(repeat: int) -> list[float]:
            found = []
            for _ in range(repeat):
                start = time.perf_counter()
                for copy in range(copies):
                    launch(copy)
                found.append((time.perf_counter() - start) / copies)
            return found

        return sample

    def memory_bytes(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def tidy(self) -> None:
        pass


class HostLoaded:
    def __init__(self, plan: Plan, compiled: Sequence[Compiled]) -> None:
        self.plan = plan
        self.functions = []
        for built in compiled:
            function = getattr(ctypes.CDLL(str(built.path)), built.entry)
            function.argtypes, function.restype = [ctypes.c_void_p], None
            self.functions.append(function)

    def launcher(self, call: Call) -> Callable[[Sequence[Sequence[int]], tuple[float, ...]], None]:
        def launch(buffers: Sequence[Sequence[int]], scalars: tuple[float, ...]) -> None:
            values = dict(zip(self.plan.scalars, scalars, strict=True))
            for function, kernel, places in zip(self.functions, call.kernels, buffers, strict=True):
                made = KsCall(
                    (ctypes.c_void_p * (len(places) + 1))(*places),
                    (ctypes.c_int64 * (len(kernel.sizes) + 1))(*kernel.sizes),
                    (ctypes.c_double * (len(kernel.scalars) + 1))(*(values[n] for n in kernel.kernel.scalars)),
                    1, None, None,
                )  # fmt: skip
                function(ctypes.addressof(made))

        return launch

    def close(self) -> None:
        pass
