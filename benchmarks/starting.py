"""Figures on starting: processor time of --help and of loading a plan, and the time to derive an op's programs."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

from common import CLI, keep, wait_until_idle

from kernsearch import registry
from kernsearch.derive import derive

RUNS = 7
HELP_LIMIT_S = 0.25
LIMITS_S = {"attention": 1.0}  # graphs of other ops are smaller
LOAD = "import kernsearch; kernsearch.load('gemm', shape=(96, 96, 96), device='cpu')"


def cpu_seconds(*command: str) -> float:
    """User and system time of a fresh process, compilers that it starts included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starting() -> None:
    """`kernsearch --help`, and importing and loading, in fresh processes."""
    load = wait_until_idle()
    times = {
        "help": [cpu_seconds("-c", CLI, "--help") for _ in range(RUNS)],
        "load": [cpu_seconds("-c", LOAD) for _ in range(RUNS)],
        "python": [cpu_seconds("-c", "pass") for _ in range(RUNS)],
    }
    median = {name: statistics.median(values) for name, values in times.items()}
    keep(
        "starting",
        {
            "title": "processor time of kernsearch --help",
            "wanted": f"under {HELP_LIMIT_S} s",
            "summary": f"{median['help']:.3f} s (loading a plan {median['load']:.3f} s, Python alone "
            f"{median['python']:.3f} s)",
            "met": median["help"] < HELP_LIMIT_S,
            "cpu_s": times,
        },
        load,
    )


def graphs() -> None:
    """Deriving every op's programs from its root, at an ordinary shape."""
    load = wait_until_idle()
    took: dict[str, list[float]] = {}
    size: dict[str, int] = {}
    for name, op in registry.ops().items():
        problem = op.problem(tuple(64 for _ in op.letters))
        for _ in range(RUNS):
            started = time.perf_counter()
            derivation = derive(problem, op, registry.templates("cpu"))
            took.setdefault(name, []).append(time.perf_counter() - started)
        size[name] = derivation.graph.number_of_nodes()
    median = {name: statistics.median(values) for name, values in took.items()}
    keep(
        "graphs",
        {
            "title": "time to derive all programs of an op",
            "wanted": "under 1 s",
            "summary": ", ".join(f"{name} {median[name]:.3f} s ({size[name]} programs)" for name in sorted(median)),
            "met": all(seconds < LIMITS_S.get(name, 1.0) for name, seconds in median.items()),
            "seconds": took,
            "programs": size,
        },
        load,
    )
