"""Replaying a search: asks are answered from the recording, and their recorded time is counted."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import Rejected
from ..measure import quick
from ..search import Search, transfer
from ..search.points import Advice
from ..search.pool import Candidate
from ..search.transfer import Source
from .recording import Entry, Recording

Wish = tuple[str, dict[str, int]]  # variant, config
SEEDS = 8  # candidates that the model proposes, as many as in `tune`


@dataclass(frozen=True)
class Budget:
    """When a search ends: after so many evaluations, or once recorded and search time exceed so many seconds."""

    evaluations: int | None = None
    seconds: float | None = None

    def left(self, evaluations: int, seconds: float) -> bool:
        few = self.evaluations is None or evaluations < self.evaluations
        return few and (self.seconds is None or seconds < self.seconds)


@dataclass(frozen=True)
class Step:
    """One evaluation: the candidate, the best fraction of the optimum so far, and seconds since the start."""

    candidate: Candidate
    fraction: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """One search. `infeasible` and `duplicates` are evaluations of points that the space or the past had ruled out."""

    seed: int
    steps: tuple[Step, ...]
    infeasible: int
    duplicates: int
    search_s: float  # processor time of the searcher


def replay(
    recording: Recording,
    searcher: str,
    budget: Budget,
    seeds: Sequence[int],
    *,
    warm: bool = False,
    sources: Sequence[Source] = (),
    early_stop: float = 0.0,
) -> list[Run]:
    """A search for each seed. `warm`: the first candidates are those that our model promises most of, and the searcher
    hears what it says of others, where the recording holds it. `sources` advise in the same way. A search ends early
    when it no longer expects to save the share `early_stop` of the time."""
    advice: list[Advice] = [recording.advice] if warm and recording.predicted else []
    advice += transfer.advice(sources, recording.spaces)
    first = [(c.variant, c.config) for c in (recording.promising(SEEDS) if warm else ())]
    learned = list(transfer.seeds([source.within(recording.spaces) for source in sources]))
    first += learned[: transfer.FIRST]
    return [_one(recording, searcher, budget, seed, first, learned, advice, early_stop) for seed in seeds]


def _one(
    recording: Recording, searcher: str, budget: Budget, seed: int, first: Sequence[Wish], suggested: Sequence[Wish],
    advice: Sequence[Advice], early_stop: float,
) -> Run:  # fmt: skip
    steps: list[Step] = []
    seen: set[Candidate] = set()
    infeasible = duplicates = 0
    spent = search_s = 0.0
    best: float | None = None
    fraction = 0.0
    trials = budget.evaluations or len(recording.entries) * 10
    started = time.process_time()
    with Search(recording.name, recording.spaces, searcher=searcher, seed=seed, trials=trials, advice=advice) as search:
        for variant, config in first:
            search.enqueue(variant, config, "seed")
        for variant, config in suggested:
            search.suggest(variant, config)
        while budget.left(len(steps), spent + search_s) and not search.settled(early_stop):
            if (ask := search.ask()) is None:
                break
            duplicates += ask.candidate in seen
            infeasible += recording.spaces[ask.variant].contains(ask.config) is not None
            seen.add(ask.candidate)
            entry = recording.of(ask.candidate)
            spent += entry.compile_s + entry.verify_s
            if entry.seconds is None:
                search.tell_rejected(ask, entry.gate, entry.reason)
                spent += entry.benchmark_s
            else:
                told, share = looked(entry, best)
                spent += share * entry.benchmark_s
                best = told if best is None else min(best, told)
                search.tell_measured(ask, told)
            fraction = max(fraction, recording.fraction(ask.candidate))
            search_s = time.process_time() - started
            steps.append(Step(ask.candidate, fraction, spent + search_s))
    return Run(seed, tuple(steps), infeasible, duplicates, search_s)


class _Samples:
    """A timer that gives recorded samples in their order, again from the first when they are used up."""

    def __init__(self, samples: Sequence[float]):
        self.samples, self.taken = samples, 0

    def __call__(self, repeat: int) -> _Taken:
        found = tuple(self.samples[(self.taken + i) % len(self.samples)] for i in range(repeat))
        self.taken += repeat
        return _Taken(found)


class _Taken:
    def __init__(self, seconds: tuple[float, ...]):
        self.seconds = seconds
        self.cpu_seconds = self.wait_seconds = (0.0,) * len(seconds)


def looked(entry: Entry, incumbent_s: float | None) -> tuple[float, float]:
    """What a quick look says of a candidate, as in `tune`: few samples, fewer when it is hopeless. And the share of
    the recorded samples that it took, at most all."""
    assert entry.seconds is not None
    if len(entry.samples) < 2:
        return entry.seconds, 1.0
    timer = _Samples(entry.samples)
    try:
        told = quick(timer, incumbent_s=incumbent_s).median_s
    except Rejected:
        return entry.seconds, 1.0
    return told, min(1.0, timer.taken / len(entry.samples))


def reached(run: Run, fraction: float) -> Step | None:
    """The first step at which so much of the optimum was found, and None when none was."""
    return next((step for step in run.steps if step.fraction >= fraction), None)


def evaluations(run: Run, fraction: float) -> float:
    """How many evaluations it took; infinite when they were not enough."""
    return next((i for i, step in enumerate(run.steps, 1) if step.fraction >= fraction), math.inf)


def after(run: Run, count: int | None) -> float:
    """The best fraction of the optimum after so many evaluations; None: after all."""
    last = list(islice(run.steps, count))
    return last[-1].fraction if last else 0.0
