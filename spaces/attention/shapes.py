"""What a call of attention asks for, wherever its arrays lie: sizes, the mask, and the problem that serves it.

Plans know two kinds of causal masks: none, and one that lets the last query see all keys. Any other place of the
queries among the keys is one of these on a part of the arrays, see `parts`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kernsearch import registry
from kernsearch.errors import ArrayError, ProblemError
from kernsearch.problem import Problem
from kernsearch.runtime import plans as runtime

from . import CAUSAL

Shape = tuple[int, ...]


class Part(NamedTuple):
    """Queries [first, last) with the first `keys` keys; `causal`: the last of these queries sees all of these keys."""

    first: int
    last: int
    keys: int
    causal: bool


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


def offset_of(causal: Any, query_offset: Any, queries: int, keys: int) -> int | None:
    """Up to which key beyond its own index a query sees; None: all keys."""
    if not isinstance(causal, bool | np.bool_) and causal not in CAUSAL:
        raise ProblemError(f"causal {causal!r}: want True, False, {' or '.join(CAUSAL[1:])}")
    if causal in (False, "none"):
        if query_offset is not None:
            raise ProblemError(f"query_offset {query_offset!r} without causal: want causal=True, or no offset")
        return None
    if causal == "top-left" and query_offset is not None:
        raise ProblemError(f"query_offset {query_offset!r} beside causal 'top-left': want one or the other")
    if query_offset is None:
        return 0 if causal == "top-left" else keys - queries
    try:
        return operator.index(query_offset)
    except TypeError:
        raise ProblemError(f"query_offset {query_offset!r}: want a whole number") from None


def scale_of(scale: float | None, depth: int) -> float:
    return 1 / math.sqrt(max(depth, 1)) if scale is None else runtime.number("scale", scale)


def sizes(q: Shape, k: Shape, v: Shape) -> tuple[int, int]:
    """(keys, columns of v) of these shapes. Raises ArrayError for what does not fit."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x) != 4:
            raise ArrayError(f"{name} has {len(x)} dimensions: want 4, (batch, heads, length, dim)")
    for name, x in (("k", k), ("v", v)):
        if x[0] != q[0]:
            raise ArrayError(f"q {q} and {name} {x}: want the same batch")
    if k[1:3] != v[1:3]:
        raise ArrayError(f"k {k} and v {v}: want as many heads and keys")
    if k[3] != q[3]:
        raise ArrayError(f"q {q} and k {k}: want the same dim")
    if q[1] != k[1] and (k[1] == 0 or q[1] % k[1]):
        raise ArrayError(f"q has {q[1]} heads, k and v have {k[1]}: want a multiple of these")
    return k[2], v[3]


class Asked(NamedTuple):
    """The problem of a call. `group`: query heads for each head of keys; above 1, Q, O and L have an axis more, so that
    the program's axes, by operand, are those of (batch, kv heads, group, length, dim)."""

    problem: Problem
    group: int
    axes: dict[str, str]


def problem_of(
    shapes: tuple[Shape, Shape, Shape], strides: Shape, dtype: str, backend: str, causal: bool, lse: bool
) -> Asked:
    """For arrays (batch, heads, length, dim) of these shapes, of q, k and v; `strides` are those of q.

    Heads nearer to each other than queries are have a layout of its own for records, the same for kernels.
    """
    (_, heads, queries, _), _, _ = shapes
    near = heads > 1 and queries > 1 and abs(strides[1]) < abs(strides[2])
    return _problem_of(shapes, "bshd" if near else "bhsd", dtype, backend, causal, lse)


@lru_cache(maxsize=4096)
def _problem_of(
    shapes: tuple[Shape, Shape, Shape], layout: str, dtype: str, backend: str, causal: bool, lse: bool
) -> Asked:
    (batch, heads, queries, depth), (_, kv_heads, keys, _), (*_, columns) = shapes
    group = heads // kv_heads
    lead, axes = ((batch, kv_heads, group), "bhgq") if group > 1 else ((batch, heads), "bhq")
    op = registry.op("grouped_attention" if group > 1 else "attention")
    mask = "bottom-right" if causal else "none"
    shape = (*lead, queries, keys, depth, columns)
    problem = op.problem(shape, dtype, backend=backend, layout=layout, causal=mask, lse=lse)
    return Asked(problem, group, {"Q": f"{axes}d", "K": "bhkd", "V": "bhke", "O": f"{axes}e", "L": axes})
