"""Figures of attention on a CPU: one batch of eight heads in float32 against PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

from breadth import beside_torch, text
from common import cli, keep, wait_until_idle

from kernsearch import registry
from kernsearch.measure.stats import geometric_mean

SHAPES = tuple((1, 8, length, length, dim) for length in (1024, 2048) for dim in (64, 128))
WANTED = {"none": (1.05, 1.2), "bottom-right": (1.2, 1.5)}  # by the mask: floor and target


def heads(tune: bool = False, rounds: int | None = None) -> None:
    """1024 and 2048 queries and keys, head dimensions of 64 and 128, whole and causal; fresh processes each time."""
    for causal in WANTED:
        for shape in SHAPES if tune else ():
            cli("tune", "attention", "--shape", text(shape), "--option", f"causal={causal}", "--timeout", "120",
                "--device", "cpu")  # fmt: skip
    for causal, (floor, target) in WANTED.items():
        load, told = wait_until_idle(), {}
        for shape in SHAPES:
            row = beside_torch(registry.problem("attention", text(shape), "float32", causal=causal), rounds)
            if row is None:
                return
            told[text(shape)] = row
            print(f"{text(shape)} causal={causal}: {row['ratio']:.3f}x, {row['variant']}", flush=True)
        lowest = min(told, key=lambda name: told[name]["ratio"])
        least = told[lowest]["ratio"]
        mean = geometric_mean([row["ratio"] for row in told.values()])
        keep(
            f"attention-float32-{'whole' if causal == 'none' else 'causal'}",
            {
                "title": f"attention float32, causal={causal}, {len(SHAPES)} shapes, time of torch / our time",
                "wanted": f"each at least {floor}, target {target}",
                "summary": f"{mean:.3f}x; lowest {least:.3f} at {lowest}",
                "met": least >= floor, "target_met": least >= target, "shapes": told,
            },
            load,
        )  # fmt: skip
