"""The NumPy references of attention agree with each other, with plain loops and with the textbook program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernsearch.spaces.attention import reference
from kernsearch.spaces.attention.numerics import MEAN, ROUNDOFF, bound, laid, logical, offset_of, textbook

from kernsearch import registry
from kernsearch.errors import Rejected
from kernsearch.gates import agrees
from kernsearch.meaning import interpret
from kernsearch.problem import Problem

CASES = {
    "plain": {},
    "causal, lse": {"causal": "bottom-right", "lse": "yes"},
    "top-left": {"causal": "top-left", "layout": "bshd"},
    "offset": {"causal": "bottom-right", "query_offset": "-2", "lse": "yes"},
    "grouped": {"kv_heads": 2, "causal": "bottom-right", "lse": "yes"},
    "grouped, bshd": {"kv_heads": 1, "layout": "bshd", "lse": "yes"},
}


def problem(shape="2x4x5x7x3x4", dtype="float32", **options) -> Problem:
    return registry.problem("attention", shape, dtype, **options)


def made(of: Problem, name="normal", seed=0):
    chosen = next(one for one in registry.op(of.op).inputs if one.name == name)
    return chosen.make(of, np.random.default_rng(seed))


def close(got, want):
    return np.allclose(got, want, rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inputs", ["normal", "climbing", "even", "picking", "large"])
def test_the_textbook_program_plain_loops_and_both_references_agree(name, inputs):
    of = problem(**CASES[name])
    arrays, scalars = made(of, inputs)
    op = registry.op(of.op)
    want = interpret(op.root(of), arrays, op.sizes(of), scalars)
    q, k, v = logical(of, arrays)
    plain = textbook(of, arrays, scalars)
    for o, log in (
        reference.dense(q, k, v, scale=scalars["scale"], offset=offset_of(of)),
        reference.tiled(q, k, v, tile=4, scale=scalars["scale"], offset=offset_of(of)),
    ):
        assert close(laid(of, o), want["O"]) and close(plain["O"], want["O"])
        if of.option("lse") == "yes":
            assert close(log, want["L"]) and close(plain["L"], want["L"])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_tiles_of_any_size_give_the_dense_result(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    queries, keys, d, e = (data.draw(st.integers(1, most)) for most in (9, 17, 5, 4))
    tile = data.draw(st.sampled_from([1, 2, 4, 7, 100]))
    offset = data.draw(st.none() | st.integers(-10, 18))
    size = data.draw(st.sampled_from([1.0, 300.0]))
    q, k, v = size * rng.normal(size=(2, queries, d)), rng.normal(size=(2, keys, d)), rng.normal(size=(2, keys, e))
    dense = reference.dense(q, k, v, scale=0.7, offset=offset)
    tiled = reference.tiled(q, k, v, tile=tile, scale=0.7, offset=offset)
    for got, want in zip(tiled, dense, strict=True):
        assert close(got, want) and not np.isnan(got).any()


@pytest.mark.parametrize("tile", [1, 4, 100])
def test_of_five_queries_over_two_keys_the_first_three_see_none(tile):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 4))
    for o, log in (reference.dense(q, k, v, offset=-3), reference.tiled(q, k, v, tile=tile, offset=-3)):
        assert (o[:3] == 0).all() and np.isneginf(log[:3]).all()
        assert close(o[3], v[0]) and np.isfinite(log[3:]).all()


def plain(of: Problem, arrays, scalars) -> np.ndarray:
    """Product, softmax, product: each whole, in the accumulation's dtype, the output rounded at last."""
    acc = np.float64 if of.dtype == "float64" else np.float32
    q, k, v = (x.astype(acc) for x in logical(of, arrays))
    s = acc(scalars["scale"]) * (q @ k.swapaxes(-1, -2))
    p = np.exp(s - s.max(-1, keepdims=True))
    return laid(of, ((p / p.sum(-1, keepdims=True)) @ v).astype(arrays["Q"].dtype))


@pytest.mark.parametrize("dtype, least", [("float32", 0.2), ("bfloat16", 0.3)])
@pytest.mark.parametrize("shape", ["1x2x64x256x64", "1x1x64x2048x128"])
def test_a_plain_computation_takes_a_part_of_what_is_allowed_and_not_too_little(shape, dtype, least):
    of = problem(shape, dtype)
    arrays, scalars = made(of)
    op = registry.op(of.op)
    want = interpret(op.root(of), arrays, op.sizes(of), scalars)
    share = np.abs(plain(of, arrays, scalars).astype(np.float64) - want["O"]) / bound(of, arrays, scalars, want)["O"]
    assert least <= share.max() <= 0.8, share.max()
    assert share.mean() <= 0.07 < MEAN / 2


def test_a_common_factor_shows_in_the_mean_and_not_in_the_largest_error():
    of = problem("1x2x64x256x64", "bfloat16")
    arrays, scalars = made(of)
    want = textbook(of, arrays, scalars)["O"]
    exact = plain(problem("1x2x64x256x64"), {name: x.astype(np.float32) for name, x in arrays.items()}, scalars)
    got = (exact * (1 + ROUNDOFF["bfloat16"])).astype(arrays["Q"].dtype)
    allowed = bound(of, arrays, scalars, {"O": want})["O"]
    assert agrees("O", got, want, allowed) < 0.7
    with pytest.raises(Rejected, match="in the mean of"):
        agrees("O", got, want, allowed, mean=MEAN)


@pytest.mark.parametrize("shape", ["1x1x512x64x8x256", "1x1x2048x4x8x256"])
def test_weights_may_be_rounded_before_they_meet_the_values(shape):
    of, bits = problem(shape, "bfloat16"), 8
    arrays, scalars = made(of)
    q, k, v = (x.astype(float) for x in logical(of, arrays))
    s = scalars["scale"] * q @ k.swapaxes(-1, -2)
    e = np.exp(s - s.max(-1, keepdims=True))
    fraction, exponent = np.frexp(e)
    rounded = np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits)
    want = textbook(of, arrays, scalars)
    got = (rounded @ v / e.sum(-1, keepdims=True)).astype(arrays["V"].dtype).astype(float)
    share = np.max(abs(got - want["O"]) / bound(of, arrays, scalars, want)["O"])
    assert 0.3 < share < 1


def test_the_bound_is_finite_where_the_reference_is_not():
    of = problem(causal="bottom-right", lse="yes")
    arrays, scalars = made(of, "NaN and Inf", 3)
    op = registry.op(of.op)
    want = interpret(op.root(of), arrays, op.sizes(of), scalars)
    assert np.isnan(want["O"]).any() and not np.isnan(want["O"]).all()
    for allowed in bound(of, arrays, scalars, want).values():
        assert np.isfinite(allowed).all() and (allowed > 0).all()
