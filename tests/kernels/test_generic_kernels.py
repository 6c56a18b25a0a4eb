from dataclasses import replace
from math import erfc, sqrt

import numpy as np
import pytest
from gemm_bindings import backwards, build, gemm_binding, run
from kernsearch.spaces.generic.templates import cpu as generic

from kernsearch.binding import Array, Binding, Field, Root

ROWS = {"ROWS": 2}
SIZES = {"a": 3, "b": 5, "c": 37, "d": 4}


def arrays_of(**axes):
    return tuple(Array(name, "float32", tuple(own)) for name, own in axes.items())


def binding_of(arrays, roots, *, fields=(), scalars=(), acc="float32", slabs=None, extents=None):
    axes = dict.fromkeys(axis for array in arrays for axis in array.axes)
    return Binding(
        template="",
        groups={},
        extents=extents or {axis: axis.upper() for axis in axes},
        operands={},
        roots=roots,
        arrays=arrays,
        scalars=scalars,
        acc=acc,
        fields=fields,
        slabs=slabs or {},
    )


def numbers(axes, seed):
    return np.random.default_rng(seed).standard_normal([SIZES[axis] for axis in axes]).astype("float32")


def run_all(binding, template, arrays, scalars=None, sizes=None):
    kernel = build(binding, template, {**ROWS, "SPLIT": 3})
    sizes = {axis.upper(): size for axis, size in SIZES.items()} | (sizes or {})
    run(kernel, arrays, sizes, scalars, threads=3, parallel=backwards())


def test_a_map_broadcasts_along_missing_axes_and_writes_every_output():
    x, y = ("load", "X", ("b", "a", "c")), ("load", "Y", ("b",))
    binding = binding_of(
        arrays_of(X="bac", Y="b", Z="abc", W="cb"),
        (
            Root("Z", ("a", "b", "c"), ("add", ("max", x, y), ("mul", ("scalar", "alpha"), ("const", 2.0)))),
            Root("W", ("c", "b"), ("relu", ("sub", y, ("const", 0.5)))),
        ),
        scalars=("alpha",),
    )
    arrays = {"X": numbers("bac", 1), "Y": numbers("b", 2)}
    arrays["X"][1, 2, 3] = np.nan
    arrays |= {name: np.full([SIZES[a] for a in axes], np.nan, "float32") for name, axes in (("Z", "abc"), ("W", "cb"))}
    run_all(binding, generic.MAP, arrays, {"alpha": 0.25})
    want = np.maximum(arrays["X"], arrays["Y"][:, None, None]).transpose(1, 0, 2) + np.float32(0.5)
    np.testing.assert_array_equal(arrays["Z"], want)
    np.testing.assert_array_equal(arrays["W"], np.broadcast_to(np.maximum(arrays["Y"] - 0.5, 0), (37, 5)))


def test_a_reduction_computes_fields_that_need_earlier_fields():
    """Statistics of softmax over two axes at once, and the sum of a row."""
    x = ("load", "X", ("a", "c", "d"))
    binding = binding_of(
        arrays_of(X="acd", L="a", S="a"),
        (
            Root("L", ("a",), ("add", ("acc", "m"), ("log", ("acc", "l")))),
            Root("S", ("a",), ("acc", "t")),
        ),
        fields=(
            Field("m", ("a",), "max", x),
            Field("l", ("a",), "sum", ("exp", ("shift", x, ("field", "m")))),
            Field("t", ("a",), "sum", x),
        ),
    )
    arrays = {"X": numbers("acd", 3) + 1000}
    arrays["X"][1, 2, 3] = -np.inf
    arrays |= {"L": np.full(3, np.nan, "float32"), "S": np.full(3, np.nan, "float32")}
    run_all(binding, generic.REDUCE, arrays)
    whole = arrays["X"].astype(float)
    top = whole.max((1, 2))
    np.testing.assert_allclose(arrays["L"], top + np.log(np.exp(whole - top[:, None, None]).sum((1, 2))), rtol=1e-6)
    np.testing.assert_allclose(arrays["S"], whole.sum((1, 2)), rtol=1e-5)


def test_a_masked_reduction_sees_only_what_the_mask_leaves():
    """Along the columns of the output, along the reduced axis, and over a row that is masked altogether."""
    masked = ("mask", ("load", "X", ("c", "b")), "c", "b", "OFF")
    binding = binding_of(
        arrays_of(X="cb", Y="c"),
        (Root("Y", ("c",), ("acc", "m")),),
        fields=(Field("m", ("c",), "max", masked),),
        extents={"b": "B", "c": "C", "off": "OFF"},
    )
    for off in (-2, 0, 3):
        arrays = {"X": numbers("cb", 4), "Y": np.full(37, np.nan, "float32")}
        run_all(binding, generic.REDUCE, arrays, sizes={"OFF": off})
        keep = np.arange(5)[None, :] <= np.arange(37)[:, None] + off
        np.testing.assert_array_equal(arrays["Y"], np.where(keep, arrays["X"], -np.inf).max(1))


