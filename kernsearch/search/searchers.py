"""Where candidates come from: random, exhaustive, and a local search.

A searcher proposes; the search refuses, records, measures elsewhere, and tells it what came of the proposal. All
propose from the pool: the feasible candidates under the filters of this run that the study does not know yet.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from .pool import Candidate, Pool, Proposal


class Searcher(Protocol):
    """Proposes candidates and hears of all trials of the study, whoever made them.

    outlook   the share of the best time that the last proposal was expected to save; infinite where nothing is expected
    """

    outlook: float

    def propose(self) -> Proposal | None:
        """None when no candidate is left."""

    def begun(self, candidate: Candidate, number: int | None) -> None:
        """A candidate is being measured. `number` as in its Proposal."""

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        """A candidate was measured, or refused past the space gate (None)."""

    def dropped(self, candidate: Candidate) -> None:
        """A begun candidate came to nothing."""

    def wasted(self, proposal: Proposal) -> None:
        """A proposal was infeasible, unwanted or known."""

    def suggested(self, candidate: Candidate) -> None:
        """A candidate that somebody thinks worth a look."""


class Random:
    """Each candidate as likely as any other of its variant, none twice."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.outlook = math.inf

    def propose(self) -> Proposal | None:
        drawn = self.pool.draw()
        return Proposal(drawn, "random") if drawn else None

    def begun(self, candidate: Candidate, number: int | None) -> None: ...
    def told(self, candidate: Candidate, seconds: float | None) -> None: ...
    def dropped(self, candidate: Candidate) -> None: ...
    def wasted(self, proposal: Proposal) -> None: ...
    def suggested(self, candidate: Candidate) -> None: ...


class Exhaustive(Random):
    """Every candidate in a fixed order."""

    def propose(self) -> Proposal | None:
        listed = self.pool.next()
        return Proposal(listed, "exhaustive") if listed else None


class Local(Random):
    """First-improvement local search with restarts.

    A climb looks at the neighbours of a candidate in random order and moves to the first that is faster. Where none
    is, it is at a local optimum; some random candidates later the next climb starts, from the fastest candidate that
    no climb has been at. While the results of a climb are awaited, random ones are drawn too.
    """

    def __init__(self, pool: Pool, starts: int = 8):
        super().__init__(pool)
        self.starts = starts
        self.drawn = 0  # random candidates since the last climb
        self.seconds: dict[Candidate, float | None] = {}
        self.running: set[Candidate] = set()
        self.climbed: set[Candidate] = set()
        self.here: Candidate | None = None
        self.around: deque[Candidate] = deque()
        self.awaited: set[Candidate] = set()

    def propose(self) -> Proposal | None:
        if self.here is not None or self.drawn >= self.starts:
            climbed = self.climb()
            if climbed is not None:
                return climbed
            if self.here is None:
                self.drawn = 0
        self.drawn += 1
        return super().propose()

    def climb(self) -> Proposal | None:
        """The next step of this climb, or the first of a new one; None at a local optimum and while awaiting."""
        if self.here is None:
            self._start()
        while self.around:
            near = self.around.popleft()
            if near in self.running:
                self.awaited.add(near)
            elif near in self.seconds:
                self._consider(near)
            elif self.pool.fresh(near):
                self.awaited.add(near)
                return Proposal(near, "local")
        if not self.awaited:
            self.here = None
        return None

    def begun(self, candidate: Candidate, number: int | None) -> None:
        self.running.add(candidate)

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        self.running.discard(candidate)
        self.seconds[candidate] = seconds
        if candidate in self.awaited:
            self.awaited.discard(candidate)
            self._consider(candidate)

    def dropped(self, candidate: Candidate) -> None:
        self.running.discard(candidate)
        self.awaited.discard(candidate)

    def wasted(self, proposal: Proposal) -> None:
        self.awaited.discard(proposal.candidate)

    def _start(self) -> None:
        timed = [(s, c) for c, s in self.seconds.items() if s is not None and c not in self.climbed and self._here(c)]
        if timed:
            self._move(min(timed)[1])

    def _here(self, candidate: Candidate) -> bool:
        space = self.pool.spaces.get(candidate.variant)
        return space is not None and space.contains(candidate.config) is None

    def _consider(self, near: Candidate) -> None:
        seconds = self.seconds[near]
        here = self.seconds[self.here] if self.here else None
        if seconds is not None and here is not None and seconds < here:
            self._move(near)

    def _move(self, to: Candidate) -> None:
        self.here = to
        self.climbed.add(to)
        near = self.pool.neighbours(to)
        self.pool.rng.shuffle(near)
        self.around = deque(near)
        self.awaited = set()
