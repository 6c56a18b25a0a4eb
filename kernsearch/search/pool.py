"""Candidates of a search, and the pool of those that are left: feasible, wanted and not known yet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ..feasible import FeasibleSpace

_NEAR = 24  # feasible candidates that resemble another most are looked at
_NEAR_STEPS = 1500  # values tried to find them
_DRAWS = 32  # random draws before the rest of the space is listed
_GUESSES = 8  # guesses for each random candidate
_DEAR = 8  # where guesses seldom serve, a random candidate costs as much as so many
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
        self._guessing: dict[str, bool] = {}  # by variant: guesses are often feasible

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

    def some(self, count: int) -> list[Candidate]:
        """Up to `count` random candidates, feasible and not known; whether they are wanted is not looked at. Guessed
        letter by letter where that often gives feasible ones, which is cheap; else a few are drawn as by `draw`."""
        name = self.rng.choice(list(self.spaces))
        space = self.spaces[name]
        found: list[dict[str, int]] = []
        if self._guessing.get(name, True):
            found = list(islice(space.guesses(self.rng, _GUESSES * count), count))
            self._guessing[name] = 2 * len(found) > count
        if not self._guessing[name]:
            drawn = (space.sample(self.rng) for _ in range(max(1, count // _DEAR)))
            found += [config for config in drawn if config is not None]
        return [c for config in found if (c := candidate(name, config)) not in self.known]

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

    def variations(self, of: Candidate) -> list[Candidate]:
        """The feasible candidates of the same variant that differ in one letter."""
        space, config = self.spaces[of.variant], of.config
        moved = ({**config, name: v} for name, values in space.domains.items() for v in values if v != config[name])
        return [candidate(of.variant, c) for c in moved if space.contains(c) is None]

    def mixed(self, one: Candidate, other: Candidate) -> list[Candidate]:
        """The variant and letters of one with some values of the other, if that is feasible: a list of one or none."""
        space, config, theirs = self.spaces[one.variant], one.config, other.config
        for name, values in space.domains.items():
            if theirs.get(name) in values and self.rng.random() < 0.5:
                config[name] = theirs[name]
        return [candidate(one.variant, config)] if space.contains(config) is None else []

    def _list(self) -> Iterator[Candidate]:
        refused = 0
        for name, space in self.spaces.items():
            for config in space.iterate():
                if self.fresh(listed := candidate(name, config)):
                    refused = 0
                    yield listed
                elif (refused := refused + 1) > _REFUSED:
                    return
