"""What NVRTC's log says of a cubin: registers, spills, shared memory, and warnings that cost speed.

The log is that of `--ptxas-options=-v`. Keys, each the most of any kernel in the cubin:

registers      of a thread at launch        shared_bytes   static shared memory of a block
spill_stores   bytes a thread writes        stack_bytes    of a thread, spills included
spill_loads    bytes a thread reads         barriers       named barriers in use
warnings       codes such as "C7511", sorted, joined by spaces
entries        names of the kernels, in order, joined by spaces

With more than one kernel in a cubin each number is there as "registers.<entry>" too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...device import Device
from ...plan import KernelPlan
from ...sizes import evaluate
from .. import Evidence

NUMBERS = ("registers", "spill_stores", "spill_loads", "shared_bytes", "stack_bytes", "barriers")
ADVICE = {
    "C7508": "setmaxnreg is ignored: the registers at entry are not known, give the kernel __launch_bounds__",
    "C7517": "a wait for wgmma had to be put in by the compiler",
}  # codes that refuse a kernel, besides those that say that wgmma is serialized

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_CODE = re.compile(r"\((C75\d\d)\)")
_FIELDS = {
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "registers": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "shared_bytes": r"(\d+) bytes smem",
}
_PORTABLE_CLUSTER, _LARGEST_CLUSTER = 8, 16  # blocks


def read(log: str) -> dict[str, int | str]:
    """The evidence in a log; no entries when it holds none."""
    entries: dict[str, dict[str, int]] = {}
    for entry, part in _parts(log):
        found = entries.setdefault(entry, dict.fromkeys(NUMBERS, 0))
        for key, pattern in _FIELDS.items():  # a function that is not inlined has properties of its own
            found[key] = max([found[key], *map(int, re.findall(pattern, part))])
    evidence: dict[str, int | str] = {
        key: max((numbers[key] for numbers in entries.values()), default=0) for key in NUMBERS
    }
    evidence["warnings"] = " ".join(sorted(set(_CODE.findall(log))))
    evidence["entries"] = " ".join(entries)
    if len(entries) > 1:
        evidence |= {f"{key}.{entry}": numbers[key] for entry, numbers in entries.items() for key in NUMBERS}
    if slow := _slow(log):
        evidence["refusal"] = slow
    return evidence


def refusal(kernel: KernelPlan, evidence: Evidence, device: Device) -> str | None:
    """Why a compiled kernel must not run on a device, in one line; None when it may."""
    if slow := evidence.get("refusal"):
        return str(slow)
    compiled = str(evidence["entries"]).split()
    for entry in dict.fromkeys([launch.entry for launch in kernel.launches] or [kernel.entry]):
        if entry not in compiled:
            return f"the source defines no kernel {entry!r}"
    return unlaunchable(kernel, evidence, device)


def unlaunchable(kernel: KernelPlan, evidence: Evidence, device: Device) -> str | None:
    """Which limit of the device a launch is beyond; None when all fit.

    Only what holds for every call is seen: expressions of sizes count as nothing.
    """
    for launch in kernel.launches:
        threads, dynamic = constant(launch.block), constant(launch.shared) or 0
        if threads is not None and not 0 < threads <= device.max_threads_block:
            return f"{launch.entry}: {threads} threads in a block, at most {device.max_threads_block}"
        warps = -(-(threads or 1) // device.warp)
        registers = -(-_of(evidence, "registers", launch.entry) // 8) * 8 * warps * device.warp
        if registers > device.registers_sm:
            return f"{launch.entry}: {registers} registers in a block, at most {device.registers_sm}"
        shared = _of(evidence, "shared_bytes", launch.entry) + dynamic
        if shared > device.shared_block_bytes:
            return f"{launch.entry}: {shared} bytes of shared memory in a block, at most {device.shared_block_bytes}"
        blocks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        if blocks > 1 and device.cc_major < 9:
            return f"{launch.entry}: clusters need sm_90 or newer, this is {device.arch}"
        if blocks > (_LARGEST_CLUSTER if device.cc_major in (9, 10) else _PORTABLE_CLUSTER):
            return f"{launch.entry}: {blocks} blocks in a cluster are too many"
    return None


def constant(expression: str) -> int | None:
    """The value of an expression that names nothing, else None."""
    try:
        return evaluate(expression, {})
    except KeyError:
        return None


def first_error(log: str, status: int) -> str:
    """The first thing that NVRTC complains of, in one line and without folders."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    found = [line for line in lines if re.search(r"\b(error|fatal)\b", line)] or lines
    if not found:
        return f"NVRTC ended with error {status}"
    line = re.sub(r"(?<![\w.])/(?:[^/\s:'\"]+/)+", "", found[0])
    line = re.sub(r"^([^()]*)\((\d+)\): (?:catastrophic )?error( #[\w-]+)?:", r"\1:\2: error:", line)
    line = re.sub(r"^ptxas application ptx input, line \d+; error\s*:", "ptxas: error:", line)
    return line[:300]


def _parts(log: str) -> Iterator[tuple[str, str]]:
    """The entries of a log and what is said of each."""
    begins = list(_ENTRY.finditer(log))
    ends = [*(match.start() for match in begins), len(log)][1:]
    for match, end in zip(begins, ends, strict=True):
        yield match[1], log[match.end() : end]


def _slow(log: str) -> str | None:
    """The warning of wgmma or of register moves that refuses a kernel."""
    for line in log.splitlines():
        if code := _CODE.search(line):
            if "serialized" in line:
                why = re.search(r"due to (.*?)(?: in (?:the )?function|$)", line)
                return f"{code[1]}: wgmma instructions are serialized ({why[1] if why else 'the log says'})"
            if code[1] in ADVICE:
                return f"{code[1]}: {ADVICE[code[1]]}"
    return None


def _of(evidence: Evidence, key: str, entry: str) -> int:
    return int(evidence.get(f"{key}.{entry}", evidence[key]))
