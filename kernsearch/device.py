"""What a device is, as plain facts; backends fill it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Device:
    """A place to run kernels.

    backend   "cpu" or "cuda"
    index     which one of its kind
    name      the maker's name of the model
    arch      what code it runs: "x86_64-avx512", "x86_64-avx512-amx", "x86_64-avx2", "aarch64-neon", "sm_90"
    key       folder name, one per model and configuration: "cpu-amd-epyc-zen5-avx512-2t"
    facts     numbers of the model: threads, vector_bytes, vector_registers, l1d_bytes, l2_bytes, l3_bytes (of one
              cache), l3_count (caches), line_bytes, memory_bytes, avx512_bf16 and amx_bf16 (1: it has them) ...
    """

    backend: str
    index: int
    name: str
    arch: str
    key: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        try:
            return facts[name]
        except KeyError:
            raise AttributeError(f"device {self.__dict__.get('key')!r} has no fact {name!r}") from None

    def __str__(self) -> str:
        return "cpu" if self.backend == "cpu" else f"{self.backend}:{self.index}"


LEAST_CAPABILITY = {"bfloat16": 80, "float8_e4m3fn": 89, "float8_e5m2": 89}  # of a GPU that computes in a dtype


def lacks(device: Device, dtype: str) -> str | None:
    """Why a device does not compute in a dtype, in one line, or None."""
    if "cc_major" not in device.facts:
        return None
    capability = 10 * device.facts["cc_major"] + device.facts.get("cc_minor", 0)
    if capability >= LEAST_CAPABILITY.get(dtype, 0):
        return None
    able = [name for name in ("bfloat16", "float16", "float32") if capability >= LEAST_CAPABILITY.get(name, 0)]
    return f"dtype {dtype!r}: {device.name or device} ({device.arch}) has none of it; want {' or '.join(able)}"
