"""An NVIDIA GPU as the gates see it. Imported in the process that owns the device and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backends import Compiled
from ..backends.cuda import arrays, timing
from ..backends.cuda.driver import DriverError
from ..backends.cuda.launcher import Launcher
from ..backends.cuda.modules import Module
from ..device import Device
from ..errors import Rejected
from ..launch import Call
from ..plan import Plan
from .machine import Launch

# What a kernel did, by CUresult, which cudaError_t agrees with here; after those marked True the context is lost.
CAUSES = {
    1: ("launch failed: an invalid value", False),
    2: ("out of memory", False),
    98: ("launch failed: invalid device function", False),
    200: ("cannot be loaded: the object is damaged", False),
    209: ("cannot be loaded: the object holds no code for this device", False),
    218: ("cannot be loaded: the object is damaged", False),
    500: ("cannot be loaded: an entry is missing", False),
    700: ("illegal memory access", True),
    701: ("launch failed: too many resources", False),
    702: ("ran into the device's time limit", True),
    710: ("an assertion failed on the device", True),
    714: ("hardware stack error", True),
    715: ("illegal instruction", True),
    716: ("misaligned address", True),
    717: ("an instruction on an address of another space", True),
    718: ("invalid program counter", True),
    719: ("unspecified launch failure", True),
    720: ("launch failed: the blocks cannot all be resident", False),
    721: ("tensor map or bulk copy failure", True),
    912: ("launch failed: the cluster is too large", False),
    999: ("unknown failure of the device", True),
}
WARM_ELEMENTS = 256


class CudaMachine:
    """Implements `Machine`. Makes the primary context of the device; all work is on one stream of it.

    Raises DeviceError in one line when that cannot be.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.xp: Any = arrays.xp()
        self.threads = int(device.sms)
        self.xp.cuda.Device(device.index).use()
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        self.stream.use()
        self._warm()

    def _warm(self) -> None:
        """What every process does first, so that a spare one has done it."""
        xp = self.xp
        row = xp.arange(WARM_ELEMENTS, dtype=np.float64)
        assert float((row[:, None] @ row[None, :]).sum()) > 0
        self.stream.synchronize()

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def pinned(self, count: int) -> np.ndarray:
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(count), np.uint8, count)

    def load(self, plan: Plan, compiled: Sequence[Compiled]) -> CudaLoaded:
        modules: list[Module] = []
        try:
            for built in compiled:
                modules.append(Module(built.path, self.device.index))
        except (DriverError, OSError) as error:
            for module in modules:
                module.close()
            known = self.cause(error)
            raise Rejected(known[0] if known else f"cannot be loaded: {error}", gate="execution") from error
        return CudaLoaded(plan, modules, self.device, self.stream)

    def synchronize(self) -> None:
        """Until all work of this process on the device is done, on whatever stream: CuPy may have put some of what
        fills arrays on another than ours (`arrays.on`), and under load that would run beside a kernel."""
        self.xp.cuda.runtime.deviceSynchronize()

    def cause(self, error: Exception) -> tuple[str, bool] | None:
        if isinstance(error, MemoryError):
            return CAUSES[2]
        code = getattr(error, "code", getattr(error, "status", None))
        if not isinstance(code, int):
            return None
        return CAUSES.get(code, (f"error {code} of the driver ({error})", True))

    def copies(self, nbytes: int) -> int:
        return timing.copies_for(nbytes, int(self.device.l2_bytes))

    def timer(
        self, launch: Callable[[int], None], copies: int, rough: Callable[[float], None]
    ) -> Callable[[int], list[float]]:
        return timing.graph_timer(launch, copies, self.stream, rough=rough)

    def memory_bytes(self) -> tuple[int, int]:
        free, total = self.xp.cuda.runtime.memGetInfo()
        return int(free), int(total)

    def tidy(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()


class CudaLoaded:
    """Implements `Loaded`."""

    def __init__(self, plan: Plan, modules: list[Module], device: Device, stream: Any) -> None:
        self.plan, self.modules, self.device, self.stream = plan, modules, device, stream

    def launcher(self, call: Call) -> Launch:
        made = Launcher(self.plan, call, self.modules, self.device)
        stream = int(self.stream.ptr)

        def launch(buffers: Sequence[Sequence[int]], scalars: tuple[float, ...]) -> None:
            made.run_at(buffers, scalars, stream)

        return launch

    def close(self) -> None:
        for module in self.modules:
            module.close()


def machine(device: Device) -> CudaMachine:
    return CudaMachine(device)
