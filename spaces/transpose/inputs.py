"""The input sets of transpose's gates. The first is what is timed."""

from __future__ import annotations

import numpy as np

from kernsearch.namespace import numpy_dtype
from kernsearch.problem import Problem
from kernsearch.space import InputSet

Made = tuple[dict[str, np.ndarray], dict[str, float]]
MOST = 251  # a prime; whole numbers below it are exact in every dtype


def _normal(problem: Problem, rng: np.random.Generator) -> Made:
    drawn = np.float64 if problem.dtype == "float64" else np.float32
    return {"X": rng.standard_normal(problem.shape, drawn).astype(numpy_dtype(problem.dtype), copy=False)}, {}


def _places(problem: Problem, rng: np.random.Generator) -> Made:
    """Neighbours along both axes differ, and so do tiles: an element in the wrong place shows."""
    m, n = problem.shape
    x = (np.arange(m)[:, None] * 17 + np.arange(n) * 3) % MOST
    return {"X": x.astype(numpy_dtype(problem.dtype))}, {}


def _not_finite(problem: Problem, rng: np.random.Generator) -> Made:
    """NaN and infinities here and there: nothing else may change."""
    arrays, scalars = _normal(problem, rng)
    x = arrays["X"]
    x[rng.random(x.shape, np.float32) < 0.05] = np.nan
    x[rng.random(x.shape, np.float32) < 0.05] = -np.inf
    return arrays, scalars


INPUTS = (
    InputSet("normal", _normal),
    InputSet("places", _places, exact=True),
    InputSet("NaN and Inf", _not_finite),
)
