"""Attention on a GPU: variants through the gates, and `ks.attention` on CuPy arrays and PyTorch tensors."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.derive import Derivation, derive
from kernsearch.errors import ArrayError, DtypeError, Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.gates import open_bench
from kernsearch.launch import itemsize
from kernsearch.problem import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
PROBLEMS = [
    ("1x2x200x330x64", "bfloat16", {"causal": "bottom-right"}),
    ("2x3x130x67x128", "float16", {"lse": "yes"}),
    ("1x8x1x1000x128", "bfloat16", {"kv_heads": 2}),
    ("2x8x3x700x64x128", "float16", {"kv_heads": 2, "causal": "bottom-right", "lse": "yes"}),
    ("1x2x77x131x40x72", "bfloat16", {"layout": "bshd", "causal": "top-left"}),
    ("1x1x64x64x256", "bfloat16", {}),
    ("1x2x65x65x32", "float32", {"causal": "bottom-right"}),
]
ONE_PASS = ("attention_async", "attention_async_slabs+combine", "attention_specialized")
FEW = tuple(  # for few rows
    f"attention_{way}{slabs}" for way in ("direct", "ring") for slabs in ("", "_slabs+state_combine", "_cluster")
)
CONFIGS = 3  # of each variant


@cache
def derived(of: Problem) -> Derivation:
    return derive(of, registry.op(of.op), registry.templates("cuda"))


@pytest.mark.parametrize("shape, dtype, options", PROBLEMS)
def test_variants_of_one_pass_and_some_of_three_kernels_pass_the_gates(gpu, shape, dtype, options):
    backend, problem = backends.get("cuda"), registry.problem("attention", shape, dtype, backend="cuda", **options)
    op = registry.op(problem.op)
    sizes = {**op.sizes(problem), "ITEMSIZE": itemsize(dtype), "THREADS": int(gpu.facts["threads"])}
    variants = derived(problem).variants
    few = math.prod(problem.shape[2:-3]) <= 64 and max(problem.shape[-2:]) <= 128
    names = (*ONE_PASS, *(FEW if few else ()))
    chosen = [v for v in variants if v.name in names] + random.Random(0).sample(variants, 6)
    passed = set()
    with open_bench(op, problem, gpu, backend, run_timeout_s=20) as bench:
        for number, variant in enumerate(chosen):
            space = FeasibleSpace(variant.params, variant.constraints, gpu, sizes)
            for seed in range(CONFIGS if variant.name in names else 1):
                config = space.sample(random.Random(100 * number + seed))
                if config is None:
                    continue
                try:
                    plan = lower(variant, config, problem, backend, gpu)
                    compiled = [backend.compile(kernel, gpu, timeout_s=90) for kernel in plan.kernels]
                except Rejected as refusal:  # a search leaves it out
                    assert variant.name not in ONE_PASS, f"{refusal} ({variant.name} {config})"
                    continue
                try:
                    bench.examine(plan, compiled, config, thorough=seed == 0)
                except Rejected as refusal:
                    refusal.add_note(f"{variant.name} {config}")
                    raise
                passed.add(variant.name)
    wanted = set(names) if dtype != "float32" else set()
    assert wanted <= passed and len(passed) > len(wanted)


def dense(q, k, v, offset=None, scale=None):
    """(output, lse) in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if offset is not None:
        s[..., np.arange(s.shape[-1]) > np.arange(s.shape[-2])[:, None] + offset] = -np.inf
    m = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(m), m, 0))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return e / np.where(total, total, 1) @ v, (m + np.log(total))[..., 0]


def some(*shapes):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float16) for shape in shapes)


@pytest.mark.parametrize("offset", [None, 3, 20, -5])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_cupy_arrays_of_any_strides(gpu, kv_heads, offset):
    import cupy

    q, k, v = some((2, 4, 37, 40), (2, kv_heads, 57, 40), (2, kv_heads, 57, 24))
    want, lse = dense(q, k, v, offset)
    causal = {} if offset is None else {"causal": True, "query_offset": offset}
    there = [cupy.asarray(x) for x in (q, k, v)]
    turned = [cupy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in there]
    apart = [cupy.repeat(x, 2, axis=2)[:, :, ::2] for x in there]
    for arrays in (there, turned, apart):
        got, states = ks.attention(*arrays, return_lse=True, **causal)
        np.testing.assert_allclose(got.get(), want, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(states.get(), lse, rtol=1e-4, atol=1e-3)


def test_tensors_on_their_own_stream(gpu):
    torch = pytest.importorskip("torch")
    q, k, v = some((1, 2, 70, 64), (1, 2, 130, 64), (1, 2, 130, 64))
    want, _ = dense(q, k, v)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        got = ks.attention(*(torch.from_numpy(x).cuda() for x in (q, k, v)))
    stream.synchronize()
    assert got.is_cuda and got.dtype == torch.float16
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=2e-3, atol=2e-3)


def test_outputs_may_be_given_and_may_be_an_input(gpu):
    import cupy

    q, k, v = some((1, 2, 50, 32), (1, 2, 50, 32), (1, 2, 50, 32))
    for causal, offset in ((False, None), (True, 0), (True, 7)):
        want, _ = dense(q, k, v, offset)
        there = [cupy.asarray(x) for x in (q, k, v)]
        how = {"query_offset": offset} if causal else {}
        assert ks.attention(*there, causal=causal, out=there[0], **how) is there[0]
        np.testing.assert_allclose(there[0].get(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_a_call_like_an_earlier_one_looks_at_its_own_arrays(gpu, causal):
    import cupy

    for seed in range(3):
        rng = np.random.default_rng(seed)
        q, k, v = (rng.standard_normal((1, 4, 64, 32)).astype(np.float16) for _ in range(3))
        want, _ = dense(q, k, v, 0 if causal else None)
        there = [cupy.asarray(x) for x in (q, k, v)]
        np.testing.assert_allclose(ks.attention(*there, causal=causal).get(), want, rtol=2e-3, atol=2e-3)
        out = cupy.empty_like(there[0])
        assert ks.attention(*there, causal=causal, out=out) is out
        np.testing.assert_allclose(out.get(), want, rtol=2e-3, atol=2e-3)
        ks.attention(*there, causal=causal, out=there[seed])
        np.testing.assert_allclose(there[seed].get(), want, rtol=2e-3, atol=2e-3)


def test_what_does_not_fit_is_said_in_one_line(gpu):
    import cupy

    q, k, v = some((1, 2, 5, 32), (1, 2, 6, 32), (1, 2, 6, 32))
    there = [cupy.asarray(x) for x in (q, k, v)]
    with pytest.raises(ArrayError, match="host memory"):
        ks.attention(there[0], k, there[2])
    with pytest.raises(ArrayError, match="host memory"):
        ks.attention(q, there[1], there[2])
    with pytest.raises(DtypeError, match="k is float32: want the same dtype"):
        ks.attention(there[0], there[1].astype("float32"), there[2])
    with pytest.raises(ArrayError, match="want the same dim"):
        ks.attention(there[0], there[1][..., :16], there[2])
    with pytest.raises(ArrayError, match="out is float16 of shape"):
        ks.attention(*there, out=there[1])
