"""One fused kernel with a row in the registers of one block: few rows starve the device, long ones spill."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

MANY, FEW, LONG = (4000, 4000), (10, 4000), (64, 65536)
BLOCK = {"BM": 1, "WK": 256, "TK": 16}  # 4096 places for a row
SPILLING = {"BM": 1, "WK": 1024, "TK": 64}  # 65536 places: more than the 64 registers that each of 1024 threads has

SHORT = (
    "both take little more than starting a kernel does: the model adds the exchange between blocks of a cluster to "
    "that, and nothing for a block that has more of the row to read by itself"
)


def _apart(device: Device) -> tuple[str, ...]:
    """Templates that give a row to several blocks."""
    return ("cluster_row",) if int(device.cc_major) >= 9 else ("row_slabs+spread",)


def arms(device: Device) -> tuple[Arm, ...]:
    return (
        Arm("4000x4000 a block a row", MANY, ("block_row",), BLOCK, dtype="float32"),
        Arm("10x4000 a block a row", FEW, ("block_row",), BLOCK, dtype="float32"),
        Arm("10x4000 several blocks a row", FEW, _apart(device), dtype="float32"),
        Arm("64x65536 a block a row", LONG, ("block_row",), SPILLING, dtype="float32"),
        Arm("64x65536 several blocks a row", LONG, _apart(device), dtype="float32"),
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    many, few, few_apart, long, long_apart = (arm.label for arm in arms(device))
    return (
        Comparison("10 rows after 4000, a block a row: each operation", many, few, "flop"),
        Comparison("10 rows: several blocks a row instead of one", few, few_apart, note=SHORT, slower=False),
        Comparison("rows of 65536: several blocks a row instead of one", long, long_apart),
    )


CASE = Case(
    name="one-block-row",
    op="softmax",
    claim="a fused kernel that keeps each row in one block reads and writes it once, so it is the fastest there is",
    mechanism="ten rows keep ten multiprocessors busy; a row of 65536 values exceeds the registers of its block",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
