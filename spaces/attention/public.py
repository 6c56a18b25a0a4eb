"""`kernsearch.attention` on NumPy arrays.

Plans know two kinds of causal masks: none, and one that lets the last query see all keys. Any other place of the
queries among the keys is one of these on a part of the arrays, see `parts`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from kernsearch import registry
from kernsearch.errors import ArrayError, DtypeError, ProblemError
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.host import HostPlan, checked

from . import CAUSAL, DTYPES


class Part(NamedTuple):
    """Queries [first, last) with the first `keys` keys; `causal`: the last of these queries sees all of these keys."""

    first: int
    last: int
    keys: int
    causal: bool


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

    q             (batch, heads, queries, dim), NumPy array of float32, float64 or bfloat16 (ml_dtypes); any strides
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
    q, k, v = (_operand(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    dtype = q.dtype.newbyteorder("=")
    batch, heads, queries, depth = q.shape
    keys, columns = _sizes(q, k, v)
    shape = (batch, heads, queries, columns)
    result = np.empty(shape, dtype) if out is None else checked("out", out, shape, dtype)
    if not result.flags.writeable:
        raise ArrayError("out is read-only: want an array that can be written")
    lse = np.empty(shape[:-1], np.float64 if dtype == np.float64 else np.float32) if return_lse else None
    offset = _offset(causal, query_offset, queries, keys)
    scale = 1 / math.sqrt(max(depth, 1)) if scale is None else runtime.number("scale", scale)
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


def parts(queries: int, keys: int, offset: int | None) -> Iterator[Part]:
    """Queries that see no key, those that see some, and those that see all, where query i sees the keys up to
    i + offset; None: all."""
    if keys == 0 or offset is None:
        yield Part(0, queries, keys, False)
        return
    if offset == keys - queries and offset <= 0 and queries > 1:
        yield Part(0, queries, keys, True)  # as plans have it, with those that see none
        return
    blind = min(queries, max(0, -offset))
    partly = min(queries, max(blind, keys - 1 - offset))
    if partly == queries - 1 and partly > blind:
        partly = queries  # the last one need not go alone
    if blind:
        yield Part(0, blind, 0, False)
    if blind < partly:
        yield Part(blind, partly, partly + offset, True)
    if partly < queries:
        yield Part(partly, queries, keys, False)


def _run(arrays: dict[str, np.ndarray], causal: bool, scale: float) -> None:
    """One plan on arrays (batch, heads, length, dim); L without dim."""
    q, k, v = arrays["Q"], arrays["K"], arrays["V"]
    batch, heads, queries, depth = q.shape
    group = heads // k.shape[1]
    axes = "bhqd"
    if group > 1:
        axes = "bhgqd"
        for name in ("Q", "O", "L"):
            if name in arrays:
                whole = arrays[name]
                arrays[name] = whole.reshape(batch, k.shape[1], group, *whole.shape[2:])
    # Heads nearer to each other than queries are: a layout of its own for records, the same for kernels.
    layout = "bshd" if heads > 1 and queries > 1 and abs(q.strides[1]) < abs(q.strides[2]) else "bhsd"
    lead = (batch, k.shape[1], group) if group > 1 else (batch, heads)
    shape = (*lead, queries, k.shape[2], depth, v.shape[3])
    plan = _plan(group > 1, shape, q.dtype.newbyteorder("=").name, layout, causal, "L" in arrays)
    own = {"Q": axes, "K": "bhkd", "V": "bhke", "O": f"{axes[:-1]}e", "L": axes[:-1]}
    views = []
    for operand in plan.plan.operands:
        order = [own[operand.name].index(axis) for axis in operand.axes]
        views.append(arrays[operand.name].transpose(order))
    plan.launch(views, (scale,) * len(plan.plan.scalars))


def _offset(causal: Any, query_offset: Any, queries: int, keys: int) -> int | None:
    """Up to which key beyond its own index a query sees; None: all keys."""
    if not isinstance(causal, bool | np.bool_) and causal not in CAUSAL:
        raise ProblemError(f"causal {causal!r}: want True, False, {' or '.join(CAUSAL[1:])}")
    if causal in (False, "none"):
        if query_offset is not None:
            raise ProblemError(f"query_offset {query_offset!r} without causal: want causal=True, or no offset")
        return None
    if query_offset is None:
        return 0 if causal == "top-left" else keys - queries
    try:
        return operator.index(query_offset)
    except TypeError:
        raise ProblemError(f"query_offset {query_offset!r}: want a whole number") from None


def _operand(name: str, array: Any) -> np.ndarray:
    if type(array) is not np.ndarray and libraries.of(array) is not None:
        raise ArrayError(f"{name} is {libraries.whereabouts(array)}: attention takes NumPy arrays")
    array = np.asarray(array)
    if array.dtype.newbyteorder("=").name not in DTYPES["cpu"]:
        raise DtypeError(f"{name} is {array.dtype}: want {', '.join(DTYPES['cpu'])}; nothing is converted")
    if array.ndim != 4:
        raise ArrayError(f"{name} has {array.ndim} dimensions: want 4, (batch, heads, length, dim)")
    return array


def _sizes(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[int, int]:
    """(keys, columns of v). Raises ArrayError or DtypeError for what does not fit."""
    for name, x in (("k", k), ("v", v)):
        if x.dtype.newbyteorder("=") != q.dtype.newbyteorder("="):
            raise DtypeError(f"q is {q.dtype}, {name} is {x.dtype}: want the same dtype; nothing is converted")
        if x.shape[0] != q.shape[0]:
            raise ArrayError(f"q {q.shape} and {name} {x.shape}: want the same batch")
    if k.shape[1:3] != v.shape[1:3]:
        raise ArrayError(f"k {k.shape} and v {v.shape}: want as many heads and keys")
    if k.shape[3] != q.shape[3]:
        raise ArrayError(f"q {q.shape} and k {k.shape}: want the same dim")
    if q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
        raise ArrayError(f"q has {q.shape[1]} heads, k and v have {k.shape[1]}: want a multiple of these")
    return k.shape[2], v.shape[3]


@lru_cache(maxsize=4096)
def _problem(grouped: bool, shape: tuple[int, ...], dtype: str, layout: str, causal: bool, lse: bool) -> Problem:
    op = registry.op("grouped_attention" if grouped else "attention")
    return op.problem(shape, dtype, backend="cpu", layout=layout, causal="bottom-right" if causal else "none", lse=lse)


def _plan(grouped: bool, shape: tuple[int, ...], dtype: str, layout: str, causal: bool, lse: bool) -> HostPlan:
    problem = _problem(grouped, shape, dtype, layout, causal, lse)
    return cast(HostPlan, runtime.load_problem(problem, runtime.device_of("cpu")))
