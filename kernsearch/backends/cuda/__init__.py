"""The CUDA backend: CUDA C++ kernels, compiled by NVRTC in processes of their own, run on NVIDIA GPUs.

Nothing here needs CuPy, and only `device` needs a driver: kernels are compiled on any machine (`compile_only`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...device import Device
from ...errors import Rejected
from ...plan import KernelPlan
from .. import Backend, Compiled, Toolchain

if TYPE_CHECKING:
    from ...binding import Binding
    from ...template import Template


class CudaBackend:
    """Implements `Backend`; each step is imported when it is used."""

    name = "cuda"
    host_memory = False

    def device(self, index: int = 0) -> Device:
        from . import device

        return device.this_device(index)

    def compile_only(self, arch: str) -> Device:
        """A device to compile for without having it: "sm_80", "sm_90a". Its facts are those of a typical model.

        Raises DeviceError for an architecture that is not in the table.
        """
        from . import architectures

        return architectures.nominal(arch)

    def driver(self, device: Device) -> str | None:
        """The driver's version, like "580.95.05"; None when there is none to ask."""
        from . import nvml

        return nvml.driver()

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


BACKEND: CudaBackend = CudaBackend()
_PROTOCOL: Backend = BACKEND
