"""`kernsearch.transpose`, for NumPy arrays and for those on a device."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

from kernsearch import registry
from kernsearch.errors import ArrayError, DtypeError
from kernsearch.launch import itemsize
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.device import DevicePlan, view_on
from kernsearch.runtime.host import HostPlan, on_host, output
from kernsearch.runtime.libraries import Library
from kernsearch.runtime.strides import check_apart

from . import DTYPES


def transpose(x: Any, *, out: Any = None) -> Any:
    """A matrix with rows and columns exchanged, in memory: out[n, m] = x[m, n], bit for bit.

    x    NumPy array of float32, float64 or bfloat16 (ml_dtypes); or a CuPy array, PyTorch tensor, or what DLPack gives,
         of float32, float64, float16 or bfloat16. Two dimensions, (M, N), any strides
    out  where the result goes, (N, M), of x's dtype; may overlap x

    Returns `out` or a new array of x's library. Raises ArrayError (a ValueError) for shapes that do not fit and arrays
    in different places, DtypeError (a TypeError) for other or mixed dtypes, CompilerError when the first call finds no
    compiler. On a GPU it runs on the current stream and returns at once.
    """
    library = libraries.of(x) or libraries.of(out)
    if library is not None:
        return _on_device(x, out, library)
    x = on_host("x", x)
    dtype = x.dtype.newbyteorder("=")
    _fits(dtype.name, x.shape, "cpu")
    result = output(out, x.shape[::-1], dtype)
    if result.size:
        plan = runtime.load_problem(_problem(x.shape, dtype.name, "cpu"), runtime.device_of("cpu"))
        cast(HostPlan, plan).launch([x, result], ())
    return result


def _on_device(x: Any, out: Any, library: Library) -> Any:
    home = libraries.of(x)
    if home is None:
        raise ArrayError("x is in host memory, out is not: want both in one place")
    taken = home.taken(x)
    view, dtype, device = home.view("x", taken)
    _fits(dtype, view.shape, "cuda")
    turned = view.shape[::-1]
    result = out
    if out is None:
        nbytes = math.prod(turned) * itemsize(dtype)
        result = _room(home, taken, turned, nbytes, device)
    into, found = view_on("out", result, device)
    if found != dtype:
        raise DtypeError(f"out is {found}: want {dtype}; nothing is converted")
    if into.shape != turned:
        raise ArrayError(f"out has shape {into.shape}: want {turned}")
    check_apart("out", turned, into.strides, 1)
    if math.prod(turned):
        plan = runtime.load_problem(_problem(view.shape, dtype, "cuda"), runtime.device_of(f"cuda:{device}"))
        cast(DevicePlan, plan).launch([view, into], (), library)
    return home.given(result, x) if out is None else result


def _room(home: Library, like: Any, shape: tuple[int, ...], nbytes: int, device: int) -> Any:
    return libraries.room(home.empty, like, shape, what=f"a result of {nbytes} bytes", device=device)


def _fits(dtype: str, shape: tuple[int, ...], backend: str) -> None:
    if dtype not in DTYPES[backend]:
        raise DtypeError(f"x is {dtype}: want {', '.join(DTYPES[backend])}; nothing is converted")
    if len(shape) != 2:
        raise ArrayError(f"x has shape {shape}: want two dimensions")


@lru_cache(maxsize=4096)
def _problem(shape: tuple[int, int], dtype: str, backend: str) -> Problem:
    return registry.op("transpose").problem(shape, dtype, backend=backend)
