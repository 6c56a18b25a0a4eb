"""Figures over many shapes: the eight of every kind against NumPy, the defaults of untuned shapes, near records."""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import case_recordings
from common import cli, keep, wait_until_idle
from peak import share_of_peak
from search import duel

from kernsearch import backends, registry, runtime
from kernsearch.errors import PeerError
from kernsearch.measure.stats import geometric_mean
from kernsearch.model import ceilings
from kernsearch.peers import bench_problems
from kernsearch.peers.peer import DEFAULT
from kernsearch.problem import Problem
from kernsearch.records import lookup

PROCESSES = 3
MISSION = (2304, 1544, 4096)
EIGHT = (
    MISSION, (1024, 1024, 1024), (2048, 2048, 2048), (1, 4096, 4096), (64, 4096, 4096), (4096, 64, 4096),
    (127, 129, 4097), (96, 96, 96),
)  # fmt: skip
WARM = {(96, 96, 96)}  # so small that it is called in loops
FLOORS = {"float32": (1.12, 1.25), "float64": (1.0, 1.0), "bfloat16": (0.9, 0.9)}  # geometric mean: floor, target
NONE_BELOW = {"float32": 0.9}
MISSION_FLOOR, MISSION_TARGET, PEAK_SHARE = 1.0, 1.03, 0.9
# Untuned shapes: squares, panels, vectors, odd ones.
UNTUNED = (
    (48, 48, 48), (100, 100, 100), (200, 300, 400), (500, 500, 500), (768, 768, 768), (1500, 1500, 1500),
    (1, 1024, 1024), (1, 8192, 2048), (3, 4096, 4096), (16, 1024, 4096), (32, 2048, 512), (128, 4096, 1024),
    (2048, 1, 2048), (4096, 8, 1024), (4096, 32, 512), (2048, 100, 300), (33, 65, 8191), (200, 200, 10000),
    (1000, 10, 1000), (777, 1555, 333),
)  # fmt: skip
UNTUNED_FLOOR = 0.8
NEAR_FLOOR = 0.85
NEAR_TRIALS, NEAR_TIMEOUT_S = "60", "30"


def text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def beside_torch(problem: Problem, rounds: int | None) -> dict[str, Any] | None:
    """The record of a problem on the CPU against PyTorch, in fresh processes; None, with a line why, without it."""
    where = backends.resolve("cpu")[1]
    try:
        runs = [bench_problems([problem], ["torch"], device=where, seed=n, rounds=rounds) for n in range(PROCESSES)]
    except PeerError as error:
        print(f"{problem.op}: {error}")
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


def eight(dtype: str = "float32", tune: bool = False, rounds: int | None = None) -> None:
    """The eight shapes against NumPy's BLAS (bfloat16: torch, if it is installed), in three fresh processes each."""
    peer = "torch" if dtype == "bfloat16" else "numpy"
    if tune:
        for shape in EIGHT:
            cli("tune", "gemm", "--shape", text(shape), "--dtype", dtype)
    load = wait_until_idle()
    where = backends.resolve("cpu")[1]
    rows: dict[str, dict[str, Any]] = {}
    for shape in EIGHT:
        problem = registry.problem("gemm", shape, dtype)
        try:
            runs = [
                bench_problems([problem], [peer], device=where, seed=seed, rounds=rounds, warm=shape in WARM)
                for seed in range(PROCESSES)
            ]
        except PeerError as error:
            print(f"eight {dtype}: {error}")
            return
        found = [run["results"][0] for run in runs]
        ours = min(row["ours"]["median_s"] for row in found)
        rows[text(shape)] = {
            "ratio": geometric_mean([row["peers"][peer]["ratio"] for row in found]),
            "runs": [
                {"ratio": row["peers"][peer]["ratio"], "ratio_ci": row["peers"][peer]["ratio_ci"],
                 "ours_s": row["ours"]["median_s"], "peer_s": row["peers"][peer]["median_s"], "busy": row["busy"]}
                for row in found
            ],
            "variant": found[0]["ours"].get("variant"), "hit": found[0]["ours"].get("hit"),
            "gflops": 2 * math.prod(shape) / ours / 1e9,
        }  # fmt: skip
        print(f"{text(shape)}: {rows[text(shape)]['ratio']:.3f}x, {rows[text(shape)]['variant']}", flush=True)
    mean, (floor, target) = geometric_mean([row["ratio"] for row in rows.values()]), FLOORS[dtype]
    lowest = min(rows, key=lambda name: rows[name]["ratio"])
    mission = rows[text(MISSION)]
    record = lookup.store().find(registry.problem("gemm", MISSION, dtype), where).path
    peak = None if record is None or dtype == "bfloat16" else share_of_peak(MISSION, dtype, record)
    met = mean >= floor and rows[lowest]["ratio"] >= NONE_BELOW.get(dtype, 0.0)
    if dtype == "float32":
        met = met and mission["ratio"] >= MISSION_FLOOR and peak is not None and peak["share"] >= PEAK_SHARE
    busy = "; machine busy" if any(run["busy"] for row in rows.values() for run in row["runs"]) else ""
    of_peak = f", {peak['share']:.0%} of the multiply-add rate over as long" if peak else ""
    keep(
        f"eight-{dtype}",
        {
            "title": f"gemm {dtype}, geometric mean over eight shapes, time of {peer} / our time",
            "wanted": f"at least {floor}, target {target}; none below {NONE_BELOW.get(dtype, 0)}",
            "summary": f"{mean:.3f}x; lowest {rows[lowest]['ratio']:.3f} at {lowest}; mission "
            f"{mission['ratio']:.3f}x{of_peak}{busy}",
            "met": met, "target_met": mean >= target, "shapes": rows, "peak": peak,
            "short_peak_flops": ceilings.of(backends.get("cpu"), where).flops.get(dtype),
            "library": found[0]["peers"][peer]["library"],
        },
        load,
    )  # fmt: skip


