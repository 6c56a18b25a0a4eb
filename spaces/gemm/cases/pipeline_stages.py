"""More stages in flight hide more latency, as long as K is long enough to fill them."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, N = 2304, 1536
DEPTHS = (256, 4096)
STAGES = (2, 3, 4, 6, 8)
KERNELS = ("async_pipeline",)
TILE = {"BM": 128, "BN": 128, "BK": 32, "BLOCKS": 1}
ALONE = (
    "stages that leave one block on a multiprocessor leave nothing to run while it waits at a barrier, "
    "fills its first stages or stores its tile: the model lets one block that is ahead of memory keep the "
    "tensor cores busy"
)


def stages(device: Device) -> tuple[int, ...]:
    """Those that fit a block's shared memory."""
    each = 2 * TILE["BK"] * (TILE["BM"] + TILE["BN"])
    return tuple(n for n in STAGES if n * each <= int(device.shared_block_bytes))


def _label(number: int, depth: int) -> str:
    return f"{number} stages, K={depth}"


def arms(device: Device) -> tuple[Arm, ...]:
    first = _label(STAGES[0], DEPTHS[0])
    return tuple(
        Arm(label := _label(number, depth), (M, N, depth), KERNELS, {**TILE, "STAGES": number},
            like="" if label == first else first)
        for depth in DEPTHS
        for number in stages(device)
    )  # fmt: skip


def comparisons(device: Device) -> tuple[Comparison, ...]:
    last, short, long = stages(device)[-1], DEPTHS[0], DEPTHS[-1]
    steps = ((3, last, long), (3, last, short), (2, 3, long), (2, 3, short))
    return tuple(
        Comparison(
            f"{more} stages instead of {few}, K={depth}",
            _label(few, depth),
            _label(more, depth),
            note=ALONE if more == last else "",
            slower=True,
        )
        for few, more, depth in steps
        if few < more
    )


CASE = Case(
    name="pipeline-stages",
    op="gemm",
    claim="each further stage of the pipeline hides more of the latency of memory",
    mechanism="stages take shared memory from other blocks of a multiprocessor, and a short K ends before they fill",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
