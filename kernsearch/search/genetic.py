"""A genetic search that never leaves the feasible set."""

from __future__ import annotations

import math

from .pool import Candidate, Pool, Proposal
from .searchers import Random

_SIZE = 16  # members of a population
_TOURNAMENT = 2  # members of which the fastest becomes a parent
_MUTATED = 0.5  # probability that a child also has one letter changed
_STALE = 3  # times the size: results without a faster one after which a population is given up
_TRIES = 24  # children that are known or refused before a population counts as used up


class Genetic(Random):
    """Populations of candidates, one after the other.

    A population begins with random candidates and keeps its `size` fastest. A child has the variant of one parent and
    of each letter that both have the value of one of them; about every second child has one letter changed to any other
    value. A child that is not feasible is its first parent with one letter changed instead, so each child is feasible.
    When a population no longer gets faster, or all its children are known, the next one begins from nothing.
    """

    def __init__(self, pool: Pool, size: int = _SIZE, mutated: float = _MUTATED):
        super().__init__(pool)
        self.size, self.mutated = size, mutated
        self.running: set[Candidate] = set()
        self.living: dict[Candidate, float] = {}  # to seconds
        self.born = 0  # candidates of this population, whoever proposed them
        self.stale = 0  # results since its fastest

    def propose(self) -> Proposal | None:
        if self.stale > _STALE * self.size:
            self._begin()
        if self.born >= self.size and len(self.living) > 1:
            for _ in range(_TRIES):
                child = self.child()
                if child is not None and self.pool.fresh(child):
                    return Proposal(child, "genetic")
            self._begin()
        return super().propose()

    def begun(self, candidate: Candidate, number: int | None) -> None:
        self.running.add(candidate)
        self.born += 1

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        if candidate not in self.running:  # of an earlier run, or of another process
            self.born += 1
        self.running.discard(candidate)
        self.stale += 1
        if seconds is None or candidate.variant not in self.pool.spaces:
            return
        if seconds < min(self.living.values(), default=math.inf):
            self.stale = 0
        self.living[candidate] = seconds
        if len(self.living) > self.size:
            del self.living[max(self.living, key=self.living.__getitem__)]

    def dropped(self, candidate: Candidate) -> None:
        if candidate in self.running:
            self.running.discard(candidate)
            self.born -= 1

    def child(self) -> Candidate | None:
        """A feasible child of two members, known or not; None when a parent has no feasible variation."""
        one = self._parent(list(self.living))
        other = self._parent([member for member in self.living if member != one])
        if self.pool.rng.random() < 0.5:
            one, other = other, one
        mixed = self.pool.mixed(one, other)
        if mixed and self.pool.rng.random() >= self.mutated:
            return mixed[0]
        varied = self.pool.variations(mixed[0] if mixed else one)
        return self.pool.rng.choice(varied) if varied else None

    def _parent(self, members: list[Candidate]) -> Candidate:
        rivals = self.pool.rng.sample(members, min(_TOURNAMENT, len(members)))
        return min(rivals, key=self.living.__getitem__)

    def _begin(self) -> None:
        self.living, self.born, self.stale = {}, 0, 0
