"""gemm's bound lets plain loops pass and stops what is worse, its inputs are what they say, its shapes are awkward."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from kernsearch.spaces.gemm import numerics

from kernsearch import registry
from kernsearch.meaning import interpret

OP = registry.op("gemm")
EPILOGUES = ["none", "relu", "bias,gelu,residual", "gelu_tanh", "silu,residual"]


def made(problem, name: str = "normal", seed: int = 0):
    inputs = next(s for s in OP.inputs if s.name == name)
    return inputs.make(problem, np.random.default_rng(seed))


def reference(problem, inputs, scalars):
    return interpret(OP.root(problem), inputs, OP.sizes(problem), scalars)


def plain_loop(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One product and one addition at a time, rounded to the dtype."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1, :]
    return total


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
def test_the_reference_agrees_with_plain_loops_on_every_input_set(epilogue: str, layout: str) -> None:
    problem = OP.problem((5, 4, 7), layout=layout, epilogue=epilogue)
    for inputs in OP.inputs:
        if inputs.name == "NaN and Inf":
            continue
        arrays, scalars = inputs.make(problem, np.random.default_rng(1))
        plain = numerics.textbook(problem, arrays, scalars)["D"]
        np.testing.assert_allclose(reference(problem, arrays, scalars)["D"], plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 64, 512, 4096])
@pytest.mark.parametrize("positive", [False, True])
def test_a_plain_float32_loop_stays_within_half_of_the_bound(depth: int, positive: bool) -> None:
    problem = OP.problem((48, 48, depth))
    inputs, _ = made(problem)
    if positive:
        inputs = {name: np.abs(array) for name, array in inputs.items()}
    scalars = {"alpha": 1.0}
    expected = reference(problem, inputs, scalars)
    error = np.abs(plain_loop(inputs["A"], inputs["B"]) - expected["D"])
    assert (error <= 0.6 * OP.bound(problem, inputs, scalars, expected)["D"]).all()


@pytest.mark.parametrize("depth", [8, 512, 4096])
def test_a_float64_loop_stays_within_its_bound(depth: int) -> None:
    problem = OP.problem((32, 32, depth), "float64")
    inputs, _ = made(problem)
    inputs = {name: np.abs(array) for name, array in inputs.items()}
    expected = reference(problem, inputs, {"alpha": 1.0})
    error = np.abs(plain_loop(inputs["A"], inputs["B"]) - expected["D"])
    assert (error <= OP.bound(problem, inputs, {"alpha": 1.0}, expected)["D"]).all()


@pytest.mark.parametrize("depth", [8, 512, 4096])
def test_inputs_rounded_to_bfloat16_or_a_lost_term_exceed_the_bound(depth: int) -> None:
    problem = OP.problem((48, 48, depth))
    inputs, _ = made(problem)
    expected = reference(problem, inputs, {"alpha": 1.0})
    allowed = OP.bound(problem, inputs, {"alpha": 1.0}, expected)["D"]
    short = {n: (a.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, a in inputs.items()}
    lost = {"A": inputs["A"][:, :-1], "B": inputs["B"][:-1]}
    for wrong in (short, lost):
        assert (np.abs(wrong["A"].astype(float) @ wrong["B"].astype(float) - expected["D"]) > allowed).mean() > 0.5


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_bound_of_an_epilogue_lets_float32_steps_pass(epilogue: str) -> None:
    problem = OP.problem((40, 30, 64), epilogue=epilogue)
    inputs, scalars = made(problem)
    x = np.float32(scalars["alpha"]) * (inputs["A"] @ inputs["B"])
    if "bias" in inputs:
        x = x + inputs["bias"]
    if "C" in inputs:
        x = x + np.float32(scalars["beta"]) * inputs["C"]
    act = numerics.activation(problem)
    with np.errstate(over="ignore"):
        one, half = np.float32(1), np.float32(0.5)
        if act == "relu":
            x = np.maximum(x, np.float32(0))
        elif act == "silu":
            x = x / (one + np.exp(-x))
        elif act == "gelu_tanh":
            x = half * x * (one + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))
        elif act == "gelu":
            x = half * x * (one + np.vectorize(math.erf)(x * np.float32(0.70710678)).astype(np.float32))
    assert x.dtype == np.float32
    expected = reference(problem, inputs, scalars)
    assert (np.abs(x - expected["D"]) <= OP.bound(problem, inputs, scalars, expected)["D"]).all()


@pytest.mark.parametrize("shape", [(7, 9, 11), (33, 5, 4096), (3, 3, 100_000)], ids=str)
@pytest.mark.parametrize("name", [s.name for s in OP.inputs if s.exact])
def test_exact_inputs_are_exact_in_any_order(name: str, shape: tuple[int, ...]) -> None:
    problem = OP.problem(shape, epilogue="bias,residual")
    inputs, scalars = made(problem, name)
    assert all((array == np.rint(array)).all() for array in inputs.values())
    a, b = numerics.logical(problem, inputs)
    assert (np.abs(a).astype(float) @ np.abs(b).astype(float)).max() * abs(scalars["alpha"]) < 2**23


def test_a_one_hot_operand_shows_where_each_element_of_the_other_stands() -> None:
    problem = OP.problem((64, 40, 50))
    inputs, _ = made(problem, "one-hot A")
    assert len(np.unique(inputs["B"])) == inputs["B"].size
    assert (inputs["A"].sum(axis=1) == 1).all()


def test_nan_and_infinities_reach_some_outputs_and_not_others() -> None:
    problem = OP.problem((64, 40, 50))
    out = reference(problem, *made(problem, "NaN and Inf"))["D"]
    assert np.isnan(out).any() and np.isfinite(out).mean() > 0.5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_products_are_subnormal_and_above_the_bound(dtype: str) -> None:
    problem = OP.problem((20, 30, 5), dtype)
    inputs, scalars = made(problem, "subnormal products")
    expected = reference(problem, inputs, scalars)
    size = np.abs(expected["D"])
    assert size.max() < np.finfo(dtype).tiny
    assert (size > OP.bound(problem, inputs, scalars, expected)["D"]).mean() > 0.9


@pytest.mark.parametrize("layout, epilogue", list(product(["nn", "tt"], ["none", "bias,residual"])))
def test_the_identity_holds_for_a_right_result_and_not_for_one_wrong_element(layout: str, epilogue: str) -> None:
    problem = OP.problem((151, 203, 517), layout=layout, epilogue=epilogue)
    inputs, scalars = made(problem)
    out = {"D": reference(problem, inputs, scalars)["D"].astype(np.float32)}
    rng = np.random.default_rng(0)
    assert numerics.identity(problem, inputs, scalars, out, rng) < 0.5
    out["D"][77, 11] += 1
    assert numerics.identity(problem, inputs, scalars, out, rng) > 1
    out["D"][77, 11] = np.nan
    assert numerics.identity(problem, inputs, scalars, out, rng) == np.inf


@pytest.mark.parametrize("depth", [1, 16, 256, 4096])
def test_the_identity_holds_for_a_plain_loop_and_misses_no_addend(depth: int) -> None:
    problem = OP.problem((48, 96, depth))
    inputs, scalars = made(problem)
    a, b = inputs["A"], inputs["B"]
    out = np.zeros((48, 96), np.float32)
    for k in range(depth):
        out += a[:, k : k + 1] * b[k]
    out *= np.float32(scalars["alpha"])
    assert numerics.identity(problem, inputs, scalars, {"D": out}, np.random.default_rng(1)) < 0.75
    out[3, 5] -= scalars["alpha"] * 2 * np.abs(a[3] * b[:, 5]).mean()
    assert numerics.identity(problem, inputs, scalars, {"D": out}, np.random.default_rng(1)) > 2


def test_there_is_no_identity_for_a_curved_epilogue() -> None:
    problem = OP.problem((5, 6, 7), epilogue="relu")
    inputs, scalars = made(problem)
    assert numerics.identity(problem, inputs, scalars, reference(problem, inputs, scalars), None) is None


def test_edges_lie_on_both_sides_of_every_tile() -> None:
    config = {"MR": 6, "MC": 96, "NR": 48, "KC": 512, "SPLIT": 4, "UNROLL": 3, "NC": 1 << 20}
    shapes = OP.edges(OP.problem((999, 999, 999)), config)
    assert (1, 1, 1) in shapes
    for axis, tiles in enumerate([(6, 96), (48,), (4, 512)]):
        for tile in tiles:
            assert {tile - 1, tile + 1} <= {shape[axis] for shape in shapes}
    assert len(shapes) == len(set(shapes)) < 40
    assert all(np.prod(shape) <= numerics.MOST_WORK for shape in shapes)
    last = shapes[-1]
    assert last[0] > 2 * 6 and last[1] > 48 and last[2] > 4


def test_a_config_without_tiles_has_edges_too() -> None:
    assert len(OP.edges(OP.problem((9, 9, 9)), {})) > 8


def test_on_a_device_awkward_shapes_fill_its_multiprocessors_and_go_around_the_ring() -> None:
    problem = registry.op("gemm").problem((2304, 1544, 4096))
    config = {"BM": 128, "BN": 256, "BK": 64, "STAGES": 4, "SMS": 132}
    shapes = numerics.edges(problem, config)
    assert any(-(-m // 128) * -(-n // 256) > 132 and m % 128 for m, n, _ in shapes)
    assert any(k > 2 * 4 * 64 for _, _, k in shapes)
    assert sum(all(size % 8 == 0 for size in shape) for shape in shapes) >= 3
