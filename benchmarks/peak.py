"""How much of a CPU's multiply-add rate a recorded kernel reaches, both timed in turns for as long.

A rate of some milliseconds, as the model's ceilings are, is that of an undisturbed moment: over as long as a large
product takes, clocks fall and, on a shared machine, neighbours come and go, for it and for bare multiply-adds alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kernsearch import backends, records, registry
from kernsearch.backends.cpu import ceilings as rates
from kernsearch.backends.cpu import pool
from kernsearch.gates import Bench
from kernsearch.measure.stats import shift_interval
from kernsearch.model.ceilings import OnWorker
from kernsearch.worker import Worker

ROUNDS = 24
ALPHA = 0.01


def share_of_peak(shape: Sequence[int], dtype: str, path: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Of the record at `path`, caches cold: the centre of its rate / the multiply-add rate, with its interval, and the
    medians of both in FLOP/s."""
    backend, device = backends.resolve("cpu")
    problem, plan = registry.problem("gemm", tuple(shape), dtype), records.read(path).plan
    flops, how = 2.0 * math.prod(shape), {"threads": device.threads, "pool": pool.for_worker(device.threads)}
    with Worker(device, **how) as one, Worker(device, **how) as other:
        bench = Bench(registry.op("gemm"), problem, device, backend, one, threads=device.threads)
        timer = bench.timer(plan, [backend.compile(kernel, device) for kernel in plan.kernels])
        peak = rates.sustained(device, OnWorker(other), dtype, timer(1).seconds[0])
        rate = {"ours": lambda: flops / timer(1).seconds[0], "peak": peak}
        taken: dict[str, list[float]] = {name: [] for name in rate}
        for number in range(rounds):
            for name in random.Random(number).sample(list(rate), 2):
                taken[name].append(rate[name]())
    logs = [math.log(ours / peak) for ours, peak in zip(taken["ours"], taken["peak"], strict=True)]
    share, low, high = map(math.exp, shift_interval(logs, ALPHA))
    return {"share": share, "share_ci": [low, high], **{f"{name}_flops": median(taken[name]) for name in taken}}
