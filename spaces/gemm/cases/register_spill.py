"""A larger register tile reads less for each multiply-add, until its sums no longer fit the registers."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE = (4096, 4096, 2048)  # many waves of blocks, so that the last one counts for little
KERNEL = ("register_tile",)
TILE = {"BM": 128, "BN": 128, "BK": 8}  # all arms read the same from memory
SUMS = ((4, 8), (8, 8), (8, 16), (16, 16))  # rows and columns of a thread


def _label(rows: int, columns: int) -> str:
    return f"{rows}x{columns} sums"


def arms(device: Device) -> tuple[Arm, ...]:
    return tuple(Arm(_label(m, n), SHAPE, KERNEL, {**TILE, "TM": m, "TN": n}, dtype="float32") for m, n in SUMS)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    steps = (((8, 8), (16, 16)), ((4, 8), (8, 8)), ((8, 8), (8, 16)), ((8, 16), (16, 16)))
    return tuple(
        Comparison(f"{_label(*after)} of a thread instead of {_label(*before)}", _label(*before), _label(*after))
        for before, after in steps
    )


CASE = Case(
    name="register-spill",
    op="gemm",
    claim="a thread that computes 16x16 sums reads half as much from shared memory for each multiply-add as one of 8x8",
    mechanism="256 sums exceed the 255 registers of a thread: the rest goes to local memory and back at each step",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
