"""`kernsearch.matmul`: gemm with the manners of np.matmul. NumPy arrays here, those on a device in `on_device`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np

from kernsearch.errors import ArrayError, DtypeError, ProblemError
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.host import HostPlan, checked, learn, on_host, output
from kernsearch.runtime.strides import collapsed

from . import ACTIVATIONS, OP, on_device

_DTYPES = OP.dtypes["cpu"]
_NAMES = ("A", "B", "bias", "C", "D")  # of the textbook program: a, b, bias, c, out
_SCALARS = {"alpha": 6, "beta": 7}  # where they are among the arguments

_ARRAY = np.ndarray


def matmul(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    out: Any = None,
) -> Any:
    """activation(alpha * a @ b + bias + beta * c), with the shapes of np.matmul.

    a, b        NumPy arrays of float32, float64 or bfloat16 (that of ml_dtypes; sums in float32); or on one GPU CuPy
                arrays, PyTorch tensors, or what DLPack gives, of bfloat16, float16 or float32. All arrays are of one
                dtype and in one place. Any strides; 1-D operands and leading dimensions as in np.matmul. Zero sizes
                are fine: an empty sum is 0.
    bias        one value a column, shape (N,)
    activation  relu, gelu (the erf form), gelu_tanh or silu; NaN stays NaN
    c           broadcast to the result's shape; beta = 0, the default, does not look at it
    out         where the result goes, of its shape and dtype; may be or overlap any input

    Returns `out` or a new array of the library that `a` is of. Raises ArrayError (a ValueError) for shapes that do not
    fit and arrays in different places, DtypeError (a TypeError) for other or mixed dtypes, ProblemError for anything
    else, CompilerError when the first call finds no compiler, DeviceError when the device has no memory left.

    On a GPU it runs on the current stream, CuPy's or for tensors PyTorch's, and returns at once; results and workspace
    come from that library's pool. It may be captured into a CUDA graph when the same call was made before.
    """
    if type(a) is _ARRAY:
        result = runtime.memory.call(a, b, bias, c, out, activation, alpha, beta)
        if result is not None:
            return result
    arguments = (a, b, bias, c, out, activation, alpha, beta)
    if not (type(alpha) is type(beta) is float):
        alpha, beta = runtime.number("alpha", alpha), runtime.number("beta", beta)
        return matmul(a, b, bias=bias, activation=activation, alpha=alpha, beta=beta, c=c, out=out)
    if beta == 0:
        c = None
    elif c is None:
        raise ArrayError(f"beta = {beta:g} without c: want the array that it scales")
    if not (type(a) is type(b) is _ARRAY) and (library := libraries.of(a) or _elsewhere(b, bias, c, out)):
        return on_device.matmul(a, b, bias, activation, alpha, beta, c, out, library)
    return _matmul(a, b, bias, activation, alpha, beta, c, out, arguments)


def _elsewhere(*arrays: Any) -> libraries.Library | None:
    """The library of the first array that is on a device."""
    return next(filter(None, map(libraries.of, arrays)), None)


def _matmul(
    a: Any, b: Any, bias: Any, activation: Any, alpha: Any, beta: Any, c: Any, out: Any, arguments: Any
) -> np.ndarray:  # fmt: skip
    """Any arrays at all: check them, bring them to two dimensions, find the plan, and remember simple calls, by their
    arguments."""
    if not all(x is None or type(x) is _ARRAY for x in (bias, c, out)) and (library := _elsewhere(bias, c, out)):
        return on_device.matmul(a, b, bias, activation, alpha, beta, c, out, library)  # says that a is not there
    a, b = _operand("a", a), _operand("b", b)
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("="):
        raise DtypeError(f"a is {a.dtype}, b is {b.dtype}: want the same dtype; nothing is converted")
    dtype = a.dtype.newbyteorder("=")
    if activation not in (None, "none", *ACTIVATIONS):
        raise ProblemError(f"activation {activation!r}: want one of {', '.join(ACTIVATIONS)}")
    a2 = a if a.ndim > 1 else a[np.newaxis, :]
    b2 = b if b.ndim > 1 else b[:, np.newaxis]
    batch, (m, n, k) = _sizes(a2, b2, a, b)
    shape = (*batch, *((m,) if a.ndim > 1 else ()), *((n,) if b.ndim > 1 else ()))
    result = output(out, shape, dtype)
    bias = None if bias is None else checked("bias", on_host("bias", bias), (n,), dtype)
    c = None if c is None else _addend(c, shape, dtype)
    if result.size == 0:
        return result
    if k == 0:  # a sum of nothing equals one of a single zero, whatever alpha is
        a2, b2 = np.broadcast_to(dtype.type(0), (*batch, m, 1)), np.zeros((1, n), dtype)
        alpha, k, arguments = 1.0, 1, None
    given = [a2, b2, bias, None if c is None else _lifted(c, a, b), _lifted(result, a, b)]
    if batch and b2.ndim == 2 and (rows := _as_rows(given)) is not None:
        given, batch, m, arguments = rows, (), rows[0].shape[0], None
    letters = _letter(given[0]) + _letter(given[1])
    plan = _plan((m, n, k), dtype.name, letters, _epilogue(bias is not None, activation, c is not None))
    order = tuple(_NAMES.index(operand.name) for operand in plan.plan.operands)
    turned = tuple(operand.extents in (("K", "M"), ("N", "K")) for operand in plan.plan.operands)
    scalars = tuple({"alpha": alpha, "beta": beta}[name] for name in plan.plan.scalars)
    arrays = [_turned(given[i], turn) for i, turn in zip(order, turned, strict=True)]
    if batch:
        plan.launch_each(arrays, batch, scalars)
    else:
        plan.launch(arrays, scalars, elementwise=("C",))
        if arguments is not None and (shape or out is not None):
            same = c is not None and given[3].strides == given[4].strides
            learn(arguments, plan.remembered(arrays), order, order.index(4),
                  [_SCALARS[name] for name in plan.plan.scalars], (shape, dtype),
                  in_place=order.index(3) if same else -1)  # fmt: skip
    return result if shape or out is not None else result[()]


def _operand(name: str, array: Any) -> np.ndarray:
    array = on_host(name, array)
    if array.dtype.name not in _DTYPES:
        raise DtypeError(f"{name} is {array.dtype}: want {' or '.join(_DTYPES)}; nothing is converted")
    if array.ndim == 0:
        raise ArrayError(f"{name} has no dimensions: want at least one; for a scalar, use *")
    return array


def _sizes(
    a2: np.ndarray, b2: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Leading dimensions of the result, and (M, N, K)."""
    if a2.shape[-1] != b2.shape[-2]:
        raise ArrayError(f"a {a.shape} and b {b.shape}: want as many columns of a as rows of b")
    try:
        batch = np.broadcast_shapes(a2.shape[:-2], b2.shape[:-2])
    except ValueError as error:
        raise ArrayError(f"a {a.shape} and b {b.shape}: leading dimensions do not broadcast") from error
    return batch, (a2.shape[-2], b2.shape[-1], a2.shape[-1])


def _addend(c: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return checked("c", np.broadcast_to(on_host("c", c), shape), shape, dtype)
    except ValueError as error:
        raise ArrayError(f"c has shape {np.shape(c)}: want {shape}, or one that broadcasts to it") from error


def _lifted(array: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A result-shaped array with the rows or columns back that a 1-D operand does not have."""
    if b.ndim == 1:
        array = array[..., np.newaxis]
    return array[..., np.newaxis, :] if a.ndim == 1 else array


def _as_rows(given: list[Any]) -> list[Any] | None:
    """[a, b, bias, c, out] with the leading dimensions of a, c and out folded into rows, when that needs no copy."""
    a, b, bias, c, out = given
    folded = [None if x is None else collapsed(x) for x in (a, c, out)]
    if folded[0] is None or folded[2] is None or (c is not None and folded[1] is None):
        return None
    return [folded[0], b, bias, folded[1], folded[2]]


def _letter(array: np.ndarray) -> str:
    """t when columns are contiguous and rows are not, else n."""
    rows, columns = array.strides[-2:]
    m, n = array.shape[-2:]
    return "t" if m > 1 and rows == array.itemsize and n > 1 and columns != array.itemsize else "n"


def _epilogue(bias: bool, activation: str | None, residual: bool) -> str:
    steps = ["bias"] * bias + [activation] * (activation not in (None, "none")) + ["residual"] * residual
    return ",".join(filter(None, steps)) or "none"


def _turned(array: np.ndarray, turn: bool) -> np.ndarray:
    return np.swapaxes(array, -1, -2) if turn else array


@lru_cache(maxsize=4096)
def _problem(shape: tuple[int, int, int], dtype: str, layout: str, epilogue: str) -> Problem:
    return OP.problem(shape, dtype, backend="cpu", layout=layout, epilogue=epilogue)


def _plan(shape: tuple[int, int, int], dtype: str, layout: str, epilogue: str) -> HostPlan:
    return cast(HostPlan, runtime.load_problem(_problem(shape, dtype, layout, epilogue), runtime.device_of("cpu")))
