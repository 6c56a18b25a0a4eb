"""NVIDIA architectures: what an SM of each can hold, and how the compiler calls them.

The limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". What differs
from model to model (SMs, clocks, memory, second level cache) is that of a typical one: enough to compile for it and to
rank candidates, and never used where a device is present.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...device import Device
from ...errors import DeviceError

WARP = 32
LINE_BYTES = 128
REGISTERS = 65536  # of an SM, and of a block, in every architecture here
_KB = 1024
_MB = 1024 * _KB
_GB = 1024 * _MB


@dataclass(frozen=True)
class Architecture:
    """Limits of one SM, and a typical model.

    shared_kb    shared memory of an SM; a block may have `reserved_kb` less
    model        a well-known member; the figures after it are its own
    memory       (GiB, clock in MHz, bus width in bits)
    """

    major: int
    minor: int
    shared_kb: int
    reserved_kb: int
    threads: int
    blocks: int
    model: str
    sms: int
    l2_mb: int
    clock_mhz: int
    memory: tuple[int, int, int]


_KNOWN = (
    Architecture(7, 5, 64, 0, 1024, 16, "T4", 40, 4, 1590, (16, 5001, 256)),
    Architecture(8, 0, 164, 1, 2048, 32, "A100", 108, 40, 1410, (80, 1593, 5120)),
    Architecture(8, 6, 100, 1, 1536, 16, "A10", 72, 6, 1695, (24, 6251, 384)),
    Architecture(8, 7, 164, 1, 1536, 16, "Orin", 16, 4, 1300, (32, 3200, 256)),
    Architecture(8, 9, 100, 1, 1536, 24, "L40S", 142, 96, 2520, (48, 9001, 384)),
    Architecture(9, 0, 228, 1, 2048, 32, "H200", 132, 60, 1980, (140, 3201, 6144)),
    Architecture(10, 0, 228, 1, 2048, 32, "B200", 148, 126, 1965, (180, 3996, 8192)),
    Architecture(10, 3, 228, 1, 2048, 32, "B300", 148, 126, 1965, (270, 3996, 8192)),
    Architecture(12, 0, 100, 1, 1536, 24, "RTX 5090", 170, 96, 2407, (32, 14001, 512)),
)


def arch_of(major: int, minor: int) -> str:
    """The compiler's name of a compute capability, with its own instructions where it has some: "sm_90a", "sm_89"."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def known() -> tuple[str, ...]:
    """Architectures that `nominal` has facts of."""
    return tuple(arch_of(each.major, each.minor) for each in _KNOWN)


def nominal(arch: str) -> Device:
    """A device of an architecture as the table has it, to compile for. Raises DeviceError when it is not there.

    "sm_90" is taken as well as "sm_90a"; the device then lacks the instructions that need the "a".
    """
    match = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    for each in _KNOWN:
        if match and (each.major, each.minor) == (int(match[1]), int(match[2])):
            if match[3] and each.major < 9:
                break
            key = f"cuda-nominal-{arch.replace('_', '')}"
            return Device("cuda", 0, f"{arch}, as in an {each.model}", arch, key, _facts(each))
    raise DeviceError(f"architecture {arch!r}: want one of {', '.join(known())}")


def _facts(of: Architecture) -> dict[str, Any]:
    from ..cpu.device import usable_cores

    gigabytes, memory_mhz, bus_bits = of.memory
    return {
        "sms": of.sms,
        "threads": of.sms,
        "cores": usable_cores(),
        "cc_major": of.major,
        "cc_minor": of.minor,
        "shared_block_bytes": (of.shared_kb - of.reserved_kb) * _KB,
        "shared_sm_bytes": of.shared_kb * _KB,
        "shared_reserved_bytes": of.reserved_kb * _KB,
        "registers_sm": REGISTERS,
        "max_threads_block": 1024,
        "max_threads_sm": of.threads,
        "max_blocks_sm": of.blocks,
        "l2_bytes": of.l2_mb * _MB,
        "memory_bytes": gigabytes * _GB,
        "memory_clock_khz": memory_mhz * 1000,
        "memory_bus_bits": bus_bits,
        "sm_clock_khz": of.clock_mhz * 1000,
        "line_bytes": LINE_BYTES,
        "warp": WARP,
        "ecc": int(of.major != 12),
    }
