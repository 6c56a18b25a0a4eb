"""The feasible set of a space, generated from its constraints: the raw product is never held in memory.

Letters are given values one by one. A constraint that reads a letter without a value cannot be decided yet and waits
for that letter; one that has decided from the letters it read holds for every way to go on. So constraints may stop
early, read few letters or all, and need not say which.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import prod

from .device import Device
from .errors import SpaceError
from .space import Constraint, Param, Sizes

_DIVES = 8  # random descents of which one is drawn by its weight
_FEW = 2048  # a feasible set up to this size is listed once and drawn from exactly
_SURE = 8  # half of the descents must say that there are so many times more
_STEPS = 200_000  # values tried before a walk gives up
_LONG = 10 * _STEPS  # the same where nothing else can be done


class FeasibleSpace:
    """The configs of `params` that satisfy every constraint on this device at these sizes.

    A config is a dict with one value for each letter, in the order of `params`. Raises SpaceError when two parameters
    share a letter, one has no value, or a constraint reads what is neither a parameter nor a size.
    """

    def __init__(self, params: Iterable[Param], constraints: Iterable[Constraint], device: Device, sizes: Sizes):
        self.params = tuple(params)
        self.constraints = tuple(constraints)
        self.device = device
        self.sizes = dict(sizes)
        self.domains = {p.name: p.values for p in self.params}
        if len(self.domains) < len(self.params):
            twice = [name for name, n in Counter(p.name for p in self.params).items() if n > 1]
            raise SpaceError(f"parameter {twice[0]!r} is declared twice: want one domain for each letter of a space")
        for p in self.params:
            if not p.values or len(set(p.values)) < len(p.values):
                raise SpaceError(f"parameter {p.name!r} has values {list(p.values)}: want at least one, each once")
        self.order = self._plan()
        self._few: list[dict[str, int]] | None = None
        self._is_few: bool | None = None

    def narrowed(self, fix: Mapping[str, int]) -> FeasibleSpace:
        """The same space with some letters held at one value. Raises SpaceError naming the choices."""
        for name, value in fix.items():
            if name not in self.domains:
                raise SpaceError(f"parameter {name!r}: want one of {', '.join(self.domains) or 'none'}")
            if value not in self.domains[name]:
                raise SpaceError(f"{name}={value}: want one of {', '.join(map(str, self.domains[name]))}")
        params = [replace(p, values=(fix[p.name],)) if p.name in fix else p for p in self.params]
        return FeasibleSpace(params, self.constraints, self.device, self.sizes)

    def contains(self, config: Mapping[str, int]) -> str | None:
        """None for a feasible config, else the reason a person reads."""
        for name, values in self.domains.items():
            if name not in config:
                return f"{name} is missing"
            if config[name] not in values:
                return f"{name}={config[name]} is not one of {', '.join(map(str, values))}"
        for name in config:
            if name not in self.domains:
                return f"{name} is not a parameter of this variant"
        broken = self._broken(config)
        return None if broken is None else broken.reason

    def iterate(self) -> Iterator[dict[str, int]]:
        """Every feasible config once, in a fixed order; ends early when none is found for long."""
        walk = _Walk(self, _LONG, refill=True)
        return (self._sorted(walk.config) for _ in walk.leaves(0, self.domains.__getitem__))

    def count(self, steps: int = _STEPS) -> int | None:
        """How many configs are feasible; None when `steps` values were tried and the end is not in sight."""
        walk = _Walk(self, steps)
        n = self._count(walk, 0) if walk.alive else 0
        return None if walk.tired else n

    def why_empty(self, steps: int = _STEPS) -> str | None:
        """None when something is feasible, else the reason that refused most."""
        walk = _Walk(self, steps)
        if next(walk.leaves(0, self.domains.__getitem__), self) is None:
            return None
        return walk.refused.most_common(1)[0][0] if walk.refused else "nothing feasible was found"

    def guesses(self, rng: random.Random, tries: int) -> Iterator[dict[str, int]]:
        """The feasible ones among so many configs drawn letter by letter; may give none, and one twice."""
        drawn = ({n: rng.choice(values) for n, values in self.domains.items()} for _ in range(tries))
        return (config for config in drawn if self.contains(config) is None)

    def sample(self, rng: random.Random) -> dict[str, int] | None:
        """A random feasible config, exactly uniform when there are few and nearly so otherwise; None when none is
        found. Many: random descents, each weighted by the number of ways it could have gone."""
        if self._is_few is None and self.exceeds(_FEW):
            self._is_few = False
        if self._is_few is None:
            walk = _Walk(self, 10 * _FEW)
            leaves = walk.leaves(0, self.domains.__getitem__)
            found = [self._sorted(walk.config) for _ in islice(leaves, _FEW + 1)]
            self._is_few = len(found) <= _FEW and not walk.tired
            self._few = found if self._is_few else None
        if self._few is not None:
            return dict(rng.choice(self._few)) if self._few else None
        dives = [dive for _ in range(_DIVES) if (dive := self._dive(rng)) is not None]
        if dives:
            return rng.choices([config for config, _ in dives], [weight for _, weight in dives])[0]
        walk = _Walk(self, _STEPS)
        for _ in walk.leaves(0, lambda name: rng.sample(self.domains[name], len(self.domains[name]))):
            return self._sorted(walk.config)
        self._few = []
        return None

    def exceeds(self, count: int) -> bool:
        """Are by far more than so many configs feasible? Random descents tell, not a listing: in the mean the weight of
        a descent is the number of configs."""
        rng = random.Random(0)
        weights = sorted(dive[1] if (dive := self._dive(rng)) else 0.0 for _ in range(_DIVES))
        return weights[_DIVES // 2] > _SURE * count

    def neighbours(self, config: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """The feasible configs that differ in one letter, by the least possible step up or down its domain."""
        for name, values in self.domains.items():
            at = values.index(config[name])
            for side in (values[at + 1 :], values[:at][::-1]):
                moved = ({**config, name: value} for value in side)
                yield from islice((c for c in moved if self._broken(c) is None), 1)

    def nearest(
        self,
        config: Mapping[str, int],
        accept: Callable[[dict[str, int]], bool] = lambda config: True,
        steps: int = 4000,
    ) -> dict[str, int] | None:
        """The accepted feasible config with the fewest changed letters and the shortest steps that was found.

        Letters of `config` that the space lacks are left out; letters that it misses start in mid-domain. None when
        `steps` values tried found nothing.
        """
        return next(iter(self.resembling(config, 1, accept, steps)), None)

    def resembling(
        self,
        config: Mapping[str, int],
        count: int,
        accept: Callable[[dict[str, int]], bool] = lambda config: True,
        steps: int = 4000,
    ) -> list[dict[str, int]]:
        """So many accepted feasible configs as `nearest` finds the first of, the nearest first."""
        costs = {name: self._costs(name, config.get(name)) for name in self.domains}
        walk = _Walk(self, steps)
        best: list[tuple[float, int, dict[str, int]]] = []

        def most() -> float:
            return best[-1][0] if len(best) == count else math.inf

        def cheapest(name: str) -> Iterator[int]:
            spent = sum(costs[letter][value] for letter, value in walk.config.items())
            for value, cost in costs[name].items():
                if spent + cost >= most():
                    return
                yield value

        for turn, _ in enumerate(walk.leaves(0, cheapest)):
            cost = sum(costs[letter][value] for letter, value in walk.config.items())
            if cost < most() and accept(found := self._sorted(walk.config)):
                insort(best, (cost, turn, found))
                del best[count:]
        return [found for _, _, found in best]

    def holds(self, constraint: Constraint, config: Mapping[str, int]) -> bool:
        try:
            return bool(constraint.holds(config, self.device, self.sizes))
        except KeyError as name:
            raise SpaceError(
                f"constraint {constraint.reason!r} reads {name}: want a parameter ({', '.join(self.domains) or 'none'})"
                f" or a size ({', '.join(self.sizes) or 'none'})"
            ) from None

    def _broken(self, config: Mapping[str, int]) -> Constraint | None:
        return next((c for c in self.constraints if not self.holds(c, config)), None)

    def _sorted(self, config: Mapping[str, int]) -> dict[str, int]:
        return {name: config[name] for name in self.domains}

    def _count(self, walk: _Walk, depth: int) -> int:
        rest = self.order[depth:]
        if not any(walk.waiting[name] for name in rest):
            return prod(len(self.domains[name]) for name in rest)
        n = 0
        for value in self.domains[rest[0]]:
            if walk.tired:
                break
            pushed = walk.enter(rest[0], value)
            if pushed is not None:
                n += self._count(walk, depth + 1)
                walk.leave(rest[0], pushed)
        return n

    def _dive(self, rng: random.Random) -> tuple[dict[str, int], float] | None:
        walk = _Walk(self, _STEPS)
        weight = 1.0
        if not walk.alive:
            return None
        for name in self.order:
            open_values = []
            for value in self.domains[name]:
                pushed = walk.enter(name, value)
                if pushed is not None:
                    open_values.append(value)
                    walk.leave(name, pushed)
            if not open_values:
                return None
            weight *= len(open_values)
            walk.enter(name, rng.choice(open_values))
        return self._sorted(walk.config), weight

    def _costs(self, name: str, wanted: int | None) -> dict[int, float]:
        """What each value costs, the cheapest first: a change weighs more than any number of steps."""
        values = self.domains[name]
        if wanted is None:
            at, change = len(values) // 2, 0.0
        else:
            at, change = min(range(len(values)), key=lambda i: abs(values[i] - wanted)), 1.0
        cost = {v: abs(i - at) / 64 + (change if i != at else 0.0) for i, v in enumerate(values)}
        return dict(sorted(cost.items(), key=lambda item: (item[1], item[0])))

    def _plan(self) -> tuple[str, ...]:
        """An order of the letters in which constraints are decided early: the shortest to complete comes next."""
        rng = random.Random(0)
        picks: list[Callable[[tuple[int, ...]], int]] = [lambda v: v[0], lambda v: v[-1], *[rng.choice] * 6]
        scopes = []
        for constraint in self.constraints:
            letters: set[str] = set()
            for pick in picks:
                reads = _Reads({p.name: pick(p.values) for p in self.params})
                self.holds(constraint, reads)
                letters |= reads.letters
            scopes.append(letters)
        order: list[str] = []
        while scopes := [rest for scope in scopes if (rest := scope - set(order))]:
            scope = min(scopes, key=lambda s: (prod(len(self.domains[name]) for name in s), sorted(s)))
            order += sorted(scope, key=lambda name: (-len(self.domains[name]), name))
        return (*order, *(name for name in self.domains if name not in order))


class _Undecided(Exception):
    """A constraint read a letter that has no value yet."""


class _Partial(Mapping[str, int]):
    """A config under construction. Reading a letter of the space that has no value yet raises _Undecided."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.given: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name in self.given:
            return self.given[name]
        if name in self.names:
            raise _Undecided(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class _Reads(Mapping[str, int]):
    """A whole config that notes which letters are read."""

    def __init__(self, config: Mapping[str, int]):
        self.config = config
        self.letters: set[str] = set()

    def __getitem__(self, name: str) -> int:
        value = self.config[name]
        self.letters.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)


