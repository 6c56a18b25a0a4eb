"""A tile that is turned in shared memory: its columns lie in one bank, in all banks by padding, or by an xor."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE, BIG = (8192, 8192), {"BM": 64, "BN": 64}
PLAIN, PADDED, SWIZZLED = "rows as they are", "a word of padding a row", "words exchanged by xor"
HALF = "bfloat16: "

COUNTED = (
    "the model counts turns of shared memory and bytes, not instructions: the xor is computed for every element, and "
    "takes 40 registers where padding takes 32"
)
NOTES = {(PADDED, SWIZZLED): COUNTED}


def arms(device: Device) -> tuple[Arm, ...]:
    plain = Arm(PLAIN, SHAPE, ("transpose_tiled",), {**BIG, "LAYOUT": 0}, dtype="float32")
    single = (
        plain,
        replace(plain, label=PADDED, like=PLAIN, fix={"LAYOUT": 1}),
        replace(plain, label=SWIZZLED, like=PLAIN, fix={"LAYOUT": 2}),
    )
    half = (
        replace(arm, label=HALF + arm.label, like=HALF + arm.like if arm.like else "", dtype="bfloat16")
        for arm in single
    )
    return (*single, *half)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"{dtype}{after} instead of {before}",
            dtype + before,
            dtype + after,
            note=NOTES.get((before, after), ""),
            slower=True,
        )
        for dtype in ("", HALF)
        for before, after in ((PLAIN, PADDED), (PLAIN, SWIZZLED), (PADDED, SWIZZLED))
    )


CASE = Case(
    name="padding-or-swizzle",
    op="transpose",
    claim="columns of a tile in shared memory lie in one bank; a word of padding a row, or an xor of the column with "
    "the row, spreads them over all 32, and the xor costs no memory",
    mechanism="a warp that reads a column takes 32 turns instead of one, which shows where turns take longer than "
    "memory does; without conflicts, padding and swizzle differ in shared bytes and in instructions only",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
