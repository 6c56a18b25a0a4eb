"""What a GPU can do at most, by its architecture and clocks: for ranking where nothing could be measured.

Multiply-adds of a multiprocessor in a clock are those of NVIDIA's architecture papers. The shares that remain of them
in long products, and what a multiprocessor gets from the second-level cache, are round figures of what people measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

READ, COPY = 0.9, 0.87  # of the memory's rate, that kernels get
LAUNCH_S = 2e-6
_CLOCK_HZ = 1.5e9  # where the driver does not tell
_MEMORY = 2e10  # bytes/s for each multiprocessor, likewise


@dataclass(frozen=True)
class _Rates:
    """Of one multiprocessor in one clock.

    fma         multiply-adds of float32 on CUDA cores
    tensor      multiply-adds of 16-bit operands on tensor cores, sums in float32
    sustained   share of the latter left when the whole device multiplies for long
    l2          bytes read from the second-level cache
    """

    fma: int
    tensor: int
    sustained: float
    l2: int


_KNOWN = {
    (7, 5): _Rates(64, 512, 0.6, 20),
    (8, 0): _Rates(64, 1024, 0.87, 32),
    (8, 6): _Rates(128, 512, 0.85, 20),
    (8, 7): _Rates(128, 1024, 0.85, 20),
    (8, 9): _Rates(128, 512, 0.85, 16),
    (9, 0): _Rates(128, 2048, 0.74, 25),
    (10, 0): _Rates(128, 4096, 0.74, 25),
    (12, 0): _Rates(128, 256, 0.9, 16),
}


def nominal(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `model.Ceilings` from a device's facts. An architecture that is not known is taken for one before."""
    capability = (int(facts.get("cc_major", 0)), int(facts.get("cc_minor", 0)))
    rates = _KNOWN[max((known for known in _KNOWN if known <= capability), default=min(_KNOWN))]
    sms = int(facts["sms"])
    cycles = sms * (1e3 * facts.get("sm_clock_khz", 0) or _CLOCK_HZ)
    flops = {"float32": 2.0 * rates.fma * cycles, "float16": 2.0 * rates.tensor * rates.sustained * cycles}
    if capability >= (8, 0):
        flops["bfloat16"] = flops["float16"]
    memory = 2e3 * facts.get("memory_clock_khz", 0) * facts.get("memory_bus_bits", 0) / 8 or _MEMORY * sms
    read = {"l2": rates.l2 * cycles, "memory": READ * memory}
    return {
        "flops": flops,
        "flops_one": {
            name: rate / sms / (1.0 if name == "float32" else rates.sustained) for name, rate in flops.items()
        },
        "read": read,
        "read_one": {name: rate / sms for name, rate in read.items()},
        "copy": COPY * memory,
        "launch_s": LAUNCH_S,
        "parallel_s": 0.0,
        "measured": False,
    }
