"""What replays come to: quantiles over seeds, and what random search would have come to, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .recording import Recording
from .run import Run, after, evaluations, reached

BASELINE = "uniform"  # random candidates without repetition, computed and not run
QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
GOALS = {"to_95": 0.95, "to_99": 0.99}


@dataclass(frozen=True)
class Result:
    """One searcher on one recording.

    fraction   quantiles over seeds of best time / time found, at the end of the budget
    to         for each goal the median number of evaluations and seconds; None when half of the runs did not get there
    """

    file: str
    searcher: str
    budget: float | None
    seeds: int
    fraction: dict[str, float]
    to: dict[str, tuple[float | None, float | None]]
    infeasible_asks: int
    duplicate_evaluations: int

    def to_json(self) -> dict[str, Any]:
        """The object that `replay --json` lists."""
        goals = {goal: {"evaluations": count, "seconds": seconds} for goal, (count, seconds) in self.to.items()}
        return {
            "file": self.file,
            "searcher": self.searcher,
            "budget": self.budget,
            "seeds": self.seeds,
            "fraction": {name: self.fraction[name] for name in ("median", "p10", "p90")},
            **goals,
            "infeasible_asks": self.infeasible_asks,
            "duplicate_evaluations": self.duplicate_evaluations,
        }


def result(recording: Recording, searcher: str, runs: Sequence[Run], count: int | None, budget: float | None) -> Result:
    """The first `count` evaluations of each run, all when it is None. `budget` is what was asked for."""
    found = [after(run, count) for run in runs]
    to = {}
    for goal, fraction in GOALS.items():
        needed = [evaluations(run, fraction) for run in runs]
        needed = [n if count is None or n <= count else math.inf for n in needed]
        steps = [reached(run, fraction) for run in runs]
        took = [step.seconds if step and n < math.inf else math.inf for step, n in zip(steps, needed, strict=True)]
        to[goal] = (_finite(median(needed)), _finite(median(took)))
    return Result(
        recording.name, searcher, budget, len(runs), {name: quantile(found, q) for name, q in QUANTILES.items()}, to,
        sum(run.infeasible for run in runs), sum(run.duplicates for run in runs),
    )  # fmt: skip


def uniform(recording: Recording, count: int, budget: float | None) -> Result:
    """Random search over the recorded points, none twice: exact quantiles of the best of `count`."""
    fractions = sorted((recording.fraction(c) for c in recording.entries), reverse=True)
    mean_s = sum(e.compile_s + e.verify_s + e.benchmark_s for e in recording.entries.values()) / len(fractions)
    to: dict[str, tuple[float | None, float | None]] = {}
    for goal, fraction in GOALS.items():
        good = sum(f >= fraction for f in fractions)
        needed = next((n for n in range(1, count + 1) if hit(len(fractions), good, n) >= 0.5), None)
        to[goal] = (needed, None if needed is None else needed * mean_s)
    told = {name: best_of(fractions, count, q) for name, q in QUANTILES.items()}
    return Result(recording.name, BASELINE, budget, 0, told, to, 0, 0)


def hit(total: int, good: int, drawn: int) -> float:
    """The probability that one of `drawn` distinct points of `total` is among the `good` ones."""
    if drawn > total - good:
        return 1.0
    missed = math.lgamma(total - good + 1) - math.lgamma(total - good - drawn + 1)
    missed -= math.lgamma(total + 1) - math.lgamma(total - drawn + 1)
    return -math.expm1(missed)


def best_of(fractions: Sequence[float], drawn: int, q: float) -> float:
    """The q-quantile of the best of `drawn` distinct points; `fractions` are sorted, the best first."""
    low, high = 0, len(fractions) - 1  # the best k + 1 points are hit with probability 1 - q at least: the least such k
    while low < high:
        middle = (low + high) // 2
        if hit(len(fractions), middle + 1, drawn) >= 1 - q - 1e-12:
            high = middle
        else:
            low = middle + 1
    return fractions[low]


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between order statistics."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
