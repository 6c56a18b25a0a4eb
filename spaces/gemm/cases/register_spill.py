"""A larger register tile reads less for each multiply-add, until its sums no longer fit the registers."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE = (4096, 4096, 2048)  # many waves of blocks, so that the last one counts for little
KERNEL = ("register_tile",)
TILE = {"BM": 128, "BN": 128, "BK": 8}  # all arms read the same from memory
SUMS = ((4, 8), (8, 8), (8, 16), (16, 16))  # rows and columns of a thread

ON_CPU = (1152, 1536, 1024)  # whole tiles of every arm
BLOCKS = {"MC": 96, "NC": 1024, "KC": 256, "KU": 1}
FEWER = (
    "255 registers leave a multiprocessor half the threads that 125 do, to hide what each waits for: the "
    "model counts resident blocks, two in both, and the reads that are saved"
)


def sums(device: Device) -> tuple[tuple[int, int], ...]:
    """Rows and columns of the arms' tiles: small, the largest that fits, and two that do not."""
    if device.backend != "cpu":
        return SUMS
    lanes = int(device.vector_bytes) // 4
    if device.vector_registers >= 32:  # 8 x 3 vectors take 28 registers, 8 x 4 take 37, 12 x 3 take 40
        return ((4, 2 * lanes), (8, 3 * lanes), (8, 4 * lanes), (12, 3 * lanes))
    return ((4, 2 * lanes), (6, 2 * lanes), (8, 2 * lanes), (6, 3 * lanes))  # 11, 15, 19 and 22


def _label(rows: int, columns: int) -> str:
    return f"{rows}x{columns} sums"


def arms(device: Device) -> tuple[Arm, ...]:
    if device.backend == "cpu":
        letters = [{**BLOCKS, "MR": m, "NR": n} for m, n in sums(device)]
        return tuple(
            Arm(_label(own["MR"], own["NR"]), ON_CPU, ("register_tiled",), own, dtype="float32") for own in letters
        )
    return tuple(Arm(_label(m, n), SHAPE, KERNEL, {**TILE, "TM": m, "TN": n}, dtype="float32") for m, n in SUMS)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    small, fits, more, most = sums(device)
    steps = [(fits, more), (small, fits), (fits, most)]
    if device.backend != "cpu":
        steps = [(fits, most), (small, fits), (fits, more), (more, most)]
    who = "a tile" if device.backend == "cpu" else "a thread"
    return tuple(
        Comparison(
            f"{_label(*after)} of {who} instead of {_label(*before)}",
            _label(*before),
            _label(*after),
            note=FEWER if who == "a thread" and (before, after) == (fits, more) else "",
            slower=True,
        )
        for before, after in steps
    )


CASE = Case(
    name="register-spill",
    op="gemm",
    claim="a larger register tile reads less for each multiply-add: 16x16 sums of a thread half as much as 8x8",
    mechanism="sums that do not fit the registers, 256 of a thread or 16 vectors of a core, go to memory at each step",
    backends=("cuda", "cpu"),
    arms=arms,
    comparisons=comparisons,
)
