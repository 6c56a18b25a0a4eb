"""Attention for arrays on a device: CuPy, PyTorch and DLPack, by any strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from kernsearch.errors import ArrayError, DtypeError
from kernsearch.launch import ArrayView, itemsize
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.again import Asked
from kernsearch.runtime.device import Bound, DevicePlan, view_on
from kernsearch.runtime.libraries import BY_TYPE, Library
from kernsearch.runtime.strides import check_apart, overlap
from kernsearch.runtime.views import span

from . import DTYPES
from .shapes import Part, offset_of, parts, problem_of, scale_of, sizes

Views = dict[str, ArrayView]
SOURCES = {"Q": 0, "K": 1, "V": 2}  # which argument an operand is


def call(
    q: Any, k: Any, v: Any, causal: Any, scale: float | None, query_offset: Any, return_lse: bool, out: Any
) -> Any:
    """As `public.attention`, when one of the arrays is on a device."""
    native = None if return_lse else BY_TYPE.get(type(q))
    asked = Asked(native, (q, k, v), out, "attention", type(causal), causal, scale, query_offset)
    if (done := asked.again()) is not None:
        return done
    home = libraries.of(q)
    if home is None:
        raise ArrayError("q is in host memory, another array is not: want all in one place")
    like = home.taken(q)
    first, dtype, device = home.view("q", like)
    if dtype not in DTYPES["cuda"]:
        raise DtypeError(f"q is {dtype}: want {', '.join(DTYPES['cuda'])}; nothing is converted")
    views: Views = {"Q": first}
    for name, array in (("k", k), ("v", v)):
        views[name.upper()], found = view_on(name, array, device)
        if found != dtype:
            raise DtypeError(f"q is {dtype}, {name} is {found}: want the same dtype; nothing is converted")
    keys, columns = sizes(first.shape, views["K"].shape, views["V"].shape)
    batch, heads, queries, depth = first.shape
    shape = (batch, heads, queries, columns)
    offset, factor = offset_of(causal, query_offset, queries, keys), scale_of(scale, depth)
    result = _new(home, like, shape, dtype, device) if out is None else _taken("out", out)
    lse = _new(home, like, shape[:-1], "float32", device) if return_lse else None
    views["O"], found = view_on("out", result, device)
    if found != dtype or views["O"].shape != shape:
        raise ArrayError(f"out is {found} of shape {views['O'].shape}: want {dtype} of shape {shape}")
    check_apart("out", shape, views["O"].strides, 1)
    if lse is not None:
        views["L"], _ = view_on("lse", lse, device)
    if math.prod(shape[:-1]):
        _attend(views, result, lse, list(parts(queries, keys, offset)), factor, dtype, home, like, device, asked)
    given = home.given(result, q) if out is None else out
    return (given, home.given(lse, q)) if return_lse else given


def _attend(
    views: Views, result: Any, lse: Any, several: Sequence[Part], scale: float, dtype: str, home: Library, like: Any,
    device: int, asked: Asked,
) -> None:  # fmt: skip
    """All parts; more than one of them read what an output could overlap, so the result is copied in at last. Arrays
    without a dim get one of zeros: all scores are 0, or nothing but lse is asked for."""
    target, kept = result, []
    for name in ("Q", "K", "V"):
        if views[name].shape[3] == 0:
            kept.append(zeros := _new(home, like, (*views[name].shape[:3], 1), dtype, device))
            zeros[...] = 0
            views[name] = view_on(name, zeros, device)[0]
    apart = len(several) > 1 and any(_meet(views["O"], views[name]) for name in ("Q", "K", "V"))
    if apart or views["O"].shape[3] == 0:
        target = _new(home, like, (*views["O"].shape[:3], views["V"].shape[3]), dtype, device)
        views["O"] = view_on("out", target, device)[0]
    for part in several:
        if part.keys:
            ran = _run(_cut(views, part), part.causal, scale, dtype, home, device)
            if len(several) == 1 and not kept and target is result:
                asked.learn(*ran, SOURCES, tuple(result.shape), result)
            continue
        target[:, :, part.first : part.last] = 0
        if lse is not None:
            lse[:, :, part.first : part.last] = -math.inf
    if apart and target is not result:
        result[...] = target


def _meet(a: ArrayView, b: ArrayView) -> bool:
    return overlap(a.address, span(a), b.address, span(b))


def _taken(name: str, array: Any) -> Any:
    """An array as one of a library that is known here."""
    library = libraries.of(array)
    if library is None:
        raise ArrayError(f"{name} is in host memory: want an array where q is")
    return library.taken(array)


def _new(home: Library, like: Any, shape: tuple[int, ...], dtype: str, device: int) -> Any:
    """A new array of the library, where `like` is."""
    what = f"a result of {math.prod(shape) * itemsize(dtype)} bytes"
    if home.name == "PyTorch":
        import torch

        make = partial(like.new_empty, dtype=getattr(torch, dtype))
        return libraries.room(make, shape, what=what, device=device)
    from kernsearch.backends.cuda import arrays

    return libraries.room(arrays.empty, shape, dtype, device, what=what, device=device)


def _cut(views: Views, part: Part) -> Views:
    """The queries and keys of a part."""
    found = {}
    for name, view in views.items():
        first, count = (part.first, part.last - part.first) if name in "QOL" else (0, part.keys)
        address = view.address + first * view.strides[2] * view.itemsize
        found[name] = replace(view, address=address, shape=(*view.shape[:2], count, *view.shape[3:]))
    return found


def _run(
    views: Views, causal: bool, scale: float, dtype: str, library: Library, device: int
) -> tuple[DevicePlan, Bound | None, list[ArrayView], tuple[float, ...]]:
    """One plan; how it went, as `Asked.learn` wants it."""
    shapes = (views["Q"].shape, views["K"].shape, views["V"].shape)
    of = problem_of(shapes, views["Q"].strides, dtype, "cuda", causal, "L" in views)
    plan = cast(DevicePlan, runtime.load_problem(of.problem, runtime.device_of(f"cuda:{device}")))
    placed = []
    for operand in plan.plan.operands:
        view = views[operand.name]
        shape, strides = view.shape, view.strides
        if of.group > 1 and operand.name in "QOL":
            shape = (shape[0], shape[1] // of.group, of.group, *shape[2:])
            strides = (strides[0], strides[1] * of.group, *strides[1:])
        order = [of.axes[operand.name].index(axis) for axis in operand.axes]
        view = replace(view, shape=tuple(shape[i] for i in order), strides=tuple(strides[i] for i in order))
        placed.append(view)
    scalars = (scale,) * len(plan.plan.scalars)
    return plan, plan.launch(placed, scalars, library), placed, scalars
