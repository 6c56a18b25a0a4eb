"""Figures of softmax on a CPU: rows of every length against PyTorch, writing into an output."""

from __future__ import annotations

from typing import Any

from breadth import beside_torch, text
from common import cli, keep, wait_until_idle

from kernsearch import registry
from kernsearch.measure.stats import geometric_mean

SHAPES = ((4096, 4096), (1823, 781), (65536, 128), (8, 262144))
FLOOR, TARGET = 1.2, 1.4


def rows(tune: bool = False, rounds: int | None = None) -> None:
    """Four shapes in float32 against torch.softmax(out=), in three fresh processes each; the gates hold the error."""
    if tune:
        for shape in SHAPES:
            cli("tune", "softmax", "--shape", text(shape), "--timeout", "60")
    load = wait_until_idle()
    told: dict[str, dict[str, Any]] = {}
    for shape in SHAPES:
        row = beside_torch(registry.problem("softmax", text(shape), "float32"), rounds)
        if row is None:
            return
        told[text(shape)] = row
        print(f"{text(shape)}: {told[text(shape)]['ratio']:.3f}x, {told[text(shape)]['variant']}", flush=True)
    mean = geometric_mean([row["ratio"] for row in told.values()])
    lowest = min(told, key=lambda name: told[name]["ratio"])
    keep(
        "softmax-float32",
        {
            "title": f"softmax float32, geometric mean over {len(SHAPES)} shapes, time of torch / our time",
            "wanted": f"at least {FLOOR}, target {TARGET}",
            "summary": f"{mean:.3f}x; lowest {told[lowest]['ratio']:.3f} at {lowest}",
            "met": mean >= FLOOR, "target_met": mean >= TARGET, "shapes": told,
        },
        load,
    )  # fmt: skip
