"""What correct means for attention: the error bound, and an independent check of the reference.

Bound, elementwise, with P the weights, S = |scale| |Q| |K|^T, t = x - max x for scores x, u and u_out the unit
roundoffs of accumulation and output, and sums over keys:

    d = (0.1 * sqrt(D) + 0.5) * u * S + u * |t| + 3 * u + drift             relative error of a weight
    a = u * sqrt(K) / 2                                                     of adding up the values
    O   |O - R| <= sqrt(sum of P^2 (T^2 (d^2 + a^2) + p^2) V^2) + T * |R| * n + drift + w * u_out * |R| + tiny
    n = sqrt(sum of P^2 d^2) + (a + 2 * u)                                  relative error of the normalizer
    L   |L - R| <= T * n + 2 * u * (|R| + |max x|) + tiny

Errors of different keys are independent, so their squares add up; what all keys have in common, a rescaled maximum, the
normalizer takes out again. T = 4 deviations, 8 in float64, where the reference errs as well. Programs that leave P in
memory, or multiply it on tensor cores, round it to the problem's dtype: a deviation of 0.4 * u_out for 16-bit types, 0
for others. That is the whole error of many elements, and among millions some are five deviations off: p is 6 of them.
Equal weights are rounded alike: w is 2, for others 1. Tensor cores truncate, and that does not average out: drift is
TRUNCATION * D * u * S, and TRUNCATION * K * u * P |V|, for 16-bit types.

Calibrated against a plain computation, product, softmax and product one after the other in the accumulation's dtype:
its largest error is between a fifth and 0.8 of what is allowed, its mean error up to 0.07, and 0.11 where weights are
rounded. A factor of 1 + u_out on everything passes by its largest error, 0.63; its mean of 0.17 does not pass MEAN.
What that lets pass, sets of inputs with known answers do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from kernsearch.spaces.gemm.numerics import ROUNDOFF, SMALLEST, TRUNCATION

from kernsearch.namespace import namespace, widened
from kernsearch.problem import Problem

from . import sizes_of

DEVIATIONS = {"float32": 4.0, "float64": 8.0}  # T
MEAN = 0.15  # of what is allowed, for random inputs
STORED = 6.0  # deviations of a weight that is rounded

Arrays = dict[str, np.ndarray]
Scalars = dict[str, float]


def accumulation(problem: Problem) -> str:
    """The dtype of sums: float64 for float64, float32 for everything else."""
    return "float64" if problem.dtype == "float64" else "float32"


def grouped(problem: Problem) -> bool:
    """Do heads of queries share heads of keys?"""
    return len(problem.shape) == 7


def offset_of(problem: Problem) -> int | None:
    """A query sees key k where k <= its index + this; None: all keys."""
    q, k, *_ = sizes_of(problem.shape)
    causal, first = problem.option("causal"), problem.option("query_offset")
    if causal == "none":
        return None
    if first != "none":
        return int(str(first))
    return k - q if causal == "bottom-right" else 0


def logical(problem: Problem, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Views of Q (B, H, [G,] Q, D), K and V (B, H, [1,] K, D or E)."""
    q, k, v = (inputs[name] for name in "QKV")
    if problem.option("layout") == "bshd":
        q = q.transpose(0, 2, 3, 1, 4) if grouped(problem) else q.swapaxes(1, 2)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    return (q, k[:, :, None], v[:, :, None]) if grouped(problem) else (q, k, v)


def laid(problem: Problem, o: Any) -> Any:
    """O of (B, H, [G,] Q, E) as the problem's array lies; its inverse is itself for one group."""
    if problem.option("layout") == "bhsd":
        return o
    return o.transpose(0, 3, 1, 2, 4) if grouped(problem) else o.swapaxes(1, 2)


