"""A larger register tile reads less for each multiply-add, until its sums no longer fit the registers."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE = (2048, 2048, 2048)
KERNEL = ("register_tile",)
TILES = ((4, 4), (8, 8), (16, 16))  # rows and columns of sums of a thread


def arms(device: Device) -> tuple[Arm, ...]:
    return tuple(Arm(f"{m}x{n} sums", SHAPE, KERNEL, {"TM": m, "TN": n}, dtype="float32") for m, n in TILES)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    return (
        Comparison("16x16 sums of a thread instead of 8x8", "8x8 sums", "16x16 sums"),
        Comparison("8x8 sums of a thread instead of 4x4", "4x4 sums", "8x8 sums"),
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