class _Walk:
    """Depth first over the values of the letters. `steps` bounds the number of values tried, with `refill` those
    tried since the last feasible config."""

    def __init__(self, space: FeasibleSpace, steps: int, refill: bool = False):
        self.space = space
        self.steps = steps
        self.refill = steps if refill else 0
        self.partial = _Partial(space.order)
        self.config = self.partial.given
        self.waiting: dict[str, list[Constraint]] = {name: [] for name in space.order}
        self.refused: Counter[str] = Counter()
        self.alive = self._decide(space.constraints, [])

    @property
    def tired(self) -> bool:
        return self.steps <= 0

    def enter(self, name: str, value: int) -> list[str] | None:
        """Give a letter a value. None when a constraint breaks (the letter stays free), else what `leave` needs."""
        self.steps -= 1
        self.config[name] = value
        pushed: list[str] = []
        if self._decide(self.waiting[name], pushed):
            return pushed
        self.leave(name, pushed)
        return None

    def leave(self, name: str, pushed: list[str]) -> None:
        for letter in pushed:
            self.waiting[letter].pop()
        del self.config[name]

    def leaves(self, depth: int, values: Callable[[str], Iterable[int]]) -> Iterator[None]:
        """None once for each feasible config below; `config` holds it until the next one is asked for."""
        if depth == len(self.space.order):
            if self.alive:
                self.steps = self.refill or self.steps
                yield
            return
        name = self.space.order[depth]
        for value in values(name) if self.alive else ():
            if self.tired:
                return
            pushed = self.enter(name, value)
            if pushed is not None:
                yield from self.leaves(depth + 1, values)
                self.leave(name, pushed)

    def _decide(self, constraints: Iterable[Constraint], pushed: list[str]) -> bool:
        for constraint in constraints:
            try:
                holds = self.space.holds(constraint, self.partial)
            except _Undecided as letter:
                name = letter.args[0]
                self.waiting[name].append(constraint)
                pushed.append(name)
                continue
            if not holds:
                self.refused[constraint.reason] += 1
                return False
        return True
