"""Intervals without a distribution: order statistics for a median, signed ranks for paired ratios.

All intervals are two-sided; `alpha` is the chance that the truth lies outside. Everything here is exact, not
bootstrapped: a bootstrapped interval of a median of ten to thirty samples covers too rarely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

LEAST_PAIRS = 3  # with fewer there is no interval
_RANKS_FROM = 12  # pairs; with fewer, signed ranks cannot reach a small alpha and Student's t is used


def median_interval(samples: Sequence[float], confidence: float = 0.99) -> tuple[float, float, float]:
    """(low, high, level): an interval for the median of the distribution the samples were drawn from.

    The level is the exact coverage for independent samples, at least `confidence` from 8 samples on for 99 %. With
    fewer samples the interval is their whole range and the level says how much that is worth (0 for one sample).
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("no samples")
    rank, tail = _median_rank(n, (1 - confidence) / 2)
    return ordered[rank], ordered[n - 1 - rank], 1 - 2 * tail


@lru_cache(maxsize=4096)
def _median_rank(n: int, tail: float) -> tuple[int, float]:
    """The largest rank (from 0) whose outer tail, Bin(n, 1/2) <= rank, is at most `tail`, and that tail."""
    below, total, rank = 0.0, 0.0, 0
    for k in range((n + 1) // 2):
        total += math.comb(n, k) * 0.5**n if n < 1000 else math.exp(_log_binomial(n, k))
        if k > 0 and total > tail:
            break
        rank, below = k, total
    return rank, min(below, 0.5)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)


@lru_cache(maxsize=512)
def _signed_rank_cumulative(n: int) -> np.ndarray:
    """P(W <= w) for w = 0 .. n(n+1)/2, W the sum of the positive ranks of n symmetric differences."""
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        moved = np.zeros_like(chance)
        moved[rank:] = chance[:-rank]
        chance = (chance + moved) / 2
    return np.cumsum(chance)


@lru_cache(maxsize=4096)
def _walsh_rank(n: int, alpha: float) -> int:
    """How many Walsh averages to cut off at each end; 0 when no cut keeps the level."""
    return int(np.searchsorted(_signed_rank_cumulative(n), alpha / 2, side="right"))


def shift_interval(differences: Sequence[float] | np.ndarray, alpha: float) -> tuple[float, float, float]:
    """(estimate, low, high) of the centre of paired differences.

    From 12 pairs on: Hodges-Lehmann estimate and the interval that inverts Wilcoxon's signed-rank test. Its only
    condition is symmetry about the centre, which a random order within each pair makes true for equal contestants
    whatever the noise. With 3 to 11 pairs Student's t; with fewer no interval (infinite ends).
    """
    d = np.sort(np.asarray(differences, dtype=float))
    n = len(d)
    if n == 0:
        return math.nan, -math.inf, math.inf
    if n < _RANKS_FROM:
        centre = float(d.mean())
        if n < LEAST_PAIRS:
            return centre, -math.inf, math.inf
        half = student_quantile(n - 1, alpha) * float(d.std(ddof=1)) / math.sqrt(n)
        return centre, centre - half, centre + half
    upper = np.triu_indices(n)
    walsh = np.sort((d[upper[0]] + d[upper[1]]) / 2)
    cut = _walsh_rank(n, alpha)
    centre = float((walsh[(len(walsh) - 1) // 2] + walsh[len(walsh) // 2]) / 2)
    if cut == 0:
        return centre, -math.inf, math.inf
    return centre, float(walsh[cut - 1]), float(walsh[len(walsh) - cut])


def _student_two_sided(t: float, degrees: int) -> float:
    """P(|T| > t); the finite trigonometric sums for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if degrees % 2 else 1.0
    total = 0.0 if degrees == 1 else term
    for j in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    inside = 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total
    return 1 - inside


@lru_cache(maxsize=4096)
def student_quantile(degrees: int, alpha: float) -> float:
    """The t with P(|T| > t) = alpha."""
    low, high = 0.0, 1.0
    while _student_two_sided(high, degrees) > alpha:
        high *= 2
        if high > 1e12:
            return math.inf
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_two_sided(middle, degrees) > alpha else (low, middle)
    return high


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values; NaN for none."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan
