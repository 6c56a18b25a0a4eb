"""Candidates as points, so that near ones are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..feasible import FeasibleSpace
from .narrowing import domains_of
from .pool import Candidate

Advice = Callable[[str, Sequence[Mapping[str, int]]], Sequence[float]]
"""Seconds that somebody expects of configs of a variant; what is not finite says nothing."""

MISSING = 0.5  # of a letter that the variant lacks
_FIRST_ROWS = 1024


class Points:
    """Each candidate as a row: coordinates of letters and of the parts of its variant's name, then advice.

    A letter's coordinate is the place of its value in the domain, 0 to 1: domains are made by people who space them as
    it matters. The name of a variant joins those of its templates by '+', so variants that share one are nearer.
    """

    def __init__(self, variants: Mapping[str, FeasibleSpace], advice: Sequence[Advice] = ()):
        domains = {name: values for name, values in domains_of(variants).items() if len(values) > 1}
        self._at = {name: {v: i / (len(values) - 1) for i, v in enumerate(values)} for name, values in domains.items()}
        names = {name: set(name.split("+")) for name in variants}
        told = sorted({part for parts in names.values() for part in parts})
        self._parts = [part for part in told if any(part not in have for have in names.values())]
        coordinates = [sorted({*at.values(), MISSING}) for at in self._at.values()]
        self.levels = [np.array(told) for told in [*coordinates, *([0.0, 1.0] for _ in self._parts)]]
        self.letters = len(self.levels)
        self._advice = tuple(advice)
        self._row: dict[Candidate, int] = {}  # to its row of the table, which grows
        self._table = np.zeros((_FIRST_ROWS, self.letters + self.advice))

    @property
    def advice(self) -> int:
        """How many columns of advice there are: logarithms of seconds, NaN where there is none."""
        return len(self._advice)

    def of(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Rows of candidates, (n, letters + advice) float64."""
        places = [self._row.get(c, -1) for c in candidates]
        if -1 in places:
            self._learn([c for c, place in zip(candidates, places, strict=True) if place < 0])
            places = [self._row[c] for c in candidates]
        rows: np.ndarray = self._table[places]
        return rows

    def _learn(self, fresh: Sequence[Candidate]) -> None:
        by_variant: dict[str, list[Candidate]] = {}
        for wanted in fresh:
            by_variant.setdefault(wanted.variant, []).append(wanted)
        for variant, group in by_variant.items():
            configs = [dict(c.items) for c in group]
            columns = [np.asarray(advise(variant, configs), float) for advise in self._advice]
            with np.errstate(divide="ignore", invalid="ignore"):
                advised = [np.where(np.isfinite(c) & (c > 0), np.log(c), np.nan) for c in columns]
            have = set(variant.split("+"))  # perhaps of an earlier run that searched more variants than this one
            parts = [float(part in have) for part in self._parts]
            for i, (wanted, config) in enumerate(zip(group, configs, strict=True)):
                letters = [_place(at, config.get(name)) for name, at in self._at.items()]
                self._keep(wanted, [*letters, *parts, *(c[i] for c in advised)])

    def _keep(self, wanted: Candidate, row: Sequence[float]) -> None:
        if (place := self._row.setdefault(wanted, len(self._row))) == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[place] = row


def _place(at: Mapping[int, float], value: int | None) -> float:
    """The coordinate of a value; one that the domain lacks, as another problem may have, stands at the next."""
    if value is None:
        return MISSING
    return at[value] if value in at else at[min(at, key=lambda known: (abs(known - value), known))]
