"""Where candidates come from: random, local, exhaustive, and TPE with the feasible set behind it.

A searcher proposes; the search refuses, records, measures elsewhere, and tells it what came of the proposal. All
propose from the pool: the feasible candidates under the filters of this run that the study does not know yet.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..feasible import FeasibleSpace
from .study import Tpe

_NEAR = 24  # feasible candidates that resemble another most are looked at
_NEAR_STEPS = 1500  # values tried to find them
_DRAWS = 32  # random draws before the rest of the space is listed
_REFUSED = 200_000  # candidates refused in a row, after which a listing gives up


class Candidate(NamedTuple):
    """A variant and a config; hashable."""

    variant: str
    items: tuple[tuple[str, int], ...]

    @property
    def config(self) -> dict[str, int]:
        return dict(self.items)


def candidate(variant: str, config: Mapping[str, int]) -> Candidate:
    return Candidate(variant, tuple(sorted(config.items())))


@dataclass(frozen=True)
class Proposal:
    """`number` is TPE's number of the trial when TPE made it."""

    candidate: Candidate
    origin: str
    number: int | None = None


class Pool:
    """The candidates that are left. `refuses` gives the reason for which a feasible candidate is not wanted; `foresee`
    is told of those that it will be asked about."""

    def __init__(
        self,
        spaces: Mapping[str, FeasibleSpace],
        refuses: Callable[[Candidate], str | None],
        seed: int,
        foresee: Callable[[str, Sequence[Mapping[str, int]]], None] = lambda variant, configs: None,
    ):
        self.spaces = spaces
        self.refuses = refuses
        self.foresee = foresee
        self.rng = random.Random(seed)
        self.known: dict[Candidate, int] = {}  # to the number of its trial
        self._rest = self._list()
        self._held: list[Candidate] = []

    def fresh(self, wanted: Candidate) -> bool:
        """Not known and not refused; feasible is for the caller to see to."""
        return wanted not in self.known and self.refuses(wanted) is None

    def draw(self) -> Candidate | None:
        """A random candidate, each variant as likely as the others; None when no candidate is left."""
        names = list(self.spaces)
        for _ in range(_DRAWS):
            name = self.rng.choice(names)
            config = self.spaces[name].sample(self.rng)
            if config is not None and self.fresh(drawn := candidate(name, config)):
                return drawn
        return self.next()

    def next(self) -> Candidate | None:
        """The next candidate in a fixed order; None when no candidate is left."""
        while self._held:
            if self.fresh(held := self._held.pop()):
                return held
        return next((listed for listed in self._rest if self.fresh(listed)), None)

    def any(self) -> bool:
        """Some candidate is left."""
        found = self.draw()
        if found is not None:
            self._held.append(found)
        return found is not None

    def nearest(self, wanted: Candidate) -> Candidate | None:
        """The candidate of the same variant that resembles it most; None when those that resemble it are refused."""
        space, name = self.spaces.get(wanted.variant), wanted.variant
        if space is None:
            return None
        few = space.resembling(wanted.config, _NEAR, lambda c: candidate(name, c) not in self.known, _NEAR_STEPS)
        self.foresee(name, few)
        return next((near for c in few if self.fresh(near := candidate(name, c))), None)

    def neighbours(self, of: Candidate) -> list[Candidate]:
        return [candidate(of.variant, c) for c in self.spaces[of.variant].neighbours(of.config)]

    def _list(self) -> Iterator[Candidate]:
        refused = 0
        for name, space in self.spaces.items():
            for config in space.iterate():
                if self.fresh(listed := candidate(name, config)):
                    refused = 0
                    yield listed
                elif (refused := refused + 1) > _REFUSED:
                    return


class Searcher(Protocol):
    """Proposes candidates and hears of all trials of the study, whoever made them."""

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


class Random:
    """Each candidate as likely as any other of its variant, none twice."""

    def __init__(self, pool: Pool):
        self.pool = pool

    def propose(self) -> Proposal | None:
        drawn = self.pool.draw()
        return Proposal(drawn, "random") if drawn else None

    def begun(self, candidate: Candidate, number: int | None) -> None: ...
    def told(self, candidate: Candidate, seconds: float | None) -> None: ...
    def dropped(self, candidate: Candidate) -> None: ...
    def wasted(self, proposal: Proposal) -> None: ...


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


class Guided(Random):
    """TPE, with every third proposal a step of a local climb from the best so far.

    Replayed on a recorded space the climb lifts the unlucky runs: after 100 measurements the tenth percentile went
    from 0.87 to 0.92 of the optimum, after 220 from 0.98 to 1. The first candidates are random. After `patience`
    wasted suggestions in a row a climb, the feasible candidate nearest to the suggestion, or a random one takes over,
    and the next time patience is half as long, so that neither a rugged nor a nearly exhausted space stalls it.
    """

    def __init__(self, pool: Pool, tpe: Tpe, startup: int = 12, patience: int = 4, every: int = 3):
        super().__init__(pool)
        self.tpe = tpe
        self.startup = startup
        self.patience = self.patient = patience
        self.every = every
        self.local = Local(pool)
        self.numbers: dict[Candidate, int] = {}  # of the trials that run, as TPE counts them
        self.waste = 0
        self.turn = 0

    def propose(self) -> Proposal | None:
        if len(self.numbers) + len(self.local.seconds) < self.startup:
            return super().propose()
        patient = self.waste < self.patient
        if self.waste == 0:
            self.turn += 1
        if not patient or (self.waste == 0 and self.turn % self.every == 0):
            climbed = self.local.climb()
            if climbed is not None:
                return climbed
        number, variant, config = self.tpe.suggest()
        if patient:
            return Proposal(candidate(variant, config), "tpe", number)
        self.patient = max(1, self.patient // 2)
        self.tpe.tell(number, None)
        near = self.pool.nearest(candidate(variant, config))
        return Proposal(near, "near") if near else super().propose()

    def begun(self, candidate: Candidate, number: int | None) -> None:
        self.waste = 0
        if number is None:
            number = self.tpe.learn(candidate.variant, candidate.config)
        else:
            self.patient = self.patience
        self.numbers[candidate] = number
        self.local.begun(candidate, number)

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        if candidate not in self.numbers:
            self.begun(candidate, None)
        self.tpe.tell(self.numbers.pop(candidate), seconds)
        self.local.told(candidate, seconds)

    def dropped(self, candidate: Candidate) -> None:
        if candidate in self.numbers:
            self.tpe.forget(self.numbers.pop(candidate))
        self.local.dropped(candidate)

    def wasted(self, proposal: Proposal) -> None:
        """TPE learns what a duplicate took: it concentrates on what is good, which a refusal would unlearn."""
        self.waste += 1
        if proposal.number is not None:
            self.tpe.tell(proposal.number, self.local.seconds.get(proposal.candidate))
        self.local.wasted(proposal)
