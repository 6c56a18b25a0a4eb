"""The input sets of softmax's gates. The first is what is timed."""

from __future__ import annotations

import numpy as np

from kernsearch.problem import Problem
from kernsearch.space import InputSet

from .numerics import Arrays, Scalars, row_axis, steps

SCALE = 0.625


def dtype_of(problem: Problem) -> np.dtype:
    """The problem's dtype for NumPy, which knows bfloat16 by ml_dtypes."""
    if problem.dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(problem.dtype)


def normal(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Rows of random numbers, (M, N), in the widest type that is quick to draw."""
    drawn = np.float64 if problem.dtype == "float64" else np.float32
    return rng.standard_normal(problem.shape, drawn)


def laid(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Rows as the problem's array: its dtype and layout."""
    rows = rows if row_axis(problem) == 1 else np.ascontiguousarray(rows.T)
    return rows.astype(dtype_of(problem), copy=False)


def _whole(
    problem: Problem, rows: np.ndarray, rng: np.random.Generator, *, kept: float = 0.7
) -> tuple[Arrays, Scalars]:
    """X from its rows, and the prologue's arrays at random."""
    wanted = steps(problem)
    arrays = {"X": laid(problem, rows)}
    if "bias" in wanted:
        arrays["bias"] = laid(problem, normal(problem, rng))
    if "mask" in wanted:
        mask = (rng.random(problem.shape, np.float32) < kept).astype(np.uint8)
        arrays["mask"] = mask if row_axis(problem) == 1 else np.ascontiguousarray(mask.T)
    return arrays, {"scale": SCALE} if "scale" in wanted else {}


def _normal(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    return _whole(problem, normal(problem, rng), rng)


def _climbing(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Scores of about 1000 that grow along the row, by one from tile to tile: sums that are not rescaled to a new
    maximum look stable and are wrong."""
    m, n = problem.shape
    rows = np.full((m, n), 1000.0)
    rows += np.arange(n) * 8 // max(n, 1)
    rows[1::2] = rows[1::2, ::-1]
    return _whole(problem, rows, rng, kept=0.95)


def _masked(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """-inf here and there, some rows all over, some in all places but one."""
    rows = normal(problem, rng)
    rows[rng.random(rows.shape, np.float32) < 0.3] = -np.inf
    which = rng.random(len(rows))
    rows[which < 0.2] = -np.inf
    alone = (which >= 0.2) & (which < 0.4)
    at = rng.integers(0, rows.shape[1], len(rows))
    rows[alone] = -np.inf
    rows[alone, at[alone]] = 3.0
    return _whole(problem, rows, rng, kept=0.4)


def _not_finite(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """A NaN or +inf spoils its own row and no other."""
    rows = normal(problem, rng)
    for row in range(len(rows)):
        if rng.random() < 0.3:
            rows[row, rng.integers(0, rows.shape[1])] = rng.choice([np.nan, np.inf])
    return _whole(problem, rows, rng)


def _equal(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Rows of equal values."""
    m, n = problem.shape
    rows = np.repeat(np.linspace(-3, 3, m)[:, None] * 100, n, axis=1)
    return _whole(problem, rows, rng)


def _large(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Magnitudes of 1e4, and some rows near each other at that height."""
    rows = normal(problem, rng)
    rows[::2] *= 1e4
    rows[1::2] += 1e4
    return _whole(problem, rows.clip(-6e4, 6e4), rng)


def _deep(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Scores spread over all that exp distinguishes: results from 1 down to subnormal ones, and zeros."""
    depth = {"float64": 800.0, "float16": 20.0}.get(problem.dtype, 110.0)
    rows = -depth * rng.random(problem.shape)
    rows[:, 0] = 0.0
    return _whole(problem, rows, rng)


def _under_mask(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """NaN and infinities where the mask leaves them out."""
    arrays, scalars = _normal(problem, rng)
    if "mask" in arrays:
        out = arrays["mask"] == 0
        arrays["X"][out] = np.where(rng.random(int(out.sum())) < 0.5, np.nan, np.inf).astype(arrays["X"].dtype)
    return arrays, scalars


INPUTS = (
    InputSet("normal", _normal),
    InputSet("climbing", _climbing),
    InputSet("-inf", _masked),
    InputSet("NaN and Inf", _not_finite),
    InputSet("equal", _equal),
    InputSet("large", _large),
    InputSet("deep", _deep),
    InputSet("NaN under the mask", _under_mask),
)
