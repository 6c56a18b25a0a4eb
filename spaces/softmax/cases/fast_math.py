"""Flags that let a compiler take floating point for real numbers: faster, and not softmax any more."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE = (1024, 4096)
FLAGS = {"cpu": ("-ffast-math",), "cuda": ("--use_fast_math",)}
PARTS = {
    "cpu": (("-fassociative-math", "-fno-signed-zeros"), ("-ffinite-math-only",)),
    "cuda": (("-ftz=true",), ("-prec-div=false",)),
}
KERNEL = {"cpu": ("row_passes",), "cuda": ("block_row",)}
UNKNOWN = "the model does not see compiler flags"


def arms(device: Device) -> tuple[Arm, ...]:
    where = device.backend
    plain = Arm("as the rules of floating point want it", SHAPE, KERNEL[where], dtype="float32")
    return (
        plain,
        *(
            replace(plain, label=" ".join(flags), like=plain.label, flags=flags, doubted=True)
            for flags in (FLAGS[where], *PARTS[where])
        ),
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    plain, fast, *parts = (arm.label for arm in arms(device))
    alone = (Comparison(f"with {part} alone, a part of it", plain, part, note=UNKNOWN) for part in parts)
    return (Comparison(f"with {fast}", plain, fast, note=UNKNOWN), *alone)


CASE = Case(
    name="fast-math",
    op="softmax",
    claim="exp is most of softmax, and the compiler's flags for fast floating point make it faster at no cost",
    mechanism="they let it regroup sums, and with that take away the rounding that exp is made of, and leave out what "
    "NaN, infinities and subnormal numbers need: the correctness gate is to refuse that, however fast it is",
    backends=("cpu", "cuda"),
    arms=arms,
    comparisons=comparisons,
)
