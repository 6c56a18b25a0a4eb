"""Awkward shapes for kernels that work on rows: rows of one element, of primes, of one off each tile of the config."""

from __future__ import annotations

import math

from kernsearch.problem import Problem
from kernsearch.space import Config

ALONG = ("KC", "VK", "TK", "WK", "COLUMNS", "TM", "TN")  # letters of tiles along a row (those of generic kernels too)
DOWN = ("ROWS", "BM")  # of tiles of rows
MOST = 1 << 18  # elements of an awkward shape
LONGEST = 1 << 17


def edges(problem: Problem, config: Config) -> tuple[tuple[int, ...], ...]:
    """Shapes (M, N), the largest last: several tasks or blocks of rows that are several pieces long."""
    wide = sorted({config[letter] for letter in ALONG if letter in config})
    tall = sorted({config[letter] for letter in DOWN if letter in config})
    whole = math.prod(config.get(letter, 1) for letter in ("TK", "WK"))  # what a block keeps of a row, or a cluster
    lengths = {1, 2, 3, 7, 16, 31, 64, 129, 781}
    for tile in {*wide, whole, whole * config.get("SPLIT", 1), 64 * config.get("SPLIT", 1)}:
        lengths |= {tile - 1, tile, tile + 1, 2 * tile + 3}
    found = [(3, n) for n in sorted(lengths)]
    found += [(1, 4096), (1, 5), (2, 8192)]
    found += [(m + d, 37) for m in tall for d in (-1, 0, 1)]
    found += [(67, 1), (131, 8), (129, 1000)]
    found = [shape for shape in dict.fromkeys(found) if min(shape) >= 1 and math.prod(shape) <= MOST]
    rows = max([17, *(2 * m + 3 for m in tall)])
    columns = max(257, min(LONGEST, 2 * max(wide, default=128) + 5))
    while rows * columns > MOST and columns > 257:
        columns = columns // 2 + 1
    return (*(shape for shape in found if shape != (rows, columns)), (rows, columns))
