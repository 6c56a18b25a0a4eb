"""`kernsearch.softmax`, `log_softmax` and `softmax_backward`: NumPy arrays here, those on a device in `on_device`."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, cast

import numpy as np

from kernsearch import registry
from kernsearch.backends.cpu.call import address_of
from kernsearch.errors import ArrayError, DtypeError
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.host import HostPlan, on_host, output

from . import DTYPES, on_device
from .shapes import MOST_MATRICES, STRETCHED, matrices

_ARRAY = np.ndarray
Named = dict[str, Any]  # arrays by the name of the operand


def softmax(x: Any, axis: int = -1, *, scale: float = 1.0, mask: Any = None, bias: Any = None, out: Any = None) -> Any:
    """exp(s) / sum of exp(s) along an axis, with s = scale * x + bias where the mask is true.

    x      NumPy array of float32, float64 or bfloat16 (ml_dtypes); or a CuPy array, PyTorch tensor, or what DLPack
           gives, of bfloat16, float16, float32 or float64. Any strides. Statistics of 16-bit types are float32.
    mask   booleans that broadcast to x's shape: True takes part. What is left out does not matter, NaN included
    bias   of x's dtype, broadcast to its shape
    out    where the result goes, of x's shape and dtype; may be x, or overlap any input

    A row that is left out or -inf all over gives zeros; a row with +inf or NaN gives NaN. Zero sizes are fine. Returns
    `out` or a new array of x's library. Raises ArrayError (a ValueError) for shapes that do not fit and arrays in
    different places, DtypeError (a TypeError) for other or mixed dtypes, ProblemError for a scale that is no number,
    CompilerError when the first call finds no compiler. On a GPU it runs on the current stream and returns at once.
    """
    return _forward("softmax", x, axis, scale, mask, bias, out)


def log_softmax(
    x: Any, axis: int = -1, *, scale: float = 1.0, mask: Any = None, bias: Any = None, out: Any = None
) -> Any:
    """The logarithm of `softmax`, arguments alike: -inf for what is left out, and for a row left out all over."""
    return _forward("log", x, axis, scale, mask, bias, out)


def softmax_backward(dy: Any, y: Any, axis: int = -1, *, log: bool = False, out: Any = None) -> Any:
    """The gradient of softmax's input: y * (dy - sum of dy * y along the axis), y being what softmax returned.

    `log`: y is what log_softmax returned, and the result dy - exp(y) * sum of dy. Arrays, `out` and errors as of
    `softmax`, whose scale is not applied: multiply by it.
    """
    op = "log_softmax_backward" if log else "softmax_backward"
    return _call(op, {"DY": dy, "Y": y}, axis, {}, {}, out, "DX")


def _forward(result: str, x: Any, axis: int, scale: float, mask: Any, bias: Any, out: Any) -> Any:
    scale = scale if type(scale) is float else runtime.number("scale", scale)
    steps = ["scale"] * (scale != 1) + ["bias"] * (bias is not None) + ["mask"] * (mask is not None)
    options = {"result": result, "prologue": ",".join(steps) or "none"}
    arrays = {name: array for name, array in (("X", x), ("bias", bias), ("mask", mask)) if array is not None}
    return _call("softmax", arrays, axis, options, {"scale": scale}, out, "Y")


def _call(
    op: str, arrays: Named, axis: int, options: dict[str, str], scalars: dict[str, float], out: Any, into: str
) -> Any:
    library = next(filter(None, map(libraries.of, (*arrays.values(), out))), None)
    if library is not None:
        return on_device.call(op, arrays, axis, options, scalars, out, into, library)
    first, *others = arrays
    x = arrays[first] = _operand(first, arrays[first])
    dtype, shape = x.dtype.newbyteorder("="), x.shape
    for name in others:
        arrays[name] = _other(name, arrays[name], shape, dtype)
    result = output(out, shape, dtype)
    where = axis_of(axis, len(shape))
    if not result.size:
        return result
    if not shape:  # a scalar is a row of one
        arrays = {name: array.reshape(1) for name, array in arrays.items()}
        result, where = result.reshape(1), 0
    _run(op, {**arrays, into: result}, where, options, scalars, into)
    return result if shape or out is not None else result[0]


def _run(op: str, arrays: Named, axis: int, options: dict[str, str], scalars: dict[str, float], into: str) -> None:
    """Whole matrices, one after the other where rows do not lie at one distance from each other."""
    split = matrices({name: (a.shape, a.strides) for name, a in arrays.items()}, axis)
    if split.count > 1:
        apart = {name: a if name == into else _apart(a, arrays[into]) for name, a in arrays.items()}
        if any(apart[name] is not a for name, a in arrays.items()):  # a copy has strides of its own
            _run(op, apart, axis, options, scalars, into)
            return
    if split.count > MOST_MATRICES:
        moved = {name: np.ascontiguousarray(np.moveaxis(a, axis, -1)) for name, a in arrays.items()}
        _run(op, moved, arrays[into].ndim - 1, options, scalars, into)
        arrays[into][...] = np.moveaxis(moved[into], -1, axis)
        return
    plan = _plan(op, split.rows, split.columns, arrays[into].dtype.name, split.layout, tuple(sorted(options.items())))
    names = [operand.name for operand in plan.plan.operands]
    values = tuple(scalars[name] for name in plan.plan.scalars)
    inputs = tuple(name for name in names if name != into)
    for offsets in split.offsets(names):
        views = []
        for name, offset in zip(names, offsets, strict=True):
            views.append(_view(arrays[name], split.shape, split.strides[name], offset))
        plan.launch(views, values, elementwise=inputs)


def _apart(array: np.ndarray, result: np.ndarray) -> np.ndarray:
    """An input, copied where one launch could write what the next one reads."""
    same = address_of(array) == address_of(result) and array.strides == result.strides
    return array if same or not np.may_share_memory(array, result) else array.copy(order="K")


def _view(array: np.ndarray, shape: tuple[int, int], strides: tuple[int, int], offset: int) -> np.ndarray:
    """A matrix within an array, `offset` bytes after its first element."""
    if (
        not offset
        and array.shape == shape
        and all(n == 1 or mine == wanted for n, mine, wanted in zip(shape, array.strides, strides, strict=True))
    ):
        return array
    return _Placed(array, shape, strides, offset).view()


class _Placed:
    """A part of an array by shape, strides and offset in bytes, which stays writable and keeps the array alive."""

    def __init__(self, array: np.ndarray, shape: tuple[int, int], strides: tuple[int, int], offset: int):
        self._array = array
        about = dict(array.__array_interface__)
        address, read_only = about["data"]
        self._dtype = array.dtype
        kind = f"|V{array.dtype.itemsize}" if array.dtype.kind == "V" else array.dtype.str
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": kind, "strides": strides, "data": (address + offset, read_only),
        }  # fmt: skip

    def view(self) -> np.ndarray:
        return np.asarray(self).view(self._dtype)


def axis_of(axis: int, dimensions: int) -> int:
    """The axis as a number from 0 on. Raises ArrayError."""
    try:
        at = operator.index(axis)
    except TypeError as error:
        raise ArrayError(f"axis {axis!r}: want a whole number") from error
    most = max(dimensions, 1)
    if not -most <= at < most:
        raise ArrayError(f"axis {at}: x has {dimensions} dimensions, want one from {-most} to {most - 1}")
    return at % most


def _operand(name: str, array: Any) -> np.ndarray:
    array = on_host(name.lower(), array)
    if array.dtype.newbyteorder("=").name not in DTYPES["cpu"]:
        raise DtypeError(f"{name.lower()} is {array.dtype}: want {', '.join(DTYPES['cpu'])}; nothing is converted")
    return array


def _other(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = on_host(name.lower(), array)
    if name == "mask":
        if array.dtype != np.bool_:
            raise DtypeError(f"mask is {array.dtype}: want bool, True takes part")
        array, dtype = array.view(np.uint8), np.dtype(np.uint8)
    if array.dtype.newbyteorder("=") != dtype:
        raise DtypeError(f"{name.lower()} is {array.dtype}: want {dtype}; nothing is converted")
    if name not in STRETCHED and array.shape != shape:
        raise ArrayError(f"{name.lower()} has shape {array.shape}: want {shape}")
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ArrayError(
            f"{name.lower()} has shape {array.shape}: want {shape}, or one that broadcasts to it"
        ) from error


@lru_cache(maxsize=4096)
def _problem(op: str, shape: tuple[int, int], dtype: str, options: tuple[tuple[str, str], ...]) -> Problem:
    return registry.op(op).problem(shape, dtype, backend="cpu", **dict(options))


def _plan(op: str, rows: int, columns: int, dtype: str, layout: str, options: tuple[tuple[str, str], ...]) -> HostPlan:
    problem = _problem(op, (rows, columns), dtype, (("layout", layout), *options))
    return cast(HostPlan, runtime.load_problem(problem, runtime.device_of("cpu")))
