"""Figures of attention on a CPU: one batch of eight heads in float32 against PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

from breadth import PROCESSES, text
from common import cli, keep, wait_until_idle

from kernsearch import backends, registry
from kernsearch.errors import PeerError
from kernsearch.measure.stats import geometric_mean
from kernsearch.peers import bench_problems

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
            row = _one(shape, causal, rounds)
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


def _one(shape: tuple[int, ...], causal: str, rounds: int | None) -> dict[str, Any] | None:
    """Ratios of one problem; None where the library is missing."""
    where = backends.resolve("cpu")[1]
    problem = registry.problem("attention", text(shape), "float32", causal=causal)
    try:
        runs = [bench_problems([problem], ["torch"], device=where, seed=n, rounds=rounds) for n in range(PROCESSES)]
    except PeerError as error:
        print(f"attention: {error}")
        return None
    found = [run["results"][0] for run in runs]
    peers = [row["peers"]["torch"] for row in found]
    return {
        "ratio": geometric_mean([peer["ratio"] for peer in peers]),
        "runs": [
            {"ratio": peer["ratio"], "ratio_ci": peer["ratio_ci"], "ours_s": row["ours"]["median_s"],
             "peer_s": peer["median_s"], "busy": row["busy"]}
            for row, peer in zip(found, peers, strict=True)
        ],
        "variant": found[0]["ours"].get("variant"), "config": found[0]["ours"].get("config"),
        "hit": found[0]["ours"].get("hit"), "library": peers[0]["library"],
    }  # fmt: skip
