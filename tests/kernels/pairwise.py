"""Few rows that hold every pair of values of some factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]  # (factor, value) twice, in the order of the factors


def cover(factors: Mapping[str, Sequence[str]], allowed: Callable[[Row], bool]) -> list[Row]:
    """Rows in which every pair of values that any allowed row has occurs; always the same ones.

    `allowed` is asked of whole rows only. Each row begins with a pair that is still missing and takes, of all allowed
    rows with that pair, the first of those that bring the most other missing pairs.
    """
    names = list(factors)
    rows = [row for values in product(*factors.values()) if allowed(row := dict(zip(names, values, strict=True)))]
    of_row = [frozenset(pairs(row)) for row in rows]
    holding: dict[Pair, list[int]] = {}
    for at, found in enumerate(of_row):
        for pair in found:
            holding.setdefault(pair, []).append(at)
    missing = dict.fromkeys(sorted(holding, key=lambda pair: (len(holding[pair]), pair)))  # the rarest pairs first
    chosen = []
    while missing:
        best = max(holding[next(iter(missing))], key=lambda at: sum(pair in missing for pair in of_row[at]))
        chosen.append(rows[best])
        for pair in of_row[best]:
            missing.pop(pair, None)
    return chosen


def pairs(row: Row) -> Iterable[Pair]:
    """All pairs of a row."""
    return combinations(row.items(), 2)
