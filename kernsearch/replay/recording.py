"""A recorded space: what came of each configuration that somebody has measured, and what measuring it took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import model
from ..device import Device
from ..errors import RecordingError
from ..feasible import FeasibleSpace
from ..search.pool import Candidate, candidate
from ..search.transfer import Source
from ..space import Constraint, Param
from .restrict import Restriction

ABSENT = "not in the recording"
ALONE = "all"  # the variant of a recording that has none
_ANY = Device("recorded", 0, "any", "any", "any")


@dataclass(frozen=True)
class Entry:
    """What came of one configuration.

    seconds    its time; None when it was refused, by `gate` and for `reason`
    samples    seconds of single runs, in the order taken; empty when only `seconds` is known
    compile_s, verify_s, benchmark_s
               what it took to try it; benchmark_s is for all samples
    predicted_s   what kernsearch's model said of it, where the recording is our own
    """

    seconds: float | None
    samples: tuple[float, ...] = ()
    compile_s: float = 0.0
    verify_s: float = 0.0
    benchmark_s: float = 0.0
    gate: str = ""
    reason: str = ""
    predicted_s: float | None = None


@dataclass
class Recording:
    """Entries by variant and configuration. `device` is what the file says it was recorded on, "" where it does not.

    Values that are not whole numbers are searched as their place in the domain: `labels[letter]` lists what they are.
    The feasible space is what is recorded, or what `restrictions` allow where there are some.
    """

    name: str
    entries: dict[Candidate, Entry]
    domains: dict[str, dict[str, tuple[int, ...]]]  # variant -> letter -> values
    labels: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    restrictions: Sequence[Restriction] = ()
    device: str = ""

    def __post_init__(self) -> None:
        letters = {letter for domains in self.domains.values() for letter in domains}
        for restriction in self.restrictions:
            if strange := sorted(restriction.letters - letters):
                raise RecordingError(f"restriction {restriction.text!r}: unknown parameter {strange[0]!r}, want one of "
                                     f"{', '.join(sorted(letters))}")  # fmt: skip
        self.spaces = {name: self._space(name, domains) for name, domains in self.domains.items()}
        self.left_out = 0
        if self.restrictions:
            kept = {c: e for c, e in self.entries.items() if self.spaces[c.variant].contains(c.config) is None}
            self.left_out = len(self.entries) - len(kept)
            self.entries = kept
        times = [e.seconds for e in self.entries.values() if e.seconds is not None]
        if not times:
            raise RecordingError(f"{self.name}: no configuration with a time"
                                 + (" satisfies the restrictions" if self.restrictions else ""))  # fmt: skip
        self.best_s = min(times)
        self.predicted = any(e.predicted_s is not None for e in self.entries.values())

    def of(self, wanted: Candidate) -> Entry:
        """What came of a candidate; one that the restrictions allow and nobody recorded counts as refused."""
        return self.entries.get(wanted) or Entry(None, gate="compile", reason=ABSENT)

    def advice(self, variant: str, configs: Sequence[Mapping[str, int]]) -> list[float]:
        """What the model said of configs, NaN where nothing is recorded."""
        found = (self.entries.get(candidate(variant, config)) for config in configs)
        return [math.nan if e is None or e.predicted_s is None else e.predicted_s for e in found]

    def source(self) -> Source:
        """What was measured, for another search to learn from. Values that are no numbers keep their places."""
        return Source(self.name, [(c.variant, c.config, e.seconds) for c, e in self.entries.items() if e.seconds])

    def promising(self, count: int) -> list[Candidate]:
        """The candidates of which the model promised most, best first, as `tune` takes them: of those of a variant that
        differ in a single letter the first only. None where no promise is recorded."""
        told = sorted((e.predicted_s, c) for c, e in self.entries.items() if e.predicted_s is not None)
        kept: list[Candidate] = []
        for _, c in told:
            if len(kept) == count:
                break
            if not model.alike(c.config, (other.config for other in kept if other.variant == c.variant)):
                kept.append(c)
        return kept

    def fraction(self, wanted: Candidate) -> float:
        """Best time / time of a candidate; 0 for what was refused."""
        seconds = self.of(wanted).seconds
        return 0.0 if seconds is None else self.best_s / seconds

    def _space(self, variant: str, domains: Mapping[str, tuple[int, ...]]) -> FeasibleSpace:
        params = [Param(letter, values, "recorded") for letter, values in domains.items()]
        if self.restrictions:
            return FeasibleSpace(params, self._allowed(), _ANY, {})
        return Listed(params, [c.config for c in self.entries if c.variant == variant])

    def _allowed(self) -> Iterator[Constraint]:
        for restriction in self.restrictions:
            labels = {letter: self.labels[letter] for letter in restriction.letters if letter in self.labels}

            def holds(c: Mapping[str, int], device: object, sizes: object, r: Restriction = restriction,
                      labels: Mapping[str, tuple[Any, ...]] = labels) -> bool:  # fmt: skip
                given = {letter: c[letter] for letter in r.letters if letter in c}
                if len(given) < len(r.letters):
                    return True  # the variant lacks a letter, so this says nothing about it
                return r.holds({name: labels[name][v] if name in labels else v for name, v in given.items()})

            yield Constraint(restriction.text, holds)


class Listed(FeasibleSpace):
    """A space that is given by its members, configurations of `params`."""

    def __init__(self, params: Sequence[Param], members: Sequence[Mapping[str, int]]):
        names = [p.name for p in params]
        self._members = {tuple(config[name] for name in names): None for config in members}
        super().__init__(params, self._prefixes(names), _ANY, {})
        self._few = [dict(zip(names, values, strict=True)) for values in self._members]
        self._is_few = True

    def exceeds(self, count: int) -> bool:
        return len(self._members) > count

    def narrowed(self, fix: Mapping[str, int]) -> FeasibleSpace:
        return super().narrowed(fix) if fix else self

    def _broken(self, config: Mapping[str, int]) -> Constraint | None:
        return None if tuple(config[name] for name in self.domains) in self._members else self.constraints[-1]

    def _prefixes(self, names: Sequence[str]) -> Iterator[Constraint]:
        """One constraint for each number of leading letters, so that a walk turns back as early as it can."""
        for count in range(1, len(names) + 1):
            known = {values[:count] for values in self._members}

            def holds(c: Mapping[str, int], device: object, sizes: object, known: set[tuple[int, ...]] = known,
                      read: tuple[str, ...] = tuple(names[:count])) -> bool:  # fmt: skip
                return tuple(c[name] for name in read) in known

            yield Constraint(ABSENT, holds)
