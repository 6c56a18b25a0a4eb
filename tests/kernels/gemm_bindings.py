"""Bindings of gemm written by hand, and running a kernel plan on NumPy arrays: what tests of kernels share."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import erf, sqrt

import numpy as np

from kernsearch import backends
from kernsearch.backends.cpu import emit
from kernsearch.binding import Array, Binding, Field, Root
from kernsearch.namespace import numpy_dtype
from kernsearch.plan import KernelPlan
from kernsearch.sizes import evaluate
from kernsearch.worker.child import KsCall

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, TASK, ctypes.c_void_p)


def acc_of(dtype):
    """What a dtype is summed in."""
    return "float64" if dtype == "float64" else "float32"


def gemm_binding(layout="nn", epilogue="none", dtype="float32", *, batch=False, split=False):
    """The binding of a gemm, or of its slabs; epilogue as the command line spells it."""
    steps = set(epilogue.split(",")) - {"none"}
    b = ("b",) if batch else ()
    a_axes = b + (("m", "k") if layout[0] == "n" else ("k", "m"))
    b_axes = b + (("k", "n") if layout[1] == "n" else ("n", "k"))
    out = (*b, "m", "n")
    arrays = [Array("A", dtype, a_axes), Array("B", dtype, b_axes)]
    value, scalars = ("mul", ("scalar", "alpha"), ("acc", "acc")), ["alpha"]
    if split:
        value, scalars, out = ("acc", "acc"), [], ("s", *out)
    if "bias" in steps:
        arrays.append(Array("bias", dtype, ("n",)))
        value = ("add", value, ("load", "bias", ("n",)))
    if "residual" in steps:
        arrays.append(Array("C", dtype, out))
        value = ("add", value, ("weigh", ("scalar", "beta"), ("load", "C", out)))
        scalars.append("beta")
    for name in steps & set(ACTIVATIONS):
        value = (name, value)
    name = "P" if split else "D"
    arrays.append(Array(name, acc_of(dtype) if split else dtype, out))
    return Binding(
        template="gemm",
        groups={"B": b, "M": ("m",), "N": ("n",), "K": ("k",)},
        extents={"b": "BATCH", "m": "M", "n": "N", "k": "K", "s": "SPLIT"},
        operands={"A": ("load", "A", a_axes), "B": ("load", "B", b_axes)},
        roots=(Root(name, out, value),),
        arrays=tuple(arrays),
        scalars=tuple(scalars),
        acc=acc_of(dtype),
        slabs={"k": "s"} if split else {},
    )


def combine_binding(epilogue="none", dtype="float32"):
    """Adds up slabs and finishes: D = f(sum over s of P[s,m,n])."""
    whole = gemm_binding("nn", epilogue, dtype)
    arrays = [Array("P", acc_of(dtype), ("s", "m", "n")), *(a for a in whole.arrays if a.name not in "AB")]
    return Binding(
        template="combine",
        groups={"M": ("m",), "N": ("n",), "K": ("s",)},
        extents={"m": "M", "n": "N", "s": "SPLIT"},
        operands={},
        roots=whole.roots,
        arrays=tuple(arrays),
        scalars=whole.scalars,
        acc=acc_of(dtype),
        fields=(Field("acc", ("m", "n"), "sum", ("load", "P", ("s", "m", "n"))),),
    )


@cache
def device():
    return backends.get("cpu").device()


@dataclass(frozen=True)
class Built:
    binding: Binding
    plan: KernelPlan
    function: Callable


def build(binding, template, config):
    """Emitted, compiled by the backend and loaded; any work is worth another thread, so that small shapes have some."""
    template = replace(template, flags=(*template.flags, "-DKS_LEAST_SHARE=1"))
    plan = emit.kernel_plan(binding, template, config, device())
    compiled = backends.get("cpu").compile(plan, device(), timeout_s=120)
    return Built(binding, plan, ctypes.CDLL(str(compiled.path))[plan.entry])


def backwards():
    """A pool that runs the tasks one after the other, last one first: their order must not matter."""

    def run(_, threads, count, task, context):
        for index in reversed(range(count)):
            task(context, index)

    return PARALLEL(run)


def run(kernel: Built, arrays, sizes, scalars=None, *, threads=1, parallel=None, pool=None):
    """Run a plan on arrays (by name; strides as they are) with NaN in its scratch; red zones around the scratch."""
    names = {"THREADS": threads, "ITEMSIZE": next(iter(arrays.values())).itemsize, **sizes}
    names = {"BATCH": 1, "SPLIT": 1, **names}
    plan = kernel.plan
    for own in kernel.binding.arrays:
        array = arrays[own.name]
        for axis, stride in zip(own.axes, array.strides, strict=True):
            names[f"{own.name}.{axis}"] = stride // array.itemsize
    zone = 256
    scratch = np.full(evaluate(plan.scratch, names) + 2 * zone, 0xFF, np.uint8)
    pointers = [scratch.ctypes.data + zone if n == "scratch" else arrays[n].ctypes.data for n in plan.buffers]
    numbers = [evaluate(size, names) for size in plan.sizes]
    values = [(scalars or {}).get(name, {"alpha": 1.0, "beta": 1.0}.get(name)) for name in plan.scalars]
    call = KsCall(
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_int64 * len(numbers))(*numbers),
        (ctypes.c_double * max(1, len(values)))(*values),
        threads,
        ctypes.cast(parallel, ctypes.c_void_p) if parallel else None,
        pool,
    )
    kernel.function(ctypes.byref(call))
    assert (scratch[:zone] == 0xFF).all() and (scratch[len(scratch) - zone :] == 0xFF).all(), "wrote past its scratch"


def reference(arrays, epilogue, scalars):
    """The textbook gemm in float64; A and B as (.., M, K) and (.., K, N)."""
    steps = set(epilogue.split(","))
    with np.errstate(all="ignore"):
        value = scalars["alpha"] * (arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64))
        if "bias" in steps:
            value = value + arrays["bias"].astype(np.float64)
        if "residual" in steps and scalars["beta"] != 0:
            value = value + scalars["beta"] * arrays["C"].astype(np.float64)
        if "relu" in steps:
            value = np.where(value < 0, 0, value)
        if "gelu" in steps:
            value = 0.5 * value * (1 + np.vectorize(erf, otypes=[float])(value / sqrt(2)))
        if "gelu_tanh" in steps:
            value = 0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        if "silu" in steps:
            value = value / (1 + np.exp(-value))
    return value


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def problem(m, n, k, dtype="float32", batch=()):
    """Operands by name, D poisoned."""
    return {
        "A": numbers((*batch, m, k), dtype, 1),
        "B": numbers((*batch, k, n), dtype, 2),
        "C": numbers((*batch, m, n), dtype, 3),
        "bias": numbers((n,), dtype, 4),
        "D": np.full((*batch, m, n), np.nan, numpy_dtype(dtype)),
    }


def check(kernel, arrays, epilogue="none", scalars=None, *, threads=1, parallel=None, expected=None):
    """Run, and compare with the textbook in float64."""
    scalars = scalars or {"alpha": 1.0, "beta": 1.0}
    *batch, m, k = arrays["A"].shape
    n = arrays["B"].shape[-1]
    if expected is None:
        expected = reference(arrays, epilogue, scalars)
    sizes = {"M": m, "N": n, "K": k, "BATCH": batch[0] if batch else 1}
    run(kernel, arrays, sizes, scalars, threads=threads, parallel=parallel)
    narrow = arrays["D"].dtype.name == "bfloat16"
    unit = np.finfo("float32" if narrow else arrays["D"].dtype).eps
    with np.errstate(all="ignore"):
        magnitude = np.abs(arrays["A"].astype(float)) @ np.abs(arrays["B"].astype(float)) + 8 * np.abs(expected) + 8
    rounding = 2.0**-8 * np.abs(expected) if narrow else 0.0  # of the result, once
    error = np.abs(arrays["D"].astype(float) - expected)
    np.testing.assert_array_less(error, 4 * unit * np.sqrt(k + 1) * magnitude + rounding)


def before_a_guard(array):
    """A copy that ends where memory that must not be touched begins."""
    page = mmap.PAGESIZE
    whole = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, whole + page)
    base = np.frombuffer(memory, np.uint8).ctypes.data
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(base + whole), page, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, whole - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy
