"""Copying blocks into the order in which they are read pays when they are read often enough."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SQUARE, TALL, FLAT = (1024, 1024, 1024), (4096, 64, 4096), (64, 4096, 4096)
KERNELS = {
    "A and B packed": "register_tiled",
    "B packed": "packed_b",
    "A packed": "packed_a",
    "none packed": "unpacked",
}
COPIES = (
    "with 64 columns a packed block is read too seldom to pay for its copy. Rows of A that are not packed lie 16 KB "
    "apart, and the model lets them evict each other, which caches of many ways do less: of 4064 elements a row it is "
    "right"
)
APART = "the model lets rows of A that lie 4 KB apart evict each other, which caches of many ways do less"
WAITS = (
    "B costs more than the model says and hides what the few rows of A cost; and one thread alone ties: more threads "
    "wait for each other at every block of A that is packed, longer than the model says"
)
NOTES = {
    ("none packed", "A and B packed", TALL): COPIES,
    ("B packed", "A and B packed", TALL): COPIES,
    ("none packed", "A packed", FLAT): WAITS,
    ("B packed", "A and B packed", SQUARE): APART,
}


def tile(device: Device) -> dict[str, int]:
    """A register tile that uses most of the registers: 6 rows of 2 vectors of 16, or 8 of 3."""
    lanes, many = device.vector_bytes // 4, device.vector_registers >= 32
    return {"MR": 8 if many else 6, "NR": (3 if many and lanes != 16 else 2) * lanes, "KC": 256, "MC": 96}


def _label(what: str, shape: tuple[int, ...]) -> str:
    return f"{what}, {'x'.join(map(str, shape))}"


def arms(device: Device) -> tuple[Arm, ...]:
    return tuple(
        Arm(_label(what, shape), shape, (kernel,), tile(device), dtype="float32")
        for shape in (TALL, FLAT, SQUARE)
        for what, kernel in KERNELS.items()
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    steps = (
        ("none packed", "A and B packed", TALL),
        ("B packed", "A and B packed", TALL),
        ("A packed", "A and B packed", FLAT),
        ("none packed", "A packed", FLAT),
        ("B packed", "A and B packed", SQUARE),
        ("A packed", "A and B packed", SQUARE),
    )
    return tuple(
        Comparison(
            f"{after} instead of {before}, {'x'.join(map(str, s))}",
            _label(before, s),
            _label(after, s),
            note=NOTES.get((before, after, s), ""),
            slower=True,
        )
        for before, after, s in steps
    )


CASE = Case(
    name="packing",
    op="gemm",
    claim="blocks of A and B that are copied into the order in which they are read keep the inner loop at full pace",
    mechanism="a block of A that meets 64 columns only is read a few times: copying it costs as much as it saves",
    backends=("cpu",),
    arms=arms,
    comparisons=comparisons,
)
