"""Figures that compare with other libraries, in three fresh processes each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from common import cli, keep, wait_until_idle

from kernsearch import backends, registry
from kernsearch.peers import bench_problems

PROCESSES = 3
MISSION = (2304, 1544, 4096)
FLOOR, TARGET = 1.0, 1.03
SMALL = (96, 96, 96)
SMALL_LIMIT = 1.0


def replicated(shape: Sequence[int], against: Sequence[str], **how: Any) -> list[dict[str, Any]]:
    """The same comparison in fresh processes: a whole process can be faster or slower than the next one."""
    where = backends.resolve("cpu")[1]
    problem = registry.problem("gemm", shape)
    return [bench_problems([problem], against, device=where, seed=seed, **how) for seed in range(PROCESSES)]


def ratios(runs: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Each run's ratio with its interval, their geometric mean, and the library as it was."""
    rows = [run["results"][0] for run in runs]
    each = [row["peers"][name]["ratio"] for row in rows]
    return {
        "ratio": math.exp(sum(map(math.log, each)) / len(each)),
        "runs": [{"ratio": row["peers"][name]["ratio"], "ratio_ci": row["peers"][name]["ratio_ci"],
                  "ours_s": row["ours"]["median_s"], "peer_s": row["peers"][name]["median_s"], "busy": row["busy"]}
                 for row in rows],
        "library": rows[0]["peers"][name]["library"],
        "ours": {key: rows[0]["ours"].get(key) for key in ("called", "hit", "variant")},
    }  # fmt: skip


def told(found: dict[str, Any], inverse: bool = False) -> str:
    """'1.021x (1.015, 1.030, 1.018)', with the widest interval; `inverse` gives our time over theirs."""

    def value(ratio: float) -> float:
        return 1 / ratio if inverse else ratio

    runs = ", ".join(f"{value(run['ratio']):.3f}" for run in found["runs"])
    bounds = [value(bound) for run in found["runs"] for bound in run["ratio_ci"]]
    busy = "; machine busy" if any(run["busy"] for run in found["runs"]) else ""
    return f"{value(found['ratio']):.3f}x (runs {runs}; intervals within {min(bounds):.3f} to {max(bounds):.3f}{busy})"


def mission(against: Sequence[str], tune: bool, rounds: int | None) -> None:
    """The mission shape with cold caches, against the floor and the target."""
    if tune:
        cli("tune", "gemm", "--shape", "x".join(map(str, MISSION)))
    load = wait_until_idle()
    runs = replicated(MISSION, against, rounds=rounds)
    for name in against:
        found = ratios(runs, name)
        summary = f"{told(found)} against {found['library'] or name}"
        title = f"gemm {'x'.join(map(str, MISSION))} float32, time of {name} / our time"
        wanted = f"at least {FLOOR}, target {TARGET}"
        result = {**found, "title": title, "wanted": wanted, "summary": summary, "met": found["ratio"] >= FLOOR}
        keep(f"mission-{name}", {**result, "target_met": found["ratio"] >= TARGET}, load)


def small(tune: bool, rounds: int | None) -> None:
    """kernsearch.matmul on a small product against np.matmul(out=), caches warm, called in a loop."""
    if tune:
        cli("tune", "gemm", "--shape", "x".join(map(str, SMALL)))
    load = wait_until_idle()
    found = ratios(replicated(SMALL, ["numpy"], rounds=rounds, warm=True, ours="matmul"), "numpy")
    keep(
        "small",
        {
            **found,
            "title": f"kernsearch.matmul on {'x'.join(map(str, SMALL))}, our time / time of np.matmul(out=)",
            "wanted": f"at most {SMALL_LIMIT}",
            "summary": f"{told(found, inverse=True)} against {found['library']}",
            "met": 1 / found["ratio"] <= SMALL_LIMIT,
        },
        load,
    )


def control(rounds: int | None) -> None:
    """NumPy against itself by the same method: what the comparison itself makes of nothing."""
    load = wait_until_idle()
    found = ratios(replicated(MISSION, ["numpy"], rounds=rounds, ours="numpy"), "numpy")
    keep(
        "control",
        {
            **found,
            "title": "control: NumPy / NumPy on the mission shape",
            "wanted": "within 1 % of 1",
            "summary": told(found),
            "met": abs(math.log(found["ratio"])) <= 0.01,
        },
        load,
    )
