"""Awkward shapes: one query, one key, more queries than keys, primes, one off each tile of the config."""

from __future__ import annotations

import math

from kernsearch.problem import Problem
from kernsearch.space import Config

ROWS = ("MC", "MR", "NR", "BM", "ROWS")  # letters of tiles of queries
KEYS = ("KC", "MR", "NR", "BK", "BN", "VK", "KR")  # of keys
COLUMNS = ("NR", "TN")  # of columns of V
MOST = 1 << 22  # multiply-adds of an awkward shape
LARGEST_TILE = 1 << 10


def edges(problem: Problem, config: Config) -> tuple[tuple[int, ...], ...]:
    """Shapes of the op, the largest last: several jobs of several blocks of keys."""
    rows, keys, columns = (
        sorted({config[letter] for letter in letters if 1 < config.get(letter, 0) <= LARGEST_TILE} or {8})
        for letters in (ROWS, KEYS, COLUMNS)
    )
    split = config.get("SPLIT", 1)
    found = [
        (1, 1, 1, 1, 1, 1), (1, 1, 5, 2, 3, 4), (2, 1, 1, 37, 32, 32), (1, 2, 1, 300, 64, 64), (1, 1, 7, 1, 8, 16),
        (1, 1, 113, 203, 40, 24), (1, 1, 239, 1, 32, 32), (1, 1, 67, 131, 96, 96), (2, 3, 13, 17, 19, 23),
        (1, 1, 5, 3, 256, 256), (3, 1, 31, 33, 33, 31),
    ]  # fmt: skip
    found += [(1, 1, r + d, 29, 16, 16) for r in rows for d in (-1, 1)]
    found += [(1, 2, 9, k + d, 24, 16) for k in keys for d in (-1, 0, 1)]
    found += [(1, 1, 11, 2 * max(keys) + 3, 8, c + d) for c in columns for d in (-1, 0, 1)]
    found += [(1, 1, 6, 64 * split + d, 16, 8) for d in (-1, 3)]
    several = (1, 2, max(2 * max(rows) + 3, 67), max(2 * max(keys) + 5, 131), 36, 36)
    while _work(several) > MOST:
        b, h, q, k, d, e = several
        several = (b, h, q // 2 + 1, k, d, e) if q > k else (b, h, q, k // 2 + 1, d, e)
    found = [shape for shape in dict.fromkeys(found) if min(shape) >= 1 and _work(shape) <= MOST]
    shapes = (*(shape for shape in found if shape != several), several)
    if len(problem.shape) == 6:
        return shapes
    groups = (1, 3, 4, 2, 7)
    return tuple((b, h, 3 if i == len(shapes) - 1 else groups[i % 5], *rest) for i, (b, h, *rest) in enumerate(shapes))


def _work(shape: tuple[int, ...]) -> int:
    *_, d, e = shape
    return math.prod(shape[:4]) * (d + e)
