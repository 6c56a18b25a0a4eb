"""A searcher that asks for the candidate of which a Gaussian process expects most."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest

import numpy as np
from threadpoolctl import ThreadpoolController

from .gaussian import Gaussian, expected_gain
from .points import Advice, Points
from .pool import Candidate, Pool, Proposal
from .searchers import Local, Random

EXPECTED = "expected"  # the origin of what was chosen by expectation

_FITTED = 96  # measurements at most that scales are fitted to
_KNOWN = 160  # measurements at most that predictions rest on: the fastest half, and of the others the latest
_STARTUP = 16  # random candidates at first, at most
_GROWTH = 1.15  # scales are fitted again when there are so many times more measurements
_DRAWN = 384  # random candidates that are looked at in every turn; this many are kept
_DRAWS = 48  # of which so many are drawn in one turn
_FASTEST = 6  # measured candidates whose variations are looked at
_CROSSED = 32  # mixtures of two fast ones that are looked at
_PARENTS = 12
_CLIMB = 2  # rounds of looking around what promises most
_OWN = 0.5  # share of what letters do not explain that is a candidate's own and not its timing's


@lru_cache(maxsize=1)
def _threads() -> ThreadpoolController:
    """Holds BLAS to one thread: the matrices are small, and threads that wait for work burn more than they save."""
    return ThreadpoolController()


class Expecting(Random):
    """Expected improvement over what is measured, with every `every`th proposal a step of a local climb.

    The first candidates, `startup` and one for each letter but at most 16, are random ones that lie apart. Later ones
    are chosen among random candidates, variations of the fastest in one letter, mixtures of fast ones, and variations
    of the most promising of all these. What runs is taken for as fast as expected, so that several may be asked at
    once. Refused candidates count as slow as the slowest measured. `outlook` is the share of time that the last choice
    was expected to save.

    A part of what the letters leave unexplained is a candidate's own: registers, alignment, what else a compiler makes
    of it. So among neighbours of what is fast, each promises a little, known as their letters may be.
    """

    def __init__(self, pool: Pool, advice: Sequence[Advice] = (), startup: int = 6, every: int = 4):
        super().__init__(pool)
        self.points = Points(pool.spaces, advice)
        self.startup, self.every = min(startup + self.points.letters, _STARTUP), every
        self.local = Local(pool)
        self.gaussian = Gaussian(self.points.levels, self.points.advice)
        self._turn = 0
        self._fit_at = 0
        self._drawn: dict[Candidate, None] = {}
        self._suggested: dict[Candidate, None] = {}
        self._around: dict[Candidate, list[Candidate]] = {}

    @property
    def seconds(self) -> dict[Candidate, float | None]:
        """What is measured; None for what was refused."""
        return self.local.seconds

    def propose(self) -> Proposal | None:
        timed = [s for s in self.seconds.values() if s is not None]
        if len(self.seconds) + len(self.local.running) < self.startup or len(timed) < 2 or not self.points.letters:
            apart = self._apart()
            return Proposal(apart, "random") if apart else super().propose()
        self._turn += 1
        if self.every and self._turn % self.every == 0 and (climbed := self.local.climb()) is not None:
            return climbed
        with _threads().limit(limits=1, user_api="blas"):
            wanted = self._most_promising()
        return Proposal(wanted, EXPECTED) if wanted else super().propose()

    def begun(self, candidate: Candidate, number: int | None) -> None:
        self.local.begun(candidate, number)

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        self.local.told(candidate, seconds)

    def dropped(self, candidate: Candidate) -> None:
        self.local.dropped(candidate)

    def wasted(self, proposal: Proposal) -> None:
        self.local.wasted(proposal)

    def suggested(self, candidate: Candidate) -> None:
        self._suggested[candidate] = None

    def _apart(self) -> Candidate | None:
        """Of some random candidates the one that lies farthest from all that is measured or running."""
        drawn = [c for _ in range(8) if (c := self.pool.draw()) is not None]
        known = [*self.seconds, *self.local.running]
        if not drawn or not known:
            return drawn[0] if drawn else None
        rows, others = self.points.of(drawn), self.points.of(known)
        n = self.points.letters
        far = np.abs(rows[:, None, :n] - others[None, :, :n]).sum(-1).min(1)
        return drawn[int(far.argmax())]

    def _most_promising(self) -> Candidate | None:
        spread, best = self._measured()
        found: dict[Candidate, float] = {}
        wave: Iterable[Candidate] = self._candidates()
        for _ in range(1 + _CLIMB):
            fresh = [c for c in dict.fromkeys(wave) if c not in found and c not in self.pool.known]
            if fresh:
                mean, deviation = self.gaussian.predict(self._rows(fresh))
                deviation = np.hypot(deviation, math.sqrt(_OWN * self.gaussian.noise))
                found |= zip(fresh, expected_gain(mean, deviation, best).tolist(), strict=True)
            if not found:
                return None
            wave = self._variations(max(found, key=found.__getitem__))
        first = nlargest(_FASTEST, found, key=found.__getitem__)
        for variant in dict.fromkeys(c.variant for c in first):
            self.pool.foresee(variant, [c.config for c in first if c.variant == variant])
        for wanted in _ranked(found, first):
            if self.pool.fresh(wanted):
                self.outlook = found[wanted] * spread
                return wanted
            self._drawn.pop(wanted, None)
        return None

    def _measured(self) -> tuple[float, float]:
        """Takes in what is measured, logarithms of seconds at mean 0 and spread 1: that spread, and the least."""
        logs = {c: math.log(s) for c, s in self.seconds.items() if s is not None}
        slowest = max(logs.values())
        logs = {c: logs.get(c, slowest) for c in self.seconds}
        chosen = self._chosen(logs)
        told = np.array([logs[c] for c in chosen])
        mean, spread = float(told.mean()), float(told.std()) or 1.0
        values = (told - mean) / spread
        self._centre(chosen, spread)
        rows = self._rows(chosen)
        if len(logs) >= self._fit_at:
            few = min(len(rows), _FITTED)
            self.gaussian.fit(rows[:few], values[:few])
            self._fit_at = math.ceil(len(logs) * _GROWTH)
        self.gaussian.condition(rows, values)
        if running := [c for c in self.local.running if c not in logs]:
            awaited = self._rows(running)
            mean_of, _ = self.gaussian.predict(awaited)
            self.gaussian.condition(np.concatenate([rows, awaited]), np.concatenate([values, mean_of]))
        return spread, float(values.min())

    def _chosen(self, logs: dict[Candidate, float]) -> list[Candidate]:
        if len(logs) <= _KNOWN:
            return list(logs)
        order = sorted(logs, key=lambda c: logs[c])
        fast = order[: _KNOWN // 2]
        have = set(fast)
        late = [c for c in reversed(list(logs)) if c not in have][: _KNOWN - len(fast)]
        mixed = [c for pair in zip(fast, late, strict=True) for c in pair]
        return mixed

    def _centre(self, chosen: Sequence[Candidate], spread: float) -> None:
        advised = self.points.of(chosen)[:, self.points.letters :]
        told = np.isfinite(advised)
        count = np.maximum(told.sum(0), 1)
        self._middle = np.where(told, advised, 0.0).sum(0) / count
        self._unit = spread

    def _rows(self, candidates: Sequence[Candidate]) -> np.ndarray:
        rows = self.points.of(candidates)
        advised = rows[:, self.points.letters :]
        rows[:, self.points.letters :] = np.where(np.isfinite(advised), (advised - self._middle) / self._unit, 0.0)
        return rows

    def _candidates(self) -> Iterable[Candidate]:
        if len(self._drawn) < _DRAWN:
            self._drawn.update(dict.fromkeys(self.pool.some(_DRAWS)))
        for known in [c for c in self._drawn if c in self.pool.known]:
            del self._drawn[known]
        yield from self._drawn
        yield from self._suggested
        timed = sorted((s, c) for c, s in self.seconds.items() if s is not None and c.variant in self.pool.spaces)
        for _, fast in timed[:_FASTEST]:
            yield from self._variations(fast)
        parents = deque(c for _, c in timed[:_PARENTS])
        for _ in range(_CROSSED if len(parents) > 1 else 0):
            one, other = self.pool.rng.sample(parents, 2)
            yield from self.pool.mixed(one, other)

    def _variations(self, of: Candidate) -> list[Candidate]:
        if of not in self._around:
            self._around[of] = self.pool.variations(of)
        return self._around[of]


def _ranked(found: Mapping[Candidate, float], first: Sequence[Candidate]) -> Iterator[Candidate]:
    """`first`, which promise most; then the others, which seldom matter and are sorted only then."""
    yield from first
    yield from sorted((c for c in found if c not in first), key=lambda c: -found[c])
