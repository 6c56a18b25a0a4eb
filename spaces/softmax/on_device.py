"""Softmax for arrays on a device: one launch for all rows where they lie at one distance from each other."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from kernsearch import registry
from kernsearch.errors import ArrayError, DtypeError
from kernsearch.launch import ArrayView, contiguous, itemsize
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.again import Asked
from kernsearch.runtime.device import Bound, DevicePlan, view_on
from kernsearch.runtime.libraries import BY_TYPE, Library
from kernsearch.runtime.strides import check_apart, overlap
from kernsearch.runtime.views import broadcast, span

from . import DTYPES
from .shapes import MOST_MATRICES, STRETCHED, matrices

Views = dict[str, ArrayView]


def call(
    op: str, arrays: dict[str, Any], axis: int, options: dict[str, str], scalars: dict[str, float], out: Any, into: str,
    library: Library,
) -> Any:  # fmt: skip
    """As `public._call`, when one of the arrays is on a device; `library` is that of the first such one."""
    from .public import axis_of

    first = next(iter(arrays))
    how = (op, tuple(arrays), type(axis), axis, *sorted(options.items()), *sorted(scalars.items()))
    asked = Asked(BY_TYPE.get(type(arrays[first])), tuple(arrays.values()), out, *how)
    if (done := asked.again()) is not None:
        return done
    home = libraries.of(arrays[first])
    if home is None:
        raise ArrayError(f"{first.lower()} is in host memory, another array is not: want all in one place")
    view, dtype, device = home.view(first.lower(), home.taken(arrays[first]))
    if dtype not in DTYPES["cuda"]:
        raise DtypeError(f"{first.lower()} is {dtype}: want {', '.join(DTYPES['cuda'])}; nothing is converted")
    views = {first: view}
    for name in list(arrays)[1:]:
        views[name] = _other(name, arrays[name], view.shape, dtype, device)
    result = out
    if out is None:
        nbytes = math.prod(view.shape) * itemsize(dtype)
        like = home.taken(arrays[first])
        result = libraries.room(home.empty, like, view.shape, what=f"a result of {nbytes} bytes", device=device)
    views[into] = _checked("out", result, view.shape, dtype, device)
    check_apart("out", view.shape, views[into].strides, 1)
    where = axis_of(axis, len(view.shape))
    if math.prod(view.shape):
        if not view.shape:
            views, where = {name: replace(v, shape=(1,), strides=(1,)) for name, v in views.items()}, 0
        run = _Run(op, dtype, tuple(sorted(options.items())), scalars, into, home, device)
        if (ran := run(views, where)) is not None:
            asked.learn(*ran, {name: i for i, name in enumerate(arrays)}, tuple(view.shape), result, tuple(arrays))
    return home.given(result, arrays[first]) if out is None else result


class _Run:
    """How a call is made, but for where its arrays lie."""

    def __init__(self, op: str, dtype: str, options: tuple[tuple[str, str], ...], scalars: dict[str, float], into: str,
                 library: Library, device: int):  # fmt: skip
        self.op, self.dtype, self.options, self.scalars = op, dtype, options, scalars
        self.into, self.library, self.device = into, library, device

    def __call__(
        self, views: Views, axis: int
    ) -> tuple[DevicePlan, Bound | None, list[ArrayView], tuple[float, ...]] | None:
        """All rows; when it was one launch, how it went, as `Asked.learn` wants it."""
        split = matrices({name: (v.shape, v.strides) for name, v in views.items()}, axis)
        if split.count > MOST_MATRICES or (split.count > 1 and self._clash(views)):
            self._copied(views, axis)
            return None
        where = runtime.device_of(f"cuda:{self.device}")
        problem = _problem(self.op, (split.rows, split.columns), self.dtype, (("layout", split.layout), *self.options))
        plan = cast(DevicePlan, runtime.load_problem(problem, where))
        names = [operand.name for operand in plan.plan.operands]
        values = tuple(self.scalars[name] for name in plan.plan.scalars)
        inputs = tuple(name for name in names if name != self.into)
        for offsets in split.offsets(names):
            placed = [
                ArrayView(v.address + offset * v.itemsize, split.shape, split.strides[name], v.itemsize)
                for name, offset, v in ((n, o, views[n]) for n, o in zip(names, offsets, strict=True))
            ]
            bound = plan.launch(placed, values, self.library, elementwise=inputs)
        return (plan, bound, placed, values) if split.count == 1 else None

    def _clash(self, views: Views) -> bool:
        """Could one launch write what a later one reads?"""
        out = views[self.into]
        others = (v for name, v in views.items() if name != self.into)
        return any(
            overlap(out.address, span(out), v.address, span(v)) and (v.address, v.strides) != (out.address, out.strides)
            for v in others
        )

    def _copied(self, views: Views, axis: int) -> None:
        """By way of contiguous copies whose rows are the last axis."""
        from kernsearch.backends.cuda import copies

        def moved(view: ArrayView) -> ArrayView:
            order = [*(i for i in range(len(view.shape)) if i != axis), axis]
            return replace(
                view, shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order)
            )

        with copies.on_stream(self.library.stream(self.device), self.device):
            made = {
                name: copies.contiguous(moved(v), self.device, values=name != self.into) for name, v in views.items()
            }
            placed = {}
            for name, copy in made.items():
                shape = moved(views[name]).shape
                placed[name] = ArrayView(copy.data.ptr, shape, contiguous(shape), views[name].itemsize)
            self(placed, len(placed[self.into].shape) - 1)
            copies.into(moved(views[self.into]), made[self.into], self.device)


def _other(name: str, array: Any, shape: tuple[int, ...], dtype: str, device: int) -> ArrayView:
    if name == "mask":
        array, dtype = _as_bytes(array), "uint8"
    view, found = view_on(name.lower(), array, device)
    if found != dtype:
        raise DtypeError(f"{name.lower()} is {found}: want {dtype}; nothing is converted")
    if name not in STRETCHED and view.shape != shape:
        raise ArrayError(f"{name.lower()} has shape {view.shape}: want {shape}")
    stretched = broadcast(view, shape)
    if stretched is None:
        raise ArrayError(f"{name.lower()} has shape {view.shape}: want {shape}, or one that broadcasts to it")
    return stretched


def _as_bytes(mask: Any) -> Any:
    """A boolean array's memory as bytes. Raises DtypeError for any other dtype."""
    library = libraries.of(mask)
    if library is None:
        return mask  # the next look says that it is in host memory
    mask = library.taken(mask)
    if str(mask.dtype).rpartition(".")[2] != "bool":
        raise DtypeError(f"mask is {mask.dtype}: want bool, True takes part")
    return mask.view(sys.modules["torch"].uint8 if library.name == "PyTorch" else "uint8")


def _checked(name: str, array: Any, shape: tuple[int, ...], dtype: str, device: int) -> ArrayView:
    view, found = view_on(name, array, device)
    if found != dtype:
        raise DtypeError(f"{name} is {found}: want {dtype}; nothing is converted")
    if view.shape != shape:
        raise ArrayError(f"{name} has shape {view.shape}: want {shape}")
    return view


@lru_cache(maxsize=4096)
def _problem(op: str, shape: tuple[int, int], dtype: str, options: tuple[tuple[str, str], ...]) -> Problem:
    return registry.op(op).problem(shape, dtype, backend="cuda", **dict(options))
