"""The CPU backend: C kernels, a compiler found on this machine, and a small thread pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...device import Device
from ...errors import DeviceError, Rejected
from ...plan import KernelPlan
from .. import Backend, Compiled, Toolchain

if TYPE_CHECKING:
    from ...binding import Binding
    from ...template import Template


class CpuBackend:
    """Implements `Backend`; each step is imported when it is used."""

    name = "cpu"
    host_memory = True

    def device(self, index: int = 0) -> Device:
        if index != 0:
            raise DeviceError(f"device 'cpu:{index}': want cpu, the only one of its kind")
        from . import device

        return device.this_device()

    def driver(self, device: Device) -> str | None:
        return None

    def toolchain(self, device: Device) -> Toolchain:
        from . import toolchain

        return toolchain.find(device)

    def kernel_plan(
        self, binding: Binding, template: Template, config: Mapping[str, int], device: Device
    ) -> KernelPlan:
        from . import emit

        return emit.kernel_plan(binding, template, dict(config), device)

    def compile(self, kernel: KernelPlan, device: Device, *, timeout_s: float = 20.0) -> Compiled:
        from . import compiler

        return compiler.compile_kernel(kernel, device, timeout_s=timeout_s)

    def compile_many(
        self, kernels: Sequence[KernelPlan], device: Device, *, jobs: int, timeout_s: float = 20.0
    ) -> Iterator[tuple[int, Compiled | Rejected]]:
        from . import compiler

        return compiler.compile_many(kernels, device, jobs=jobs, timeout_s=timeout_s)


BACKEND: Backend = CpuBackend()
