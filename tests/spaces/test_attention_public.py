"""`kernsearch.attention` on NumPy arrays: values, shapes, strides, offsets and errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernsearch.spaces.attention import reference
from kernsearch.spaces.attention.shapes import parts

import kernsearch as ks
from kernsearch.errors import ArrayError, DtypeError, ProblemError

TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2e-2}


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        yield


def arrays(batch=2, heads=4, queries=9, keys=13, d=8, e=5, kv_heads=None, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    of = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    kv = kv_heads or heads
    shapes = (batch, heads, queries, d), (batch, kv, keys, d), (batch, kv, keys, e)
    return [rng.standard_normal(shape).astype(of) for shape in shapes]


def expected(q, k, v, offset=None, scale=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // max(1, k.shape[1])
    k, v = (np.repeat(x, max(1, group), axis=1) for x in (k, v))
    return reference.dense(q, k, v, scale=q.shape[-1] ** -0.5 if scale is None else scale, offset=offset)


def agree(got, want, dtype="float32"):
    return np.allclose(np.asarray(got, np.float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_normalizers_are_those_of_the_definition(dtype, kv_heads, causal):
    q, k, v = arrays(kv_heads=kv_heads, dtype=dtype)
    o, lse = ks.attention(q, k, v, causal=causal, return_lse=True)
    want, log = expected(q, k, v, 13 - 9 if causal else None)
    assert o.dtype == q.dtype and lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert agree(o, want, dtype) and agree(lse, log)
    assert agree(ks.attention(q, k, v, causal=causal), want, dtype)


@pytest.mark.parametrize("queries, keys", [(5, 2), (2, 5), (1, 7), (7, 1), (6, 6)])
def test_bottom_right_and_top_left(queries, keys):
    q, k, v = arrays(queries=queries, keys=keys)
    for causal, offset in ((True, keys - queries), ("bottom-right", keys - queries), ("top-left", 0)):
        o, lse = ks.attention(q, k, v, causal=causal, return_lse=True)
        want, log = expected(q, k, v, offset)
        assert agree(o, want) and agree(lse, log)
    blind = max(0, queries - keys)
    o, lse = ks.attention(q, k, v, causal=True, return_lse=True)
    assert (o[:, :, :blind] == 0).all() and np.isneginf(lse[:, :, :blind]).all()
    assert not np.isnan(o).any() and not np.isnan(lse).any()


@pytest.mark.parametrize("offset", [-100, -9, -8, -1, 0, 3, 4, 5, 11, 12, 13, 100])
def test_a_query_offset_of_any_size(offset):
    q, k, v = arrays()
    o, lse = ks.attention(q, k, v, causal=True, query_offset=offset, return_lse=True)
    want, log = expected(q, k, v, offset)
    assert agree(o, want) and agree(lse, log)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(-12, 12))
def test_parts_cover_all_queries_once_and_see_what_the_offset_says(queries, keys, offset):
    seen: dict[int, int] = {}
    for part in parts(queries, keys, offset):
        for row in range(part.first, part.last):
            assert row not in seen
            behind = part.last - 1 - row if part.causal else 0
            seen[row] = max(0, part.keys - behind)
    assert seen == {row: min(keys, max(0, row + offset + 1)) for row in range(queries)}


def test_any_strides_and_out():
    q, k, v = arrays()
    want, _ = expected(q, k, v)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)]  # (batch, length, heads, dim)
    assert agree(ks.attention(*turned), want)
    apart = [np.repeat(x, 2, axis=3)[..., ::2] for x in (q, k, v)]
    backwards = [np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1] for x in (q, k, v)]
    fortran = [np.asfortranarray(x) for x in (q, k, v)]
    for given_arrays in (apart, backwards, fortran):
        assert agree(ks.attention(*given_arrays), want)
    out = np.full((2, 9, 4, 5), np.nan, np.float32).swapaxes(1, 2)
    assert ks.attention(q, k, v, out=out) is out and agree(out, want)


@pytest.mark.parametrize("offset", [None, 3, 11])
def test_out_may_be_an_input(offset):
    q, k, v = arrays(e=8, keys=9)
    how = {} if offset is None else {"causal": True, "query_offset": offset}
    want, _ = expected(q, k, v, offset)
    for out in (q.copy(), v.copy()):
        given_arrays = [out if np.array_equal(out, x) else x for x in (q, k, v)]
        assert agree(ks.attention(*given_arrays, out=out, **how), want)


def test_broadcast_and_read_only_inputs():
    q, k, v = arrays(batch=1)
    wide = np.broadcast_to(k, (3, *k.shape[1:])), np.broadcast_to(v, (3, *v.shape[1:]))
    q = np.repeat(q, 3, axis=0)
    want, _ = expected(q, *wide)
    assert agree(ks.attention(q, *wide), want)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"heads": 0}, {"queries": 0}, {"keys": 0}, {"d": 0}, {"e": 0}])
def test_zero_sizes(sizes):
    rng = np.random.default_rng(0)
    n = {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "d": 8, "e": 6, **sizes}
    q = rng.standard_normal((n["batch"], n["heads"], n["queries"], n["d"]), np.float32)
    k = rng.standard_normal((n["batch"], n["heads"], n["keys"], n["d"]), np.float32)
    v = rng.standard_normal((n["batch"], n["heads"], n["keys"], n["e"]), np.float32)
    for causal in (False, True):
        o, lse = ks.attention(q, k, v, causal=causal, return_lse=True)
        want, log = expected(q, k, v, n["keys"] - n["queries"] if causal else None, scale=1 if n["d"] == 0 else None)
        assert o.shape == want.shape and agree(o, want) and agree(lse, log)


def test_the_scale_and_its_default():
    q, k, v = arrays()
    for scale in (0.0, 0.3, -1.5):
        assert agree(ks.attention(q, k, v, scale=scale), expected(q, k, v, scale=scale)[0])


def test_what_does_not_fit_is_a_clear_error():
    q, k, v = arrays()
    for wrong, error, words in (
        (lambda: ks.attention(q[0], k, v), ArrayError, "q has 3 dimensions: want 4"),
        (lambda: ks.attention(q, k[:, :3], v[:, :3]), ArrayError, "q has 4 heads, k and v have 3: want a multiple"),
        (lambda: ks.attention(q, k[..., :7], v), ArrayError, "want the same dim"),
        (lambda: ks.attention(q, k[:, :, 1:], v), ArrayError, "want as many heads and keys"),
        (lambda: ks.attention(q, k[:1], v), ArrayError, "want the same batch"),
        (lambda: ks.attention(q, k.astype(np.float64), v), DtypeError, "q is float32, k is float64"),
        (lambda: ks.attention(q.astype(int), k, v), DtypeError, "q is int64: want float32"),
        (lambda: ks.attention(q, k, v, causal="left"), ProblemError, "causal 'left': want True, False"),
        (lambda: ks.attention(q, k, v, query_offset=1), ProblemError, "without causal"),
        (lambda: ks.attention(q, k, v, causal=True, query_offset=1.5), ProblemError, "want a whole number"),
        (lambda: ks.attention(q, k, v, causal="top-left", query_offset=1), ProblemError, "beside causal 'top-left'"),
        (lambda: ks.attention(np.ma.array(q, mask=True), k, v), DtypeError, "q is a masked array"),
        (lambda: ks.load("attention", shape=(1, 2, 9, 9, 8), scale=0.1), ProblemError, "scale 0.1 is of the call"),
        (lambda: ks.attention(q, k, v, scale="x"), ProblemError, "scale 'x': want a real number"),
        (
            lambda: ks.load("attention", shape=(1, 2, 9, 9, 8), query_offset=1),
            ProblemError,
            "query_offset without causal",
        ),
        (lambda: ks.attention(q, k, v, out=np.empty((2, 4, 9, 6), np.float32)), ArrayError, "out has shape"),
    ):
        with pytest.raises(error, match=words):
            wrong()


def test_a_plan_with_two_outputs_returns_both():
    q, k, v = arrays()
    plan = ks.load("attention", shape=(2, 4, 9, 13, 8, 5), dtype="float32", device="cpu", lse="yes")
    o, lse = plan(q, k, v, scale=0.3)
    want, log = expected(q, k, v, scale=0.3)
    assert agree(o, want) and agree(lse, log)
    given_outs = np.empty_like(o), np.empty_like(lse)
    assert plan(q, k, v, out=given_outs, scale=0.3)[1] is given_outs[1] and agree(given_outs[0], want)
    with pytest.raises(ArrayError, match="out: want 2 arrays, O, L"):
        plan(q, k, v, out=o, scale=0.3)
