"""The H200's figures of softmax: which comparisons they take, what is wanted of each, and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from device_figures import Row, by_ours, geometric_mean, show_figures
from device_run import table

SHAPES = (
    "4096x4096", "65536x128", "128x262144", "8192x32768", "4000x4000", "4096x1024", "16384x4096", "2048x8192",
    "4096x65536", "32768x50304",
)  # fmt: skip
ALONE = ("1823x781", "10x4000", "1x131072")  # against torch only: nothing else is known of them
ITEMSIZE = {"float32": 4, "bfloat16": 2}
LARGE_BYTES = 64e6
# GB/s that QuACK 0.6.5 and a copy beside it reached on such a device, in the order of SHAPES.
QUACK = {
    ("softmax", "float32"): ((3484, 3628), (3080, 3066), (3251, 3935), (4115, 4225), (3215, 3530), (2595, 2461),
                             (3798, 4101), (3435, 3654), (4124, 4221), (3753, 4244)),
    ("softmax", "bfloat16"): ((3075, 3178), (2527, 2450), (3262, 3603), (4067, 4153), (2963, 2710), (1814, 1893),
                              (3799, 3914), (3144, 3182), (4071, 4146), (3950, 4238)),
}  # fmt: skip


class Group(NamedTuple):
    """One comparison: problems of an op in a dtype."""

    op: str
    dtype: str
    shapes: tuple[str, ...]


GROUPS = {
    "float32": Group("softmax", "float32", (*ALONE, *SHAPES)),
    "bfloat16": Group("softmax", "bfloat16", (*ALONE, *SHAPES)),
    "backward": Group("softmax_backward", "bfloat16", SHAPES),
}


def moved(key: str) -> float:
    """Bytes that a problem reads and writes once."""
    op, shape, dtype, *_ = key.split()
    arrays = 2 if op == "softmax" else 3
    return float(arrays * ITEMSIZE[dtype] * math.prod(int(size) for size in shape.split("x")))


def rows(found: Mapping[str, Any]) -> list[Row]:
    """The issue's table, of what the groups have found."""
    forward = [row for name in ("float32", "bfloat16") for row in found.get(name, {}).get("results", ())]
    torch = [ratio for row in forward if (ratio := by_ours(row, "torch"))]
    copies = {row["problem"]: share for row in forward if (share := _of_copy(row))}
    quack = [share / (of[0] / of[1]) for key, share in copies.items() if (of := _beside(key))]
    large = [share for key, share in copies.items() if moved(key) >= LARGE_BYTES]
    backward = [r for row in found.get("backward", {}).get("results", ()) if (r := by_ours(row, "torch"))]
    return [
        Row(f"geometric mean against torch, {len(torch)} problems", geometric_mean(torch), 1.6, 2.1),
        Row("worst against torch", min(torch, default=None), 0.97, 1.1),
        Row(f"share of the copy by QuACK's share, {len(quack)} problems", geometric_mean(quack), 0.93, 1.03),
        Row(
            f"mean share of the copy, {len(large)} large problems",
            sum(large) / len(large) if large else None,
            0.9,
            0.98,
        ),
        Row("worst share of the copy of these", min(large, default=None), 0.8, 0.93),
        Row(f"backward: geometric mean against torch, {len(backward)} problems", geometric_mean(backward), 1.5, 2.0),
    ]


def show(found: Mapping[str, Any]) -> None:
    """Each problem, then each figure with its floor and target."""
    each = []
    for name, group in found.items():
        for row in group.get("results", ()):
            ours = row.get("ours", {})
            seconds = ours.get("median_s")
            ratios = [by_ours(row, "torch"), by_ours(row, "copy")]
            said = "; ".join(p.get("error", "")[:60] for p in row.get("peers", {}).values() if "error" in p)
            each.append((
                name, row["problem"].split(" layout")[0], f"{seconds * 1e6:.2f} us" if seconds else "-",
                f"{moved(row['problem']) / seconds / 1e9:.0f}" if seconds else "-",
                *(f"{ratio:.3f}" if ratio else "-" for ratio in ratios),
                f"{ours.get('variant', '')} {ours.get('hit', '')}" if ours else row.get("error", "")[:80], said,
            ))  # fmt: skip
    table(("group", "problem", "ours", "GB/s", "torch by ours", "copy by ours", "", ""), each)
    show_figures(found, rows(found))


def _beside(key: str) -> tuple[int, int] | None:
    """GB/s of QuACK and of the copy beside it."""
    op, shape, dtype, *_ = key.split()
    return QUACK[op, dtype][SHAPES.index(shape)] if shape in SHAPES else None


def _of_copy(row: Mapping[str, Any]) -> float | None:
    """Our share of a copy: of the faster of the one in this run and the one beside QuACK, as the driver's own copies of
    a gigabyte fall to two thirds of its rate for smaller ones."""
    share, beside = by_ours(row, "copy"), _beside(row["problem"])
    if share is None or beside is None:
        return share
    return min(share, moved(row["problem"]) / row["ours"]["median_s"] / (beside[1] * 1e9))
