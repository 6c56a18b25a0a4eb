"""What this CPU is: model, instructions, caches and the cores this process may use."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from ...device import Device
from ...settings import get as get_settings

# instruction class -> (bytes of a vector register, how many there are)
ISA = {"avx512": (64, 32), "avx2": (32, 16), "sse2": (16, 16), "neon": (16, 32), "scalar": (8, 16)}
AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"}
# what multiplies pairs of bfloat16 -> (flags it needs, what names of devices that have it end in)
PAIRS = {
    "avx512_bf16": ({"avx512_bf16"}, "-bf16"),
    "amx_bf16": ({"avx512_bf16", "amx_tile", "amx_bf16"}, "-amx"),
}
UNIT_FLAGS = {  # of the compiler, for sources that multiply pairs by the unit
    "avx512_bf16": ("-DKS_AMX=0", "-mavx512bf16"),
    "amx_bf16": ("-DKS_AMX=1", "-mamx-tile", "-mamx-bf16"),
}
_ARCH_GET_XCOMP_SUPP, _XTILEDATA = 0x1021, 1 << 18  # <asm/prctl.h>: which extended registers the system knows
_SYS_ARCH_PRCTL = 158  # of x86_64
# AMD sells many generations as "AMD EPYC": (family, first model, last model)
ZEN = {
    (23, 0x00, 0x2F): "zen1", (23, 0x30, 0xFF): "zen2",
    (25, 0x00, 0x0F): "zen3", (25, 0x20, 0x5F): "zen3", (25, 0x10, 0x1F): "zen4", (25, 0x60, 0xAF): "zen4",
    (26, 0x00, 0x4F): "zen5", (26, 0x60, 0x7F): "zen5",
}  # fmt: skip
ARM = {
    (0x41, 0xD08): "cortex-a72", (0x41, 0xD0C): "neoverse-n1", (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD49): "neoverse-n2", (0x41, 0xD4F): "neoverse-v2", (0x41, 0xD84): "neoverse-v3",
    (0x41, 0xD8E): "neoverse-n3", (0xC0, 0xAC3): "ampere-1",
}  # fmt: skip
NOISE = re.compile(
    r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor|gen|\d+(st|nd|rd|th)|with .* graphics)\b", re.IGNORECASE
)


def this_device() -> Device:
    """The CPU of this process. `threads` is KERNSEARCH_THREADS, else the usable cores."""
    cores = usable_cores()
    return _device(get_settings().threads or cores, cores)


@cache
def _device(threads: int, cores: int) -> Device:
    machine = platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    info = cpu_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    isa = isa_of(machine, flags)
    units = pairs_of(isa, flags, tiles_granted())
    kind = isa + "".join(PAIRS[unit][1] for unit in units[-1:])
    name, slug = names_of(info, machine)
    vector_bytes, vector_registers = ISA[isa]
    caches = cache_bytes()
    facts = {
        "threads": threads, "cores": cores, "isa": isa, "vector_bytes": vector_bytes,
        "vector_registers": vector_registers, **caches, "l3_count": l3_count(), "memory_bytes": memory_bytes(),
        **{unit: int(unit in units) for unit in PAIRS},
    }  # fmt: skip
    return Device("cpu", 0, name, f"{machine}-{kind}", f"cpu-{slug}-{kind}-{threads}t", facts)


def isa_of(machine: str, flags: set[str]) -> str:
    """The widest instruction class that kernels are written for. AVX-512 counts only with the parts GEMM uses."""
    if machine == "aarch64":
        return "neon"
    if machine in ("x86_64", "i686"):
        if flags >= AVX512:
            return "avx512"
        return "avx2" if flags >= {"avx2", "fma"} else "sse2"
    return "scalar"


def pairs_of(isa: str, flags: set[str], tiles: bool) -> tuple[str, ...]:
    """The units that multiply pairs of bfloat16, the widest last. `tiles`: the system grants the tile registers.

    Kernels for them use AVX-512 besides, so units of CPUs whose kernels have narrower vectors do not count.
    """
    has = (name for name, (needs, _) in PAIRS.items() if flags >= needs and (tiles or "amx_tile" not in needs))
    return tuple(has) if isa == "avx512" else ()


def tiles_granted() -> bool:
    """Does the system let processes that ask for it use the tile registers of AMX? Asks for nothing itself: a kernel
    that uses them does when it is loaded."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    known = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(known))
    return not failed and bool(known.value & _XTILEDATA)


