"""Backends: what turns a kernel plan into an object that runs on a device.

A backend is a sub-package here that defines `BACKEND`; `names()` lists them. Nothing else has to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..device import Device
from ..errors import DeviceError, Rejected
from ..plan import KernelPlan

if TYPE_CHECKING:
    from ..binding import Binding
    from ..template import Template

Evidence = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Toolchain:
    """A compiler that was tried and works.

    name      "gcc", "clang", "zig"
    version   exact, for people: "12.2.0", "0.17.1 (clang 22.1.8)"
    id        what decides whether an object may be shared and a time still holds: name, version, the flags that all
              kernels get, and the instructions it emits here
    command   what to run, before any flags
    """

    name: str
    version: str
    id: str
    command: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Toolchain:
        """One that was kept as plain data, which may hold more."""
        return cls(data["name"], data["version"], data["id"], tuple(data["command"]))


@dataclass(frozen=True)
class Compiled:
    """A loadable object. `seconds` is what compiling took when it was compiled; `cached`: this time it was not."""

    path: Path
    entry: str
    evidence: Evidence = field(default_factory=dict)
    seconds: float = 0.0
    cached: bool = False  # on a device, `path` is a cubin and the entries are those of the kernel plan's launches


class Backend(Protocol):
    """The seam between the engine and a kind of device.

    host_memory   kernels work on arrays of this process; else arrays live on the device, in a process of their own
    """

    name: str
    host_memory: bool

    def device(self, index: int = 0) -> Device:
        """The facts of a device. Raises DeviceError when there is none."""

    def driver(self, device: Device) -> str | None:
        """Version of the device's driver; None where there is none, as on the CPU."""

    def toolchain(self, device: Device) -> Toolchain:
        """The compiler in use. Raises CompilerError when there is none."""

    def kernel_plan(
        self, binding: Binding, template: Template, config: Mapping[str, int], device: Device
    ) -> KernelPlan:
        """Fill a template: the launch of one kernel with its generated header."""

    def compile(self, kernel: KernelPlan, device: Device, *, timeout_s: float = 20.0) -> Compiled:
        """Compile one kernel, or find it in the object cache. Raises Rejected (gate "compile") or CompilerError."""

    def compile_many(
        self, kernels: Sequence[KernelPlan], device: Device, *, jobs: int, timeout_s: float = 20.0
    ) -> Iterator[tuple[int, Compiled | Rejected]]:
        """Compile many at once; yields (index, outcome) as they finish. Closing the iterator kills what still runs."""


@cache
def names() -> tuple[str, ...]:
    """Names of the backends that are installed, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


@cache
def get(name: str) -> Backend:
    """The backend of that name. Raises DeviceError when it is not installed."""
    if name not in names():
        raise DeviceError(f"device {name!r}: no usable {name.upper()} backend is installed; want {_wanted()}")
    return importlib.import_module(f"{__name__}.{name}").BACKEND


def resolve(spec: str) -> tuple[Backend, Device]:
    """The backend and device that a person names: "auto", "cpu", "cuda" or "cuda:1".

    "auto" is the first accelerator that can be used, else the CPU. Raises DeviceError in one line.
    """
    if spec == "auto":
        for name in (name for name in names() if name != "cpu"):
            try:
                return get(name), get(name).device(0)
            except DeviceError:
                continue
        spec = "cpu"
    name, colon, index = spec.partition(":")
    if name not in {*names(), "cuda"} or (colon and not (index.isascii() and index.isdigit() and len(index) < 6)):
        raise DeviceError(f"device {spec!r}: want auto, cpu, cuda or cuda:N")
    backend = get(name)
    return backend, backend.device(int(index or 0))


def _wanted() -> str:
    return " or ".join(("auto", *names()))
