"""The input sets of attention's gates. The first is what is timed."""

from __future__ import annotations

import math

import numpy as np

from kernsearch.namespace import numpy_dtype
from kernsearch.problem import Problem
from kernsearch.space import InputSet

from . import sizes_of
from .numerics import MEAN, Arrays, Scalars, grouped, laid


def _normal(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    return _as_given(problem, *_random(problem, rng)), _scale(problem)


def _scale(problem: Problem, by: float = 1.0) -> Scalars:
    return {"scale": by / math.sqrt(sizes_of(problem.shape)[2])}


def _random(problem: Problem, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (B, H, [G,] Q, D), k (B, H, K, D) and v (B, H, K, E), in the widest type that is quick to draw."""
    *heads, queries, keys, depth, columns = problem.shape
    drawn = np.float64 if problem.dtype == "float64" else np.float32
    both = tuple(heads[:2])
    return (
        rng.standard_normal((*heads, queries, depth), drawn),
        rng.standard_normal((*both, keys, depth), drawn),
        rng.standard_normal((*both, keys, columns), drawn),
    )


def _as_given(problem: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Arrays:
    """As the problem's arrays: its dtype and layout."""
    dtype = numpy_dtype(problem.dtype)
    turned = problem.option("layout") == "bshd"
    q = laid(problem, q)
    k, v = (x.swapaxes(1, 2) if turned else x for x in (k, v))
    return {n: np.ascontiguousarray(x.astype(dtype, copy=False)) for n, x in (("Q", q), ("K", k), ("V", v))}


def _climbing(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Scores of about 1000 that grow along the keys, by one from tile to tile, or fall: sums that are not rescaled to
    a new maximum look stable and are wrong."""
    q, k, v = _random(problem, rng)
    q[:], k[:] = 0, 0
    q[..., 0] = 1
    q[..., 1::2, 0] = -1
    steps = np.arange(k.shape[-2]) * 8 // k.shape[-2]
    k[..., 0] = np.where(np.arange(k.shape[1]) % 2, -1, 1)[:, None] * (1000 + 4 * steps)
    return _as_given(problem, q, k, v), {"scale": 1.0}


def _even(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """All keys weigh alike, and values say where they stand: each key must be counted, and once."""
    q, k, v = _random(problem, rng)
    q[:] = 0
    v[:] = (np.arange(v.shape[-2]) % 61 + 1)[:, None] + np.arange(v.shape[-1]) % 7
    return _as_given(problem, q, k, v), _scale(problem)


def _picking(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Each query resembles one key so much that it takes its value."""
    q, k, v = _random(problem, rng)
    which = rng.integers(0, k.shape[-2], q.shape[-2])
    picked = k[..., which, :]
    q[:] = picked[:, :, None] if grouped(problem) else picked
    return _as_given(problem, q, k, v), _scale(problem, 12.0)


def _large(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Scores of thousands, of either sign."""
    q, k, v = _random(problem, rng)
    return _as_given(problem, q * 30, k * 30, v), _scale(problem, -1.0)


def _not_finite(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """A NaN or infinity spoils the queries that see it, and no others; hidden keys do not matter, whatever they are.
    Values are spoiled where nothing is hidden: 0 times NaN is NaN."""
    q, k, v = _random(problem, rng)
    for x, share in ((q, 0.1), (k, 0.2)) + (((v, 0.1),) if problem.option("causal") == "none" else ()):
        rows = x.reshape(-1, *x.shape[-2:])
        for row in rows:
            if rng.random() < share:
                row[rng.integers(0, len(row)), rng.integers(0, row.shape[-1])] = rng.choice([np.nan, np.inf, -np.inf])
    if problem.option("causal") != "none":
        k[..., -1, :] = np.nan  # the last key, which few queries see
    return _as_given(problem, q, k, v), _scale(problem)


INPUTS = (
    InputSet("normal", _normal, mean=MEAN),
    InputSet("climbing", _climbing),
    InputSet("even", _even),
    InputSet("picking", _picking),
    InputSet("large", _large),
    InputSet("NaN and Inf", _not_finite),
)
