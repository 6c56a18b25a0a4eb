"""What correct means for softmax: the error bound, and an independent check of the reference.

Bound, elementwise, with u the unit roundoff of the statistics (float32, or float64), u_out that of the output, and
t = x - max x for x = scale * X + bias:

    softmax   |Y - R| <= R * (A + u * max(0, |t| - 16) + 4 * P) + u_out * R [twice for 16 bits] + tiny
    log       |Y - R| <= 4 * u * (|t| + |R - t|) + A + 4 * P + u_out * |R| [twice for 16 bits] + tiny

A = 4e-6 in float32 is the promise: one exponential (2 units), a sum of positive terms and a quotient. It is 67 units,
and as many of float64 there, times four as the reference errs too. t is exact to half a unit, which the exponential
turns into a relative error of u * |t|: within A for elements that matter (|t| <= 16), beyond it below them. P = u times
the largest |scale * X| + |bias| of the row is what rounding the prologue moves x by; without one x is exact. tiny is
the smallest number: results near it are subnormal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kernsearch.namespace import namespace, widened
from kernsearch.problem import Problem

Arrays = dict[str, np.ndarray]
Scalars = dict[str, float]

ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074, "float16": 2.0**-24, "bfloat16": 2.0**-133}
PROMISE = {"float32": 4e-6, "float64": 4 * 4e-6 * 2.0**-29}  # A, by the dtype of the statistics
NEAR = 16.0  # below exp(-16) the difference's own rounding shows


def statistics(problem: Problem) -> str:
    """The dtype of maxima and sums."""
    return "float64" if problem.dtype == "float64" else "float32"


def steps(problem: Problem) -> set[str]:
    """What the prologue does."""
    return set(str(problem.option("prologue")).split(",")) - {"none"}


def row_axis(problem: Problem) -> int:
    """The dimension along which a row runs."""
    return 1 if problem.option("layout") == "n" else 0


def scores(problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> np.ndarray:
    """What softmax is taken of, float64."""
    x = widened(inputs["X"], np.float64)
    if "scale" in steps(problem):
        x = scalars["scale"] * x
    if "bias" in inputs:
        x = x + widened(inputs["bias"], np.float64)
    if "mask" in inputs:
        x = namespace(x).where(inputs["mask"] != 0, x, -np.inf)
    return x


def bound(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    reference: Mapping[str, np.ndarray],
) -> Arrays:
    """The allowed absolute error of Y, elementwise, float64; see the top of this module. Finite everywhere."""
    acc, axis = statistics(problem), row_axis(problem)
    u, u_out, r = ROUNDOFF[acc], ROUNDOFF[problem.dtype], reference["Y"]
    xp = namespace(r)
    with np.errstate(all="ignore"):
        x = scores(problem, inputs, scalars)
        t = xp.abs(_finite(xp, x - x.max(axis=axis, keepdims=True)))
        moved = xp.zeros_like(r[:1, :1])
        if steps(problem) & {"scale", "bias"}:
            size = xp.abs(widened(inputs["X"], np.float64)) * abs(scalars.get("scale", 1.0))
            if "bias" in inputs:
                size = size + xp.abs(widened(inputs["bias"], np.float64))
            moved = 4 * u * _finite(xp, size).max(axis=axis, keepdims=True)
        r = xp.abs(_finite(xp, r))
        stored = u_out * (1.0 if problem.dtype == acc else 2.0) * r
        if problem.option("result") == "log":
            error = 4 * u * (2 * t + r) + PROMISE[acc] + moved + stored
        else:
            error = r * (PROMISE[acc] + u * xp.maximum(0.0, t - NEAR) + moved) + stored
    return {"Y": error + SMALLEST[problem.dtype] + SMALLEST[acc]}


def _finite(xp: object, x: np.ndarray) -> np.ndarray:
    """x, with zeros for what is not finite."""
    return xp.where(xp.isfinite(x), x, 0.0)  # type: ignore[attr-defined]


def textbook(problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> Arrays:
    """Y by plain loops and exactly rounded sums, to check the reference with. For tiny shapes only."""
    x = scores(problem, inputs, scalars)
    rows = x if row_axis(problem) == 1 else x.T
    out = np.empty(rows.shape)
    for i, row in enumerate(rows.tolist()):
        out[i] = _log_row(row) if problem.option("result") == "log" else _row(row)
    return {"Y": out if row_axis(problem) == 1 else out.T}


def _row(row: list[float]) -> list[float]:
    """softmax of one row; zeros where it is -inf all over."""
    top = max(row)
    if top == -math.inf:
        return [0.0] * len(row)
    terms = [math.exp(value - top) for value in row]
    total = math.fsum(terms)
    return [term / total for term in terms]


def _log_row(row: list[float]) -> list[float]:
    top = max(row)
    if top == -math.inf:
        return [-math.inf] * len(row)
    total = math.log(math.fsum(math.exp(value - top) for value in row))
    return [value - top - total for value in row]
