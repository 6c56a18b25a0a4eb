"""Softmax on a GPU: every variant through the gates, and the functions on CuPy arrays."""

from __future__ import annotations

import random

import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.errors import ArrayError, DtypeError
from kernsearch.feasible import FeasibleSpace
from kernsearch.gates import open_bench
from kernsearch.launch import itemsize

pytestmark = pytest.mark.gpu
PROBLEMS = [
    ("softmax", (61, 781), "float32", {}),
    ("softmax", (61, 1024), "bfloat16", {"prologue": "scale,mask"}),
    ("softmax", (7, 40000), "float16", {"result": "log"}),
    ("softmax", (300, 128), "float64", {"layout": "t"}),
    ("softmax_backward", (61, 1024), "bfloat16", {}),
    ("log_softmax_backward", (61, 781), "float32", {}),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name, shape, dtype, options", PROBLEMS)
def test_every_variant_passes_the_gates(gpu, name, shape, dtype, options):
    op, backend = registry.op(name), backends.get("cuda")
    problem = op.problem(shape, dtype, backend="cuda", **options)
    sizes = {**op.sizes(problem), "ITEMSIZE": itemsize(dtype), "THREADS": int(gpu.facts["threads"])}
    passed = 0
    with open_bench(op, problem, gpu, backend, run_timeout_s=20) as bench:
        for number, variant in enumerate(derive(problem, op, registry.templates("cuda")).variants[:24]):
            config = FeasibleSpace(variant.params, variant.constraints, gpu, sizes).sample(random.Random(number))
            if config is None:
                continue
            plan = lower(variant, config, problem, backend, gpu)
            compiled = [backend.compile(kernel, gpu, timeout_s=60) for kernel in plan.kernels]
            bench.examine(plan, compiled, config, thorough=True)
            passed += 1
    assert passed >= 4


COMING = [  # rows that come ahead, and exponentials that are lifted
    ("block_row", "BM=1 TK=32 WK=256 WAVES=1 STREAM=0 AHEAD=1 LIFT=1"),
    ("shared_row", "BM=1 TK=64 WK=128 WAVES=2 STREAM=1 SHARED=1 AHEAD=1 LIFT=0"),
    ("shared_row", "BM=2 TK=64 WK=128 WAVES=1 STREAM=0 SHARED=1 AHEAD=1 LIFT=1"),
    ("cluster_row", "SPLIT=4 BM=1 TK=32 WK=64 WAVES=2 STREAM=0 AHEAD=1 LIFT=1"),
    ("cluster_shared", "SPLIT=4 BM=1 TK=32 WK=64 WAVES=3 STREAM=3 SHARED=1 AHEAD=1 LIFT=0"),
    ("cluster_shared", "SPLIT=16 BM=1 TK=8 WK=64 WAVES=2 STREAM=0 SHARED=1 AHEAD=1 LIFT=1"),
    ("cluster_shared", "SPLIT=2 BM=1 TK=64 WK=64 WAVES=4 STREAM=0 SHARED=1 AHEAD=0 LIFT=1"),
]


@pytest.mark.parametrize("columns", [8192, 8191, 5000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name, text", COMING)
def test_rows_that_come_ahead_and_lifted_exponentials_pass_the_gates(gpu, name, text, dtype, columns):
    if name.startswith("cluster") and gpu.facts["cc_major"] < 9:
        pytest.skip("clusters came with sm_90")
    op, backend = registry.op("softmax"), backends.get("cuda")
    problem = op.problem((1000, columns), dtype, backend="cuda")
    config = {letter: int(value) for letter, value in (pair.split("=") for pair in text.split())}
    plan = lower(derive(problem, op, registry.templates("cuda")).variant(name), config, problem, backend, gpu)
    compiled = [backend.compile(kernel, gpu, timeout_s=60) for kernel in plan.kernels]
    with open_bench(op, problem, gpu, backend, run_timeout_s=20) as bench:
        bench.examine(plan, compiled, config, thorough=True)


def plain(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("shape, axis", [((5, 7), -1), ((5, 700), 0), ((3, 4, 500), 1), ((70, 4, 5), 1), ((9,), 0)])
def test_any_axis_of_arrays_on_the_device(gpu, shape, axis):
    import cupy

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    there = cupy.asarray(x)
    np.testing.assert_allclose(ks.softmax(there, axis).get(), plain(x.astype(float), axis), rtol=4e-6)
    out = cupy.asarray(x)
    assert ks.softmax(out, axis, out=out) is out
    np.testing.assert_allclose(out.get(), plain(x.astype(float), axis), rtol=4e-6)
    views = cupy.asarray(np.repeat(x, 2, axis=-1))[..., ::-2]
    np.testing.assert_allclose(ks.softmax(views, axis).get(), plain(views.get().astype(float), axis), rtol=4e-6)


def test_masks_gradients_and_errors_are_as_on_the_host(gpu):
    import cupy

    rng = np.random.default_rng(1)
    x, mask = rng.standard_normal((6, 300)).astype(np.float32), rng.random((6, 300)) < 0.5
    mask[2] = False
    got = ks.softmax(cupy.asarray(x), mask=cupy.asarray(mask), scale=0.5).get()
    np.testing.assert_allclose(got, ks.softmax(x, mask=mask, scale=0.5), rtol=8e-6)
    dy, y = rng.standard_normal((6, 300)).astype(np.float32), plain(x)
    for log in (False, True):
        want = ks.softmax_backward(dy, y, log=log)
        np.testing.assert_allclose(ks.softmax_backward(*map(cupy.asarray, (dy, y)), log=log).get(), want, rtol=1e-4,
                                   atol=1e-5)  # fmt: skip
    with pytest.raises(ArrayError, match="host memory"):
        ks.softmax(cupy.asarray(x), mask=mask)
    with pytest.raises(DtypeError, match="mask is uint8: want bool"):
        ks.softmax(cupy.asarray(x), mask=cupy.asarray(mask).view("uint8"))
    with pytest.raises(DtypeError, match="x is int32"):
        ks.softmax(cupy.asarray(x).astype("int32"))


def test_a_call_like_an_earlier_one_looks_at_its_own_arrays(gpu):
    import cupy

    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((37, 300)).astype(np.float32)
        want = np.exp(x.astype(float))
        want /= want.sum(-1, keepdims=True)
        there = cupy.asarray(x)
        np.testing.assert_allclose(ks.softmax(there).get(), want, rtol=5e-6)
        out = cupy.empty_like(there)
        assert ks.softmax(there, out=out) is out
        np.testing.assert_allclose(out.get(), want, rtol=5e-6)
        room = cupy.zeros((38, 300), np.float32)
        room[:37] = there
        ks.softmax(room[:37], out=room[1:])
        np.testing.assert_allclose(room[1:].get(), want, rtol=5e-6)
        ks.softmax(there, out=there)
        np.testing.assert_allclose(there.get(), want, rtol=5e-6)
