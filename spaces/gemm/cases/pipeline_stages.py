"""More stages in flight hide more latency, as long as K is long enough to fill them."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, N = 2304, 1536
DEPTHS = (256, 4096)
STAGES = (2, 3, 4, 5)
KERNELS = ("async_pipeline",)
TILE = {"BM": 128, "BN": 128, "BK": 32}


def _label(stages: int, depth: int) -> str:
    return f"{stages} stages, K={depth}"


def arms(device: Device) -> tuple[Arm, ...]:
    found = []
    for depth in DEPTHS:
        for stages in STAGES:
            like = "" if not found else found[0].label
            found.append(Arm(_label(stages, depth), (M, N, depth), KERNELS, {**TILE, "STAGES": stages}, like=like))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    last, short, long = STAGES[-1], DEPTHS[0], DEPTHS[-1]
    return (
        Comparison(f"{last} stages instead of 3, K={long}", _label(3, long), _label(last, long)),
        Comparison(f"{last} stages instead of 3, K={short}", _label(3, short), _label(last, short)),
        Comparison(f"3 stages instead of 2, K={long}", _label(2, long), _label(3, long)),
        Comparison(f"3 stages instead of 2, K={short}", _label(2, short), _label(3, short)),
    )


CASE = Case(
    name="pipeline-stages",
    op="gemm",
    claim="each further stage of the pipeline hides more of the latency of memory",
    mechanism="stages take shared memory from other blocks of a multiprocessor, a short K ends before they fill",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
