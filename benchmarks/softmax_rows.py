"""Figures of softmax on a CPU: rows of every length against PyTorch, writing into an output."""

from __future__ import annotations

from typing import Any

from breadth import PROCESSES, text
from common import cli, keep, wait_until_idle

from kernsearch import backends, registry
from kernsearch.errors import PeerError
from kernsearch.measure.stats import geometric_mean
from kernsearch.peers import bench_problems

SHAPES = ((4096, 4096), (1823, 781), (65536, 128), (8, 262144))
FLOOR, TARGET = 1.2, 1.4


def rows(tune: bool = False, rounds: int | None = None) -> None:
    """Four shapes in float32 against torch.softmax(out=), in three fresh processes each; the gates hold the error."""
    if tune:
        for shape in SHAPES:
            cli("tune", "softmax", "--shape", text(shape), "--timeout", "60")
    load = wait_until_idle()
    where = backends.resolve("cpu")[1]
    told: dict[str, dict[str, Any]] = {}
    for shape in SHAPES:
        problem = registry.problem("softmax", text(shape), "float32")
        try:
            runs = [bench_problems([problem], ["torch"], device=where, seed=n, rounds=rounds) for n in range(PROCESSES)]
        except PeerError as error:
            print(f"softmax: {error}")
            return
        found = [run["results"][0] for run in runs]
        peers = [row["peers"]["torch"] for row in found]
        told[text(shape)] = {
            "ratio": geometric_mean([peer["ratio"] for peer in peers]),
            "runs": [
                {"ratio": peer["ratio"], "ratio_ci": peer["ratio_ci"], "ours_s": row["ours"]["median_s"],
                 "peer_s": peer["median_s"], "busy": row["busy"]}
                for row, peer in zip(found, peers, strict=True)
            ],
            "variant": found[0]["ours"].get("variant"), "config": found[0]["ours"].get("config"),
            "hit": found[0]["ours"].get("hit"), "library": peers[0]["library"],
        }  # fmt: skip
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