def test_a_maximum_propagates_nan_and_of_nothing_is_minus_infinity():
    binding = binding_of(
        arrays_of(X="bc", Y="c"),
        (Root("Y", ("c",), ("acc", "m")),),
        fields=(Field("m", ("c",), "max", ("load", "X", ("b", "c"))),),
    )
    arrays = {"X": numbers("bc", 5), "Y": np.full(37, np.nan, "float32")}
    arrays["X"][2, 7] = np.nan
    run_all(binding, generic.REDUCE, arrays)
    np.testing.assert_array_equal(arrays["Y"], np.max(arrays["X"], 0))
    arrays["X"] = arrays["X"][:0]
    run_all(binding, generic.REDUCE, arrays, sizes={"B": 0})
    assert (arrays["Y"] == -np.inf).all()


def test_a_reduction_may_be_cut_into_slabs():
    binding = binding_of(
        arrays_of(X="cb", P="sb"),
        (Root("P", ("s", "b"), ("acc", "t")),),
        fields=(Field("t", ("s", "b"), "sum", ("load", "X", ("c", "b"))),),
        slabs={"c": "s"},
        extents={"b": "B", "c": "C", "s": "SPLIT"},
    )
    arrays = {"X": numbers("cb", 6), "P": np.full((3, 5), np.nan, "float32")}
    run_all(binding, generic.REDUCE, arrays, sizes={"SPLIT": 3})
    want = [arrays["X"][s * 13 : (s + 1) * 13].sum(0) for s in range(3)]
    np.testing.assert_allclose(arrays["P"], want, rtol=1e-5, atol=1e-5)


def test_a_reduction_to_one_number_works():
    binding = binding_of(
        (*arrays_of(X="c"), Array("Y", "float32", ())),
        (Root("Y", (), ("acc", "t")),),
        fields=(Field("t", (), "sum", ("load", "X", ("c",))),),
    )
    arrays = {"X": numbers("c", 7), "Y": np.full((), np.nan, "float32")}
    run_all(binding, generic.REDUCE, arrays)
    np.testing.assert_allclose(arrays["Y"], arrays["X"].sum(), rtol=1e-5)


def test_one_array_may_be_read_with_two_names_for_an_axis():
    """D[m,n] = sum over k of X[m,k] * X[n,k]."""
    base = gemm_binding()
    binding = replace(
        base,
        operands={"A": ("load", "X", ("m", "k")), "B": ("load", "X", ("n", "k"))},
        arrays=(Array("X", "float32", ("m", "k")), Array("D", "float32", ("m", "n"))),
        roots=(Root("D", ("m", "n"), ("acc", "acc")),),
        scalars=(),
    )
    x = np.random.default_rng(8).standard_normal((19, 23)).astype("float32")
    arrays = {"X": x, "D": np.full((19, 19), np.nan, "float32")}
    run(build(binding, generic.CONTRACTION, ROWS), arrays, {"M": 19, "N": 19, "K": 23})
    np.testing.assert_allclose(arrays["D"], x @ x.T, rtol=0, atol=1e-5)


def gelu_tanh(x):
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    return 0.5 * x * np.vectorize(erfc)(-x / sqrt(2))  # the textbook form cancels on the left


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "neg": np.negative,
    "relu": lambda x: np.where(x < 0, 0, x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions_are_as_exact_as_their_header_says(dtype):
    names = sorted(FUNCTIONS)
    size = 400_000 if dtype == "float32" else 4_000
    arrays = (Array("X", dtype, ("i",)), *(Array(name, dtype, ("i",)) for name in names))
    roots = tuple(Root(name, ("i",), (name, ("load", "X", ("i",)))) for name in names)
    kernel = build(binding_of(arrays, roots, acc=dtype), generic.MAP, ROWS)
    magnitude = np.logspace(-30, 2.1, size // 4)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -103.9, -104.1, 1e20, -1e20]
    x = np.concatenate([magnitude, -magnitude, np.linspace(-12, 12, size // 2), special]).astype(dtype)
    values = {"X": x, **{name: np.full(len(x), 7, dtype) for name in names}}
    run(kernel, values, {"I": len(x)})
    for name in names:
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](x.astype(np.float64))
            rounded = want.astype(dtype)
            scale = np.maximum(np.abs(want), 1e-30 if dtype == "float32" else 1e-300)
            error = np.abs(values[name].astype(np.float64) - want) / scale
        np.testing.assert_array_equal(np.isnan(values[name]), np.isnan(want), err_msg=name)
        np.testing.assert_array_equal(np.isinf(values[name]), np.isinf(rounded), err_msg=name)
        allowed = np.full(len(x), 6e-7 if dtype == "float32" else 1e-14)
        if name.startswith("gelu"):  # an error of x counts more and more where the result vanishes
            allowed = np.where(x < -2, np.minimum(allowed * np.abs(x.astype(float)) ** 3, 1), allowed)
        finite = np.isfinite(rounded)
        over = finite & ~(error <= allowed)
        assert not over.any(), (name, x[over][:3], values[name][over][:3], want[over][:3])
