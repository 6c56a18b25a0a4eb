"""What a search learns from measurements of near shapes and of other devices: first candidates, and advice.

Times differ from one problem to the next, what is fast much less so: the fastest candidates of the sources are tried
first, and what a Gaussian process makes of each source is a column of advice. How far the advice holds is found out as
the search goes on, because its weight is fitted with everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..feasible import FeasibleSpace
from .gaussian import Gaussian
from .points import Advice, Points
from .pool import candidate

SEEDS = 32  # candidates that sources propose together
FIRST = 4  # of which so many are asked before all else, the others when most is expected of them
_LEAST = 12  # measurements of a source from which it also advises
_MOST = 192  # measurements of a source that are learned from: the fastest half, the others evenly over the rest
_STEPS = 30

Row = tuple[str, Mapping[str, int], float]  # variant, config, seconds


@dataclass(frozen=True)
class Source:
    """Measurements of another problem or device: what it is called, and (variant, config, seconds) of each."""

    name: str
    rows: Sequence[Row]

    def within(self, variants: Mapping[str, FeasibleSpace]) -> Source:
        """Those of these variants."""
        return Source(self.name, [row for row in self.rows if row[0] in variants])

    def fastest(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: (row[2], row[0], sorted(row[1].items())))


def seeds(sources: Sequence[Source], count: int = SEEDS) -> Iterator[tuple[str, dict[str, int]]]:
    """Up to `count` different candidates in the order to try them: the fastest of each source, then the next ones."""
    seen = set()
    ranked = [source.fastest() for source in sources]
    for rank in range(max(map(len, ranked), default=0)):
        for rows in ranked:
            if rank < len(rows):
                variant, config, _ = rows[rank]
                if (wanted := candidate(variant, config)) not in seen:
                    seen.add(wanted)
                    yield variant, dict(config)
                if len(seen) == count:
                    return


class Remembered:
    """Advice from a source: the seconds that a candidate would take there, as far as the measurements tell."""

    def __init__(self, source: Source, variants: Mapping[str, FeasibleSpace]):
        self._points = Points(variants)
        self._gaussian = Gaussian(self._points.levels)
        rows = source.fastest()
        fast, rest = rows[: _MOST // 2], rows[_MOST // 2 :]
        rest = rest[:: -(-len(rest) // (_MOST // 2))] if rest else []
        chosen = [*fast, *rest]
        logs = np.log([seconds for _, _, seconds in chosen])
        self._mean, self._spread = float(logs.mean()), float(logs.std()) or 1.0
        points = self._points.of([candidate(variant, config) for variant, config, _ in chosen])
        values = (logs - self._mean) / self._spread
        self._gaussian.fit(points, values, _STEPS)
        self._gaussian.condition(points, values)

    def __call__(self, variant: str, configs: Sequence[Mapping[str, int]]) -> Sequence[float]:
        """Seconds of each config, in their order."""
        mean, _ = self._gaussian.predict(self._points.of([candidate(variant, config) for config in configs]))
        return np.exp(self._mean + self._spread * mean).tolist()


def advice(sources: Sequence[Source], variants: Mapping[str, FeasibleSpace]) -> list[Advice]:
    """One adviser for each source that holds enough."""
    told = [source.within(variants) for source in sources]
    return [Remembered(source, variants) for source in told if len(source.rows) >= _LEAST]
