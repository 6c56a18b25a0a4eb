"""Figures on tuning itself: how near a default search comes to a ten times longer one, and what memory it takes."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import CLI, arrays_bytes, cli, environment, keep, wait_until_idle

from kernsearch import backends, records, registry
from kernsearch.backends.cpu import pool
from kernsearch.gates import Bench
from kernsearch.measure import playoff
from kernsearch.worker import Worker

MISSION = (2304, 1544, 4096)
SEEDS = (1, 2, 3)
LONGER = 10
TRIALS, TIMEOUT_S = 200, 120.0  # the defaults of `tune`
WITHIN, LIMIT_S = 1.03, 150.0
PLAYOFF_S = 120.0
ARRAYS, EXTRA_BYTES = 3, 300 * 10**6
POLL_S = 0.02


def quality(shape: Sequence[int] = MISSION, seeds: Sequence[int] = SEEDS, longer: int = LONGER) -> None:
    """Default searches with several seeds, with and without warm start, against one that is ten times as long; their
    winners then meet in a play-off."""
    load = wait_until_idle()
    text = "x".join(map(str, shape))
    with tempfile.TemporaryDirectory(prefix="kernsearch-figures-") as folder:
        tuned: dict[str, dict[str, Any]] = {}
        trials, timeout = str(TRIALS * longer), str(TIMEOUT_S * longer)
        how = {"long": ["--trials", trials, "--timeout", timeout, "--seed", "0"]}
        how |= {f"seed {seed}": ["--seed", str(seed)] for seed in seeds}
        how |= {f"seed {seed} cold": ["--seed", str(seed), "--no-warm-start"] for seed in seeds}
        for name, options in how.items():
            print(f"tuning: {name}", file=sys.stderr)
            tuned[name] = cli("tune", "gemm", "--shape", text, *options, cache=Path(folder, name.replace(" ", "-")))
        found = duel(shape, {name: Path(told["record"]) for name, told in tuned.items()}, "long")
    rows = {
        name: {
            "elapsed_s": told["elapsed_s"], "median_s": told["median_s"], "variant": told["variant"],
            "config": told["config"], "counts": told["counts"], **found["ratios"].get(name, {}),
        }
        for name, told in tuned.items()
    }  # fmt: skip
    short = {name: row for name, row in rows.items() if name != "long"}
    warm = [row for name, row in short.items() if "cold" not in name]

    def middle(chosen: Iterable[dict[str, Any]]) -> float:
        values = [math.log(row["ratio"]) for row in chosen]
        return math.exp(sum(values) / len(values))

    slowest = max(row["elapsed_s"] for row in warm)
    cold = middle(row for name, row in short.items() if "cold" in name)
    each = ", ".join(f"{row['ratio']:.3f}" for row in warm)
    keep(
        "quality",
        {
            "title": f"tune {text} with defaults, time of its winner / that of a {longer} times longer search",
            "wanted": f"at most {WITHIN}, in at most {LIMIT_S:g} s",
            "summary": f"{middle(warm):.3f}x (seeds {each}; without warm start {cold:.3f}x), {slowest:.0f} s",
            "met": max(row["ratio"] for row in warm) <= WITHIN and slowest <= LIMIT_S,
            "searches": rows,
            "playoff": {key: value for key, value in found.items() if key != "ratios"},
        },
        load,
    )


def duel(shape: Sequence[int], paths: dict[str, Path], incumbent: str) -> dict[str, Any]:
    """The recorded winners interleaved in one worker: time / time of the incumbent's, with intervals."""
    backend, device = backends.resolve("cpu")
    problem = registry.problem("gemm", shape)
    plans = {name: records.read(path).plan for name, path in paths.items()}
    with Worker(device, threads=device.threads, pool=pool.for_worker(device.threads)) as worker:
        bench = Bench(registry.op("gemm"), problem, device, backend, worker, threads=device.threads)
        timers = {
            name: bench.timer(plan, [backend.compile(kernel, device) for kernel in plan.kernels])
            for name, plan in plans.items()
        }
        result = playoff(timers, incumbent=incumbent, budget_s=PLAYOFF_S)
    return {
        "ratios": {
            name: {"ratio": r.value, "ratio_ci": list(r.ci), "pairs": r.pairs} for name, r in result.ratios.items()
        },
        "control": {"ratio": result.control.value, "ratio_ci": list(result.control.ci)},
        "rounds": result.rounds,
        "busy": result.busy,
    }


def memory(shape: Sequence[int] = MISSION) -> None:
    """Peak resident memory of tune and its worker, compilers aside; memory that both map counts once."""
    load = wait_until_idle()
    text = "x".join(map(str, shape))
    with tempfile.TemporaryDirectory(prefix="kernsearch-figures-") as folder:
        command = [sys.executable, "-c", CLI, "tune", "gemm", "--shape", text, "--json"]
        process = subprocess.Popen(command, env=environment(Path(folder)), stdout=subprocess.DEVNULL)
        peak, parts = 0, {}
        while process.poll() is None:
            now = {kind: sum(map(proportional, pids)) for kind, pids in family(process.pid).items()}
            if sum(now.values()) > peak:
                peak, parts = sum(now.values()), now
            time.sleep(POLL_S)
        if process.returncode != 0:
            raise SystemExit(f"tune: exit {process.returncode}")
    limit = ARRAYS * arrays_bytes(shape) + EXTRA_BYTES
    keep(
        "memory",
        {
            "title": f"peak resident memory of tune {text} and its worker",
            "wanted": f"at most {ARRAYS} times the arrays + {EXTRA_BYTES / 1e6:g} MB = {limit / 1e6:.0f} MB",
            "summary": f"{peak / 1e6:.0f} MB (tune {parts['tune'] / 1e6:.0f}, worker {parts['worker'] / 1e6:.0f})",
            "met": peak <= limit,
            "peak_bytes": peak,
            "limit_bytes": limit,
            "parts": parts,
        },
        load,
    )


def family(pid: int) -> dict[str, list[int]]:
    """The tuning process and its worker children; compilers and their guards are not among them."""
    found: dict[str, list[int]] = {"tune": [pid], "worker": []}
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in map(int, children):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"worker/child.py" in command:
            found["worker"].append(child)
    return found


def proportional(pid: int) -> int:
    """Resident bytes of a process; what n processes map counts 1/n for each (Pss)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
