"""The generic kernels on CUDA: on the host always, threads one after the other, and on a GPU where there is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_plans import OnGpu, OnHost, dtype_of, nominal, plan_of
from gemm_bindings import combine_binding, gemm_binding, reference
from kernsearch.spaces.generic.templates import cuda as generic
from test_generic_kernels import FUNCTIONS, SIZES, arrays_of, binding_of, numbers

from kernsearch.binding import Array, Field, Root
from kernsearch.derive import explore
from kernsearch.meaning import interpret
from kernsearch.program.sketch import Sketch

EACH, FOUR = {"TM": 4, "TN": 4}, {"TM": 8, "TN": 1}


@pytest.fixture(params=["host", "backwards", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "gpu":
        return OnGpu(request.getfixturevalue("gpu"))
    return OnHost(nominal(), backwards=request.param == "backwards")


def run(place, binding, template, config, arrays, scalars=None, **more):
    return place.run(plan_of(binding, template, config, place.device), binding, arrays, scalars, **more)


def of(name, shape, seed, dtype):
    return np.random.default_rng([seed, *map(ord, name)]).standard_normal(shape).astype(dtype_of(dtype))


def unwritten(shape, dtype="float32"):
    return np.full(shape, np.nan, dtype_of(dtype))


def narrow(binding, dtype):
    """The same with arrays of another dtype, all but partial sums; sums stay in float32."""
    return replace(binding, arrays=tuple(a if a.name == "P" else replace(a, dtype=dtype) for a in binding.arrays))


def close(got, want, dtype, scale=1.0):
    step = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=step, atol=step * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_contraction_reads_any_layout_and_finishes_as_the_hole_says(place, layout, dtype):
    acc = dtype if dtype == "float64" else "float32"
    binding = narrow(gemm_binding(layout, "bias,residual,gelu", acc, batch=True), dtype)
    m, n, k = 5, 13, 37
    a, b = of("A", (2, m, k), 1, dtype), of("B", (2, k, n), 2, dtype)
    arrays = {"A": a, "B": b, "bias": of("bias", n, 3, dtype), "C": of("C", (2, m, n), 4, dtype)}
    want = reference(arrays, "bias,residual,gelu", {"alpha": 0.5, "beta": -2.0})
    if layout == "tt":
        arrays |= {x: np.ascontiguousarray(arrays[x].swapaxes(1, 2)) for x in "AB"}
    arrays["D"] = unwritten((2, m, n), dtype)
    run(place, binding, generic.CONTRACTION, EACH, arrays, {"alpha": 0.5, "beta": -2.0})
    close(arrays["D"], want, dtype, 4)


def test_a_weight_of_zero_reads_nothing(place):
    binding = narrow(gemm_binding("nn", "residual"), "bfloat16")
    arrays = {"A": of("A", (3, 8), 1, "bfloat16"), "B": of("B", (8, 9), 2, "bfloat16")}
    arrays |= {"C": unwritten((3, 9), "bfloat16"), "D": unwritten((3, 9), "bfloat16")}
    run(place, binding, generic.CONTRACTION, EACH, arrays, {"alpha": 1.0, "beta": 0.0}, missing=("C",))
    close(arrays["D"], arrays["A"].astype(float) @ arrays["B"].astype(float), "bfloat16", 4)


def test_strides_are_the_callers_negative_ones_too(place):
    binding = gemm_binding("nn", "none")
    room = {"A": of("A", (6, 40), 1, "float32"), "B": of("B", (40, 33), 2, "float32"), "D": unwritten((12, 33))}
    arrays = {"A": room["A"][::-2, ::2], "B": room["B"][::2, ::-1], "D": room["D"][::4, :]}
    run(place, binding, generic.CONTRACTION, FOUR, arrays)
    close(arrays["D"], arrays["A"].astype(float) @ arrays["B"].astype(float), "float32", 8)
    assert np.isnan(np.delete(room["D"], [0, 4, 8], axis=0)).all()


@pytest.mark.parametrize("depth", [0, 1, 64, 130, 200])
def test_slabs_add_up_whatever_their_length(place, depth):
    binding = narrow(gemm_binding("nn", split=True), "float16")
    arrays = {"A": of("A", (4, depth), 1, "float16"), "B": of("B", (depth, 6), 2, "float16"), "P": unwritten((3, 4, 6))}
    run(place, binding, generic.CONTRACTION, {**EACH, "SPLIT": 3}, arrays)
    close(arrays["P"].sum(0), arrays["A"].astype(float) @ arrays["B"].astype(float), "float32", depth)


@pytest.mark.parametrize("shape", [(5, 24), (3, 37), (0, 4), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_combine_adds_slabs_and_finishes(place, shape, dtype):
    binding = narrow(combine_binding("bias,residual,silu"), dtype)
    arrays = {"P": of("P", (5, *shape), 1, "float32"), "bias": of("bias", shape[1], 2, dtype)}
    arrays |= {"C": of("C", shape, 3, dtype), "D": unwritten(shape, dtype)}
    run(place, binding, generic.COMBINE, {**EACH, "SPLIT": 5}, arrays, {"alpha": 2.0, "beta": 0.5})
    value = 2 * arrays["P"].sum(0, dtype=float) + arrays["bias"].astype(float) + 0.5 * arrays["C"].astype(float)
    close(arrays["D"], value / (1 + np.exp(-value)), dtype, 4)


def test_a_map_broadcasts_along_missing_axes_and_writes_every_output(place):
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
    arrays |= {name: unwritten([SIZES[a] for a in axes]) for name, axes in (("Z", "abc"), ("W", "cb"))}
    run(place, binding, generic.MAP, EACH, arrays, {"alpha": 0.25})
    want = np.maximum(arrays["X"], arrays["Y"][:, None, None]).transpose(1, 0, 2) + np.float32(0.5)
    np.testing.assert_array_equal(arrays["Z"], want)
    np.testing.assert_array_equal(arrays["W"], np.broadcast_to(np.maximum(arrays["Y"] - 0.5, 0), (37, 5)))


def test_a_reduction_computes_fields_that_need_earlier_fields(place):
    x = ("load", "X", ("a", "c", "d"))
    binding = binding_of(
        arrays_of(X="acd", L="a", S="a"),
        (Root("L", ("a",), ("add", ("acc", "m"), ("log", ("acc", "l")))), Root("S", ("a",), ("acc", "t"))),
        fields=(
            Field("m", ("a",), "max", x),
            Field("l", ("a",), "sum", ("exp", ("shift", x, ("field", "m")))),
            Field("t", ("a",), "sum", x),
        ),
    )
    arrays = {"X": numbers("acd", 3) + 1000, "L": unwritten(3), "S": unwritten(3)}
    whole = arrays["X"].astype(np.float64)
    run(place, binding, generic.REDUCE, EACH, arrays)
    top = whole.max((1, 2))
    np.testing.assert_allclose(arrays["L"], top + np.log(np.exp(whole - top[:, None, None]).sum((1, 2))), rtol=1e-6)
    np.testing.assert_allclose(arrays["S"], whole.sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("off", ["B - 7", "B - 5", "B"])
def test_a_masked_reduction_sees_only_what_the_mask_leaves(place, off):
    """Along the columns of the output, and over rows that are masked altogether."""
    masked = ("mask", ("load", "X", ("c", "b")), "c", "b", off)
    field = Field("m", ("c",), "max", masked)
    binding = binding_of(arrays_of(X="cb", Y="c"), (Root("Y", ("c",), ("acc", "m")),), fields=(field,))
    arrays = {"X": numbers("cb", 4), "Y": unwritten(37)}
    run(place, binding, generic.REDUCE, EACH, arrays)
    keep = np.arange(5)[None, :] <= np.arange(37)[:, None] + eval(off, {"B": 5})
    np.testing.assert_array_equal(arrays["Y"], np.where(keep, arrays["X"], -np.inf).max(1))


def test_a_maximum_propagates_nan_and_of_nothing_is_minus_infinity(place):
    field = Field("m", ("c",), "max", ("load", "X", ("b", "c")))
    binding = binding_of(arrays_of(X="bc", Y="c"), (Root("Y", ("c",), ("acc", "m")),), fields=(field,))
    arrays = {"X": numbers("bc", 5), "Y": unwritten(37)}
    arrays["X"][2, 7] = np.nan
    run(place, binding, generic.REDUCE, FOUR, arrays)
    np.testing.assert_array_equal(arrays["Y"], np.max(arrays["X"], 0))
    arrays["X"] = arrays["X"][:0]
    run(place, binding, generic.REDUCE, FOUR, arrays)
    assert (arrays["Y"] == -np.inf).all()


def test_a_reduction_to_one_number_works(place):
    field = Field("t", (), "sum", ("load", "X", ("c",)))
    binding = binding_of(
        (*arrays_of(X="c"), Array("Y", "float32", ())), (Root("Y", (), ("acc", "t")),), fields=(field,)
    )
    arrays = {"X": numbers("c", 7), "Y": unwritten(())}
    run(place, binding, generic.REDUCE, EACH, arrays)
    np.testing.assert_allclose(arrays["Y"], arrays["X"].sum(), rtol=1e-5)


def test_columns_may_be_several_axes(place):
    base = gemm_binding()
    binding = replace(
        base,
        groups={**base.groups, "N": ("n", "j")},
        extents={**base.extents, "j": "J"},
        operands={"A": base.operands["A"], "B": ("load", "B", ("j", "k", "n"))},
        arrays=(
            base.arrays[0],
            Array("B", "float32", ("j", "k", "n")),
            Array("D", "float32", ("j", "m", "n")),
        ),
        roots=(Root("D", ("j", "m", "n"), ("acc", "acc")),),
        scalars=(),
    )
    arrays = {"A": of("A", (4, 9), 1, "float32"), "B": of("B", (3, 9, 5), 2, "float32"), "D": unwritten((3, 4, 5))}
    run(place, binding, generic.CONTRACTION, EACH, arrays)
    close(arrays["D"], arrays["A"].astype(float) @ arrays["B"].astype(float), "float32", 4)


def softmax_of_a_product():
    """Y[m,n] = softmax over n of (A / rms(A)) B."""
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float16"), s.input("B", "kn", "float16")
    norm = s.map("norm", ("sqrt", s.reduce("squares", "sum", ("mul", a, a), over="k")))
    x = s.dot("x", s.map("unit", ("normalize", a, norm)), b, over="k")
    e = s.map("e", ("exp", s.map("shifted", ("shift", x, s.reduce("m", "max", x, over="n")))))
    return s.build(Y=s.map("y", ("normalize", e, s.reduce("l", "sum", e, over="n")), dtype="float16"))


def test_every_program_runs_whatever_its_kernels_are(place):
    program, sizes = softmax_of_a_product(), {"M": 5, "N": 19, "K": 7}
    inputs = {"A": of("A", (5, 7), 1, "float16"), "B": of("B", (7, 19), 2, "float16")}
    want = interpret(program, {name: array.astype(float) for name, array in inputs.items()}, sizes)["Y"]
    variants = explore(program, generic.templates(), {**sizes, "ITEMSIZE": 2}).variants
    assert len(variants) > 2
    for variant in (variants[0], variants[-1]):
        values = dict(inputs)
        for matched in variant.kernels:
            binding = matched.binding()
            for array in binding.arrays:
                shape = [sizes[binding.extents[axis]] for axis in array.axes]
                values.setdefault(array.name, unwritten(shape, array.dtype))
            run(place, binding, matched.template, EACH, {array.name: values[array.name] for array in binding.arrays})
        close(values["Y"], want, "float16")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions_are_as_exact_as_their_header_says(place, dtype):
    names = sorted(FUNCTIONS)
    arrays = (Array("X", dtype, ("i",)), *(Array(name, dtype, ("i",)) for name in names))
    roots = tuple(Root(name, ("i",), (name, ("load", "X", ("i",)))) for name in names)
    binding = binding_of(arrays, roots, acc=dtype)
    magnitude = np.logspace(-30, 2.1, 5_000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -103.9, -104.1, 1e20, -1e20]
    x = np.concatenate([magnitude, -magnitude, np.linspace(-12, 12, 10_000), special]).astype(dtype)
    values = {"X": x, **{name: np.full(len(x), 7, dtype) for name in names}}
    run(place, binding, generic.MAP, EACH, values)
    for name in names:
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](x.astype(np.float64))
            rounded = want.astype(dtype)
            error = np.abs(values[name] - want) / np.maximum(np.abs(want), 1e-30 if dtype == "float32" else 1e-300)
        np.testing.assert_array_equal(np.isnan(values[name]), np.isnan(want), err_msg=name)
        np.testing.assert_array_equal(np.isinf(values[name]), np.isinf(rounded), err_msg=name)
        allowed = np.full(len(x), 6e-7 if dtype == "float32" else 1e-14)
        if name.startswith("gelu"):  # an error of x counts more and more where the result vanishes
            allowed = np.where(x < -2, np.minimum(allowed * np.abs(x.astype(float)) ** 3, 1), allowed)
        vanishing = (np.abs(want) < 1e-35) & (dtype == "float32")
        over = np.isfinite(rounded) & ~vanishing & ~(error <= allowed)
        assert not over.any(), (name, x[over][:3], values[name][over][:3], want[over][:3])