def cpu_info(path: str = "/proc/cpuinfo") -> dict[str, str]:
    """The fields of the first processor; empty when the file cannot be read."""
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        key, colon, value = line.partition(":")
        if not colon and fields:
            break
        fields[key.strip()] = value.strip()
    return fields


def names_of(info: Mapping[str, str], machine: str) -> tuple[str, str]:
    """(the maker's name, a folder-safe slug that tells generations apart) from the fields of /proc/cpuinfo."""
    if "CPU implementer" in info:
        maker, part = int(info["CPU implementer"], 0), int(info.get("CPU part", "0"), 0)
        name = ARM.get((maker, part), f"{maker:#x}-{part:#x}")
        return f"ARM {name}", slug_of(f"arm {name}")
    name = info.get("model name") or platform.processor() or machine
    if not (info.get("cpu family", "").isdigit() and info.get("model", "").isdigit()):
        return name, slug_of(name)
    family, model = int(info["cpu family"]), int(info["model"])
    known = [zen for (fam, low, high), zen in ZEN.items() if family == fam and low <= model <= high]
    amd = info.get("vendor_id") == "AuthenticAMD"
    return name, slug_of(f"{name} {known[0] if amd and known else f'f{family}m{model}'}")


def slug_of(name: str) -> str:
    """Lower case letters and digits joined by '-'; trade marks, clock rates and empty words dropped."""
    return re.sub(r"[^a-z0-9]+", "-", NOISE.sub(" ", name).lower()).strip("-") or "unknown"


def usable_cores() -> int:
    """How many cores this process may keep busy: its affinity mask, and the quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cgroup_quota() + 1e-6)))


def cgroup_quota(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float:
    """Cores that the control groups grant, infinity when there is no limit. Both versions; ancestors count."""
    best = float("inf")
    for folder in _cgroups(Path(root), groups):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (_read(folder / f"cpu.cfs_{word}_us").strip() for word in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0 and int(quota) > 0:
            best = min(best, int(quota) / int(period))
    return best


def memory_bytes(meminfo: str = "/proc/meminfo") -> int:
    """Memory that this process may hope for: that of the machine, or the limit of its control groups."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read(meminfo), re.MULTILINE)
    total = int(found.group(1)) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _cgroups(Path("/sys/fs/cgroup"), "/proc/self/cgroup"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read(folder / name).strip()
            total = min(total, int(limit)) if limit.isdigit() and int(limit) > 0 else total
    return total


def cache_bytes(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> dict[str, int]:
    """Bytes of the data caches as the first core sees them, and of a line; common sizes where nothing is told."""
    facts = {"l1d_bytes": 32 << 10, "l2_bytes": 512 << 10, "l3_bytes": 0, "line_bytes": 64}
    for index in sorted(Path(folder).glob("index*")):
        level, kind = _read(index / "level").strip(), _read(index / "type").strip()
        size = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size").strip())
        name = {"1": "l1d_bytes", "2": "l2_bytes", "3": "l3_bytes"}.get(level)
        if name is None or size is None or kind == "Instruction":
            continue
        facts[name] = int(size.group(1)) << {"": 0, "K": 10, "M": 20}[size.group(2)]
        line = _read(index / "coherency_line_size").strip()
        facts["line_bytes"] = int(line) if line.isdigit() and int(line) > 0 else facts["line_bytes"]
    return facts


def l3_count(folder: str = "/sys/devices/system/cpu", cores: Iterable[int] | None = None) -> int:
    """How many third-level caches these cores, by default those this process may run on, have between them. 1 where
    nothing is told."""
    if cores is None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    shared = {_read(f"{folder}/cpu{core}/cache/index3/shared_cpu_list") for core in cores}
    return max(1, len(shared - {""}))


def _cgroups(root: Path, groups: str) -> list[Path]:
    """Folders of the control groups this process is in, with their ancestors."""
    folders = []
    for line in _read(groups).splitlines():
        _, controllers, path = ([*line.split(":", 2), "", "", ""])[:3]
        top = root if not controllers else root / controllers
        inside = Path(path.lstrip("/"))
        folders += [top / part for part in (inside, *inside.parents)]
    return folders


def _read(path: str | Path) -> str:
    """Text of a file of the kernel, empty when it is not there."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
