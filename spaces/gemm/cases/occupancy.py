"""More blocks of a multiprocessor hide each other's waiting, and are smaller, so that they read more."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, N = 4096, 4096
DEPTHS = (4096, 128)
KERNEL = ("async_pipeline",)
REST = {"BK": 32, "STAGES": 3, "SLICES": 1}
TILES = {  # registers bound how many fit
    "one large block": {"BM": 256, "BN": 128, "WM": 64, "WN": 64, "BLOCKS": 1},
    "two blocks": {"BM": 128, "BN": 128, "WM": 64, "WN": 64, "BLOCKS": 2},
    "three small blocks": {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "BLOCKS": 3},
}


def _label(blocks: str, depth: int) -> str:
    return f"{blocks}, K={depth}"


def arms(device: Device) -> tuple[Arm, ...]:
    return tuple(
        Arm(_label(blocks, depth), (M, N, depth), KERNEL, {**REST, **tile})
        for depth in DEPTHS
        for blocks, tile in TILES.items()
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    one, two, three = TILES
    steps = [(one, three), (one, two), (two, three)]
    return tuple(
        Comparison(f"{after} instead of {before}, K={depth}", _label(before, depth), _label(after, depth))
        for depth in DEPTHS
        for before, after in steps
    )


CASE = Case(
    name="occupancy",
    op="gemm",
    claim="the more threads a multiprocessor holds, the better it hides latency, so occupancy is to be high",
    mechanism="blocks share registers and shared memory: more of them are smaller ones, which read more for each "
    "multiply-add; a pipeline of stages hides latency within one block",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
