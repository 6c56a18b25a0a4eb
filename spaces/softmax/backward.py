"""What correct means for softmax's backward pass: its error bound, its input sets, and a check of its reference.

Bound, elementwise, with S the sum of |DY * Y| over the row (of |DY| for log), u the roundoff of the statistics:

    softmax   |DX - R| <= |Y| * ((2 sqrt(N) + 2) * u * S + 2 u |DY|) + 2 u |R| + u_out |R| + tiny
    log       |DX - R| <= exp(Y) * ((2 sqrt(N) + 2) * u + E) * S + 2 u |R| + u_out |R| + tiny

as a sum of products in float32 (see gemm); E = 4e-6 + 2 u |Y| is the exponential's. Where all values are whole numbers,
no error is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kernsearch.namespace import namespace, widened
from kernsearch.problem import Problem
from kernsearch.space import InputSet

from .inputs import laid, normal
from .numerics import PROMISE, ROUNDOFF, SMALLEST, Arrays, Scalars, row_axis, statistics


def is_log(problem: Problem) -> bool:
    """Is it the gradient of log_softmax?"""
    return problem.op.startswith("log_")


def bound(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    reference: Mapping[str, np.ndarray],
) -> Arrays:
    """The allowed absolute error of DX, elementwise, float64; see the top of this module. Finite everywhere."""
    acc, axis = statistics(problem), row_axis(problem)
    u, u_out, r = ROUNDOFF[acc], ROUNDOFF[problem.dtype], reference["DX"]
    xp = namespace(r)

    def size(array: np.ndarray) -> np.ndarray:
        wide = xp.abs(widened(array, np.float64))
        return xp.where(xp.isfinite(wide), wide, 0.0)

    with np.errstate(all="ignore"):
        dy, y = size(inputs["DY"]), size(inputs["Y"])
        adding = (2 * math.sqrt(r.shape[axis]) + 2) * u
        if is_log(problem):
            weight = xp.exp(widened(inputs["Y"], np.float64))
            weight = xp.where(xp.isfinite(weight), weight, 0.0)
            error = weight * (adding + PROMISE[acc] + 2 * u * y) * dy.sum(axis=axis, keepdims=True)
        else:
            error = y * (adding * (dy * y).sum(axis=axis, keepdims=True) + 2 * u * dy)
        result = xp.abs(xp.where(xp.isfinite(r), r, 0.0))
        error = error + (2 * u + u_out) * result
    return {"DX": error + SMALLEST[problem.dtype] + SMALLEST[acc] * r.shape[axis]}


def textbook(problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> Arrays:
    """DX by plain loops and exactly rounded sums, to check the reference with. For tiny shapes only."""
    turn = row_axis(problem) == 0
    dy, y = (widened(inputs[name], np.float64) for name in ("DY", "Y"))
    rows = zip((dy.T if turn else dy).tolist(), (y.T if turn else y).tolist(), strict=True)
    out = []
    for one, other in rows:
        if is_log(problem):
            total = math.fsum(one)
            out.append([a - math.exp(b) * total for a, b in zip(one, other, strict=True)])
        else:
            total = math.fsum(a * b for a, b in zip(one, other, strict=True))
            out.append([b * (a - total) for a, b in zip(one, other, strict=True)])
    return {"DX": np.array(out).T if turn else np.array(out)}


def _of(problem: Problem, dy: np.ndarray, y: np.ndarray) -> tuple[Arrays, Scalars]:
    return {"DY": laid(problem, dy), "Y": laid(problem, y)}, {}


def _output(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Rows as a forward pass gives them."""
    x = normal(problem, rng)
    x -= x.max(axis=1, keepdims=True)
    e = np.exp(x)
    total = e.sum(axis=1, keepdims=True)
    return x - np.log(total) if is_log(problem) else e / total


def _normal(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    return _of(problem, normal(problem, rng), _output(problem, rng))


def _integers(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """So small that every sum and product is exact in any order; for log, only Y = 0 has a whole exponential."""
    most = max(1, min(4, math.isqrt(2**20 // problem.shape[1])))
    dy, y = (rng.integers(-most, most + 1, problem.shape).astype(np.float64) for _ in range(2))
    return _of(problem, dy, y if not is_log(problem) else 0 * y)


def _masked(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Rows and places that took no part: their Y is 0, or -inf for log, and so is their gradient."""
    y, left = _output(problem, rng), rng.random(problem.shape) < 0.3
    left[rng.random(len(y)) < 0.3] = True
    y[left] = -np.inf if is_log(problem) else 0.0
    return _of(problem, normal(problem, rng), y)


def _not_finite(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """A NaN or infinity spoils its own row and no other."""
    dy, y = normal(problem, rng), _output(problem, rng)
    for row in range(len(dy)):
        if rng.random() < 0.3:
            which = dy if rng.random() < 0.5 else y
            which[row, rng.integers(0, dy.shape[1])] = rng.choice([np.nan, np.inf])
    return _of(problem, dy, y)


def _cancelling(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Gradients that are nearly the same in a whole row, so that most of the difference cancels."""
    dy = 100.0 + 0.01 * normal(problem, rng).astype(np.float64)
    return _of(problem, dy, _output(problem, rng))


INPUTS = (
    InputSet("normal", _normal),
    InputSet("small integers", _integers, exact=True),
    InputSet("left out", _masked),
    InputSet("NaN and Inf", _not_finite),
    InputSet("cancelling", _cancelling),
)