def untuned(rounds: int | None = None) -> None:
    """The default candidates of twenty shapes against NumPy, without any record."""
    load = wait_until_idle()
    where = backends.resolve("cpu")[1]
    with _empty_cache():
        rows = {}
        for shape in UNTUNED:
            told = bench_problems([registry.problem("gemm", shape)], ["numpy"], device=where, rounds=rounds,
                                  ours=DEFAULT, warm=math.prod(shape) < 1 << 21)["results"][0]  # fmt: skip
            rows[text(shape)] = {**told["peers"]["numpy"], "variant": told["ours"].get("variant"), "busy": told["busy"]}
            print(f"{text(shape)}: {rows[text(shape)]['ratio']:.3f}x, {rows[text(shape)]['variant']}", flush=True)
    mean = geometric_mean([row["ratio"] for row in rows.values()])
    lowest = min(rows, key=lambda name: rows[name]["ratio"])
    keep(
        "untuned",
        {
            "title": "gemm float32 without a record, geometric mean over twenty shapes, time of numpy / our time",
            "wanted": f"at least {UNTUNED_FLOOR}",
            "summary": f"{mean:.3f}x; lowest {rows[lowest]['ratio']:.3f} at {lowest}",
            "met": mean >= UNTUNED_FLOOR,
            "shapes": rows,
        },
        load,
    )


def near(count: int = 20, seed: int = 0) -> None:
    """How the nearest record does at shapes that were not tuned, against tuning them: time tuned / time nearest.

    The eight shapes are tuned first; unseen ones are drawn around them, each size up to twice as long or short.
    """
    load = wait_until_idle()
    where = backends.resolve("cpu")[1]
    rng = random.Random(seed)
    ratios: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="kernsearch-figures-") as folder:
        seen = Path(folder, "seen")
        for shape in EIGHT:
            _tuned(shape, seen)
        for number in range(count):
            base = EIGHT[number % len(EIGHT)]
            shape = tuple(size if size == 1 else max(1, round(size * 2 ** rng.uniform(-1, 1))) for size in base)
            own = Path(_tuned(shape, Path(folder, f"own-{number}"))["record"])
            hit = lookup.Store(seen / "records", lookup.shipped_folder()).find(registry.problem("gemm", shape), where)
            if hit.path is None:
                print(f"{text(shape)}: served by a {hit.kind}: {hit.reasons[-1]}")
                continue
            found = duel(shape, {"tuned": own, "nearest": hit.path}, "tuned")
            ratios[text(shape)] = {**found["ratios"]["nearest"], "busy": found["busy"], "record": hit.path.stem}
            print(f"{text(shape)}: {1 / found['ratios']['nearest']['ratio']:.3f} by {hit.path.stem}", flush=True)
    mean = geometric_mean([1 / row["ratio"] for row in ratios.values()])
    keep(
        "near",
        {
            "title": f"nearest record at {len(ratios)} unseen shapes, time when tuned / time by the nearest record",
            "wanted": f"at least {NEAR_FLOOR} (geometric mean)",
            "summary": f"{mean:.3f}; lowest {min(1 / row['ratio'] for row in ratios.values()):.3f}",
            "met": mean >= NEAR_FLOOR,
            "shapes": ratios,
        },
        load,
    )


def cases() -> None:
    """Predictions, samples and verdicts of the cases of CPUs, as recordings that are shipped."""
    if not case_recordings.record("cpu"):
        raise SystemExit(1)


def _tuned(shape: Sequence[int], cache: Path) -> dict[str, Any]:
    limits = ("--trials", NEAR_TRIALS, "--timeout", NEAR_TIMEOUT_S)
    return cli("tune", "gemm", "--shape", text(shape), *limits, cache=cache)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """A cache without records, for this process and those it starts."""
    before = os.environ.get("KERNSEARCH_CACHE")
    with tempfile.TemporaryDirectory(prefix="kernsearch-figures-") as folder:
        os.environ["KERNSEARCH_CACHE"] = folder
        runtime.forget()
        try:
            yield
        finally:
            os.environ.pop("KERNSEARCH_CACHE") if before is None else os.environ.update(KERNSEARCH_CACHE=before)
            runtime.forget()
