"""`kernsearch.attention`: NumPy arrays here, those on a device in `on_device`."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from kernsearch.errors import ArrayError, DtypeError
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.host import HostPlan, on_host, output

from . import DTYPES, on_device
from .shapes import offset_of, parts, problem_of, scale_of, sizes


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    query_offset: int | None = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """softmax(scale * q k^T, masked) v for each batch and head.

    q             (batch, heads, queries, dim), NumPy array of float32, float64 or bfloat16 (ml_dtypes); or a CuPy
                  array, PyTorch tensor, or what DLPack gives, of bfloat16, float16 or float32. Any strides
    k, v          (batch, kv heads, keys, dim) and (batch, kv heads, keys, value dim) of the same dtype; each head of k
                  and v serves heads / kv heads neighbouring heads of q
    causal        True or "bottom-right": the last query sees all keys, each one before it one key less; "top-left":
                  the first query sees the first key, each one after it one key more (PyTorch's is_causal)
    scale         default: 1 / sqrt(dim)
    query_offset  with causal=True: the place of the first query among the keys, in place of an alignment: query i sees
                  the keys up to i + query_offset. Any whole number.
    return_lse    return (result, lse), lse of shape (batch, heads, queries) the logarithm of the sum of exp of the
                  scores that a query sees: float32, float64 for float64
    out           where the result goes, of shape (batch, heads, queries, value dim); may overlap inputs

    A query that sees no key gives zeros, and -inf for lse. What is masked does not matter, except that a value of NaN
    or infinity may spoil queries that do not see it: 0 times NaN is NaN. Sums of bfloat16 are float32. Zero sizes are
    fine. Raises ArrayError (a ValueError) for shapes that do not fit, DtypeError (a TypeError) for other or mixed
    dtypes, ProblemError for options, CompilerError when the first call finds no compiler.
    """
    if any(type(x) is not np.ndarray and libraries.of(x) is not None for x in (q, k, v)):
        return on_device.call(q, k, v, causal, scale, query_offset, return_lse, out)
    q, k, v = (_operand(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    dtype = q.dtype.newbyteorder("=")
    for name, x in (("k", k), ("v", v)):
        if x.dtype.newbyteorder("=") != dtype:
            raise DtypeError(f"q is {q.dtype}, {name} is {x.dtype}: want the same dtype; nothing is converted")
    batch, heads, queries, depth = q.shape
    keys, columns = sizes(q.shape, k.shape, v.shape)
    shape = (batch, heads, queries, columns)
    result = output(out, shape, dtype)
    lse = np.empty(shape[:-1], np.float64 if dtype == np.float64 else np.float32) if return_lse else None
    offset = offset_of(causal, query_offset, queries, keys)
    scale = scale_of(scale, depth)
    if math.prod(shape[:-1]):
        _attend(q, k, v, result, lse, offset, scale)
    return (result, lse) if return_lse else result


def _attend(q: Any, k: Any, v: Any, result: Any, lse: Any, offset: int | None, scale: float) -> None:
    """All parts; more than one of them read what an output could overlap, so the result is copied in at last."""
    if q.shape[3] == 0:  # all scores are 0
        q, k = np.zeros((*q.shape[:3], 1), q.dtype), np.zeros((*k.shape[:3], 1), k.dtype)
    into = result
    if v.shape[3] == 0:  # nothing but lse is asked for
        v = np.zeros((*v.shape[:3], 1), v.dtype)
        into = np.empty((*result.shape[:3], 1), v.dtype)
    several = list(parts(q.shape[2], k.shape[2], offset))
    apart = len(several) > 1 and any(np.may_share_memory(into, x) for x in (q, k, v))
    target = np.empty(into.shape, q.dtype.newbyteorder("=")) if apart else into
    for part in several:
        rows = slice(part.first, part.last)
        if part.keys == 0:
            target[:, :, rows] = 0
            if lse is not None:
                lse[:, :, rows] = -np.inf
            continue
        arrays = {"Q": q[:, :, rows], "K": k[:, :, : part.keys], "V": v[:, :, : part.keys], "O": target[:, :, rows]}
        if lse is not None:
            arrays["L"] = lse[:, :, rows]
        _run(arrays, part.causal, scale)
    if apart:
        into[...] = target


def _run(arrays: dict[str, np.ndarray], causal: bool, scale: float) -> None:
    """One plan on arrays (batch, heads, length, dim); L without dim."""
    q, k, v = arrays["Q"], arrays["K"], arrays["V"]
    of = problem_of(
        (q.shape, k.shape, v.shape), q.strides, q.dtype.newbyteorder("=").name, "cpu", causal, "L" in arrays
    )
    if of.group > 1:
        for name in {"Q", "O", "L"} & set(arrays):
            whole = arrays[name]
            arrays[name] = whole.reshape(whole.shape[0], k.shape[1], of.group, *whole.shape[2:])
    plan = cast(HostPlan, runtime.load_problem(of.problem, runtime.device_of("cpu")))
    views = []
    for operand in plan.plan.operands:
        order = [of.axes[operand.name].index(axis) for axis in operand.axes]
        views.append(arrays[operand.name].transpose(order))
    plan.launch(views, (scale,) * len(plan.plan.scalars))


def _operand(name: str, array: Any) -> np.ndarray:
    array = on_host(name, array)
    if array.dtype.newbyteorder("=").name not in DTYPES["cpu"]:
        raise DtypeError(f"{name} is {array.dtype}: want {', '.join(DTYPES['cpu'])}; nothing is converted")
    if array.ndim != 4:
        raise ArrayError(f"{name} has {array.ndim} dimensions: want 4, (batch, heads, length, dim)")
    return array