def bound(
    problem: Problem, inputs: Mapping[str, Any], scalars: Mapping[str, float], reference: Mapping[str, Any]
) -> dict[str, Any]:
    """The allowed absolute error of O and L, elementwise; see the top of this module. Finite everywhere."""
    acc, (_, keys, depth, _) = accumulation(problem), sizes_of(problem.shape)
    u, narrow, times = ROUNDOFF[acc], problem.dtype != acc, DEVIATIONS[acc]
    drift, stored = (TRUNCATION, 0.4 * ROUNDOFF[problem.dtype]) if narrow else (0.0, 0.0)
    xp = namespace(inputs["Q"])
    with np.errstate(all="ignore"):
        # These are sizes of errors: the accumulation's precision is enough, 2 % cover what it does to them.
        q, k, v = (widened(x, acc) for x in logical(problem, inputs))
        scale = scalars.get("scale", 1.0)
        p, apart, top = _weights(problem, xp, scale * (q @ k.swapaxes(-1, -2)))
        d = (_finite(xp, q) * abs(scale)) @ _finite(xp, k).swapaxes(-1, -2)
        d *= (0.1 * math.sqrt(depth) + 0.5 + drift * depth) * u
        d += u * apart + 3 * u
        sums = u * math.sqrt(keys) / 2
        size = _finite(xp, v)
        normalizer = times * (xp.sqrt(((p * d) ** 2).sum(axis=-1, keepdims=True)) + sums + 2 * u)
        error = xp.sqrt((p * xp.sqrt(times**2 * (d**2 + sums**2) + (STORED * stored) ** 2)) ** 2 @ size**2)
        if drift:
            error += drift * keys * u * (p @ size)
        answer = _finite(xp, reference["O"])
        error = 1.02 * laid(problem, error.astype(np.float64)) + (2 if narrow else 1) * ROUNDOFF[problem.dtype] * answer
        error += 1.02 * laid(problem, normalizer.astype(np.float64)) * answer
        allowed = {"O": error + (keys + 4) * SMALLEST[acc] + SMALLEST[problem.dtype]}
        if "L" in reference:
            near = 2 * u * (_finite(xp, reference["L"]) + xp.abs(top))
            allowed["L"] = 1.02 * normalizer[..., 0].astype(np.float64) + near + SMALLEST[acc]
    return allowed


def _weights(problem: Problem, xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """From scores: the weights, how far each score is from the largest of its row, and that; finite, 0 where hidden."""
    *_, queries, keys = x.shape
    if (offset := offset_of(problem)) is not None:
        x = xp.where(xp.arange(keys) <= xp.arange(queries)[:, None] + offset, x, -np.inf)
    top = x.max(axis=-1, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0)
    apart = xp.where(xp.isneginf(x), 0, xp.minimum(_finite(xp, x - top), 1000))
    p = xp.where(xp.isneginf(x), 0, xp.exp(-apart))
    total = p.sum(axis=-1, keepdims=True)
    return p / xp.where(total == 0, 1, total), apart, top[..., 0]


def _finite(xp: Any, x: Any) -> Any:
    """|x|, with zeros for what is not finite."""
    return xp.where(xp.isfinite(x), xp.abs(x), 0)


def textbook(problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> Arrays:
    """O and L by plain loops and exactly rounded sums, to check the reference with. For tiny shapes only."""
    q, k, v = (np.asarray(x, float) for x in logical(problem, inputs))
    *lead, queries, _ = q.shape
    k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (k, v))
    keys, columns = v.shape[-2:]
    o, normalizer = np.zeros((*lead, queries, columns)), np.full((*lead, queries), -math.inf)
    offset = offset_of(problem)
    for at in np.ndindex(*lead, queries):
        seen = keys if offset is None else max(0, min(keys, at[-1] + offset + 1))
        row = [
            scalars["scale"] * math.fsum(a * b for a, b in zip(q[at], k[at[:-1]][j], strict=True)) for j in range(seen)
        ]
        if not row or (top := max(row)) == -math.inf:
            continue
        weights = [math.exp(s - top) for s in row]
        total = math.fsum(weights)
        normalizer[at] = top + math.log(total)
        for c in range(columns):
            o[at][c] = math.fsum(w * b for w, b in zip(weights, v[at[:-1]][:, c], strict=False)) / total
    found = {"O": laid(problem, o)}
    return found if problem.option("lse") == "no" else {**found, "L": normalizer}
