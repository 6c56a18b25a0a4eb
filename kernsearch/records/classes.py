"""Classes of devices that have shipped defaults, and which of them serve a device.

A class stands for all devices of an architecture by one nominal member. A class may extend another, whose kernels its
devices run too: it has defaults of what its own units are for, the other has all the rest. Where an architecture has no
class, or its defaults do not hold, the fallbacks of the backend serve: classes whose kernels run on anything that is no
older.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..device import Device

# A machine of a CPU class has ordinary caches.
_ORDINARY = {"threads": 4, "cores": 4, "l1d_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 16 << 20,
             "line_bytes": 64, "memory_bytes": 16 << 30}  # fmt: skip


@dataclass(frozen=True)
class DeviceClass:
    """A class: its name (that of the architecture, and of the folder of its defaults), and what decides about it.

    facts       of the nominal device; empty where the backend has its own of this architecture
    fallback    it serves other architectures too, from the compute capability `at_least` on
    shapes      how many of an op's typical shapes it has defaults at, the first ones; None for all
    extends     the architecture whose defaults serve for what this class has none of
    unit        the unit (of the steps of schedules) that it has and the class it extends has not
    """

    backend: str
    arch: str
    facts: dict[str, int | str] = field(default_factory=dict)
    fallback: bool = False
    at_least: tuple[int, int] = (0, 0)
    shapes: int | None = None
    extends: str = ""
    unit: str = ""

    def device(self) -> Device:
        """The nominal device."""
        if not self.facts:
            from .. import backends

            return backends.get(self.backend).compile_only(self.arch)  # type: ignore[attr-defined]
        return Device(self.backend, 0, "", self.arch, f"{self.backend}-{self.arch}", {**_ORDINARY, **self.facts})

    def serves(self, device: Device) -> bool:
        """May its defaults run on this device?"""
        if device.backend != self.backend or not self.fallback:
            return (device.backend, device.arch) == (self.backend, self.arch)
        return (int(device.facts.get("cc_major", 0)), int(device.facts.get("cc_minor", 0))) >= self.at_least


# In the order in which fallbacks are looked at. Of those of CUDA, sm_89 has the least of every limit from 8.0 on, and
# kernels of sm_75 need nothing newer than what every architecture has.
_AVX512: dict[str, int | str] = {"isa": "avx512", "vector_bytes": 64, "vector_registers": 32}
CLASSES = (
    DeviceClass(
        "cpu", "x86_64-avx512-amx", {**_AVX512, "avx512_bf16": 1, "amx_bf16": 1, "l1d_bytes": 48 << 10,
                                     "l2_bytes": 2 << 20}, extends="x86_64-avx512-bf16", unit="amx_bf16",
    ),
    DeviceClass(
        "cpu", "x86_64-avx512-bf16", {**_AVX512, "avx512_bf16": 1}, extends="x86_64-avx512", unit="avx512_bf16"
    ),
    DeviceClass("cpu", "x86_64-avx512", _AVX512),
    DeviceClass("cpu", "x86_64-avx2", {"isa": "avx2", "vector_bytes": 32, "vector_registers": 16}),
    DeviceClass("cpu", "aarch64-neon", {"isa": "neon", "vector_bytes": 16, "vector_registers": 32}),
    DeviceClass(
        "cpu", "any", {"isa": "scalar", "vector_bytes": 16, "vector_registers": 16}, fallback=True, shapes=1
    ),
    DeviceClass("cuda", "sm_90a"),
    DeviceClass("cuda", "sm_80"),
    DeviceClass("cuda", "sm_89", fallback=True, at_least=(8, 0)),
    DeviceClass("cuda", "sm_75", fallback=True, shapes=6),
)  # fmt: skip


def of(backend: str, arch: str) -> DeviceClass:
    """The class of that name. KeyError when there is none."""
    return {(each.backend, each.arch): each for each in CLASSES}[backend, arch]


def serving(device: Device) -> tuple[str, ...]:
    """Names of the classes whose defaults may serve a device: that of its architecture, those that it extends, then the
    fallbacks."""
    extends = {each.arch: each.extends for each in CLASSES if each.backend == device.backend}
    chain = [device.arch]
    while wider := extends.get(chain[-1]):
        chain.append(wider)
    return tuple(dict.fromkeys([*chain, *(each.arch for each in CLASSES if each.serves(device))]))
