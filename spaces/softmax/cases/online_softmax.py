"""Maximum and sum in one pass save reading the row once, and cost a second exponential."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPES = ((4096, 4096), (8, 262144))  # rows that a cache holds, and few long ones
THREE: dict[str, tuple[str, ...]] = {"cpu": ("row_passes",), "cuda": ("row_states_max+row_states_sum+map",)}
KEPT: dict[str, tuple[str, ...]] = {"cpu": ("row_streamed",), "cuda": ("cluster_row", "block_row", "row_slabs+spread")}

CACHED = (
    "the model reads every pass from memory, at a rate for each multiprocessor that a block of few threads does not "
    "reach; these rows stay in the second level cache, from where a block of many threads reads them again quickly"
)


def _label(shape: tuple[int, int], way: str) -> str:
    return f"{shape[0]}x{shape[1]} {way}"


def arms(device: Device) -> tuple[Arm, ...]:
    online: dict[str, tuple[str, ...]] = {"cpu": ("row_online",), "cuda": ("row_online",)}
    ways: dict[str, dict[str, tuple[str, ...]]] = {"three passes": THREE, "online": online, "kept": KEPT}
    return tuple(
        Arm(_label(shape, way), shape, variants[device.backend], dtype="float32")
        for shape in SHAPES
        for way, variants in ways.items()
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    found = []
    for shape in SHAPES:
        three, online, kept = (_label(shape, way) for way in ("three passes", "online", "kept"))
        found.append(
            Comparison(
                f"{shape[0]}x{shape[1]}: online instead of three passes", three, online, note=CACHED, slower=True
            )
        )
        found.append(Comparison(f"{shape[0]}x{shape[1]}: keep the row instead", online, kept))
    return tuple(found)


CASE = Case(
    name="online-softmax",
    op="softmax",
    claim="online softmax finds maximum and sum in one pass, so the row is read twice instead of three times",
    mechanism="it takes exp twice for each element; where a cache holds the row, the pass that it saves cost little",
    backends=("cpu", "cuda"),
    arms=arms,
    comparisons=comparisons,
)
