"""What a trial shows of its candidate: resources by the compiler's word, and waves by the launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from .. import launch
from ..device import Device
from ..plan import Plan
from ..problem import Problem
from ..sizes import evaluate
from .blocks import occupancy

_RENAMED = {"spill_stores": "spills", "shared_bytes": "smem"}  # by the compiler's names
REGISTERS = 32  # of a thread, where the compiler does not say
_OF_AN_ENTRY = "."  # in names of evidence that is of one entry of several


def seen(plan: Plan, evidence: Sequence[Mapping[str, Any]], problem: Problem, device: Device) -> dict[str, Any]:
    """Attributes of a compiled candidate, `evidence` of each kernel: the largest of all kernels.

    registers of a thread, spills in bytes a thread, smem in bytes a block with what a launch asks for, waves of the
    largest launch; on the CPU what its compiler tells instead.
    """
    found: dict[str, Any] = {}
    for part in evidence:
        for key, value in part.items():
            if _OF_AN_ENTRY in key or key == "entries":
                continue
            name = _RENAMED.get(key, key)
            known = found.get(name, value)
            both = isinstance(known, int | float) and isinstance(value, int | float)
            found[name] = max(known, value) if both else value
    if (count := waves(plan, problem, device)) is not None:
        found["waves"] = count
        found["smem"] = found.get("smem", 0) + asked_bytes(plan, problem, device)
    return found


def asked_bytes(plan: Plan, problem: Problem, device: Device) -> int:
    """Shared memory that the launch which wants most asks for, beside what its kernel holds anyway."""
    sizes = _sizes(plan, problem, device)
    return max((evaluate(entry.shared, sizes) for kernel in plan.kernels for entry in kernel.launches), default=0)


def threads(plan: Plan, problem: Problem, device: Device) -> int | None:
    """Threads of the largest block that is launched. None on the CPU."""
    sizes = _sizes(plan, problem, device)
    return max((evaluate(entry.block, sizes) for kernel in plan.kernels for entry in kernel.launches), default=None)


def resident(plan: Plan, shown: Mapping[str, Any], problem: Problem, device: Device) -> int | None:
    """Blocks that a multiprocessor holds at once, by the largest launch; `shown` is what `seen` found. None on the
    CPU."""
    count = threads(plan, problem, device)
    if count is None:
        return None
    registers, shared = int(shown.get("registers", REGISTERS)), int(shown.get("smem", 0))
    return occupancy(device, registers=registers, threads=count, shared=shared)


def waves(plan: Plan, problem: Problem, device: Device) -> float | None:
    """Blocks of the largest launch by multiprocessors; tiles, not blocks, where a persistent kernel has fewer. None on
    the CPU."""
    if not any(kernel.launches for kernel in plan.kernels):
        return None
    sizes = _sizes(plan, problem, device)
    counts = []
    for kernel in plan.kernels:
        tiles = 1
        for letter, size in (("BM", "M"), ("BN", "N")):
            if letter in kernel.defines and size in sizes:
                tiles *= -(-sizes[size] // kernel.defines[letter])
        tiles *= kernel.defines.get("SPLIT", 1)
        for entry in kernel.launches:
            counts.append(max(prod(evaluate(part, sizes) for part in entry.grid), tiles))
    return max(counts) / int(device.facts.get("sms", 1))


def _sizes(plan: Plan, problem: Problem, device: Device) -> dict[str, int]:
    _, names = launch.call_at(plan, problem.shape, int(device.threads))
    return {**names, "ITEMSIZE": launch.itemsize(problem.dtype)}
