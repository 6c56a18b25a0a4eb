"""bmm is gemm with one more axis: the same options, numerics and templates, in one launch."""

from __future__ import annotations

import numpy as np
import pytest
from kernsearch.spaces.gemm import numerics

import kernsearch as ks
from kernsearch import registry
from kernsearch.derive import derive
from kernsearch.meaning import interpret

OP, GEMM = registry.op("bmm"), registry.op("gemm")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def reference(problem, inputs, scalars):
    return interpret(OP.root(problem), inputs, OP.sizes(problem), scalars)


@pytest.mark.parametrize("layout, epilogue", [("nn", "none"), ("tn", "bias,gelu,residual"), ("nt", "silu")])
def test_the_reference_agrees_with_plain_loops_on_every_input_set(layout: str, epilogue: str) -> None:
    problem = OP.problem((3, 5, 4, 7), layout=layout, epilogue=epilogue)
    for inputs in OP.inputs:
        if inputs.name == "NaN and Inf":
            continue
        arrays, scalars = inputs.make(problem, np.random.default_rng(1))
        plain = numerics.textbook(problem, arrays, scalars)["D"]
        np.testing.assert_allclose(reference(problem, arrays, scalars)["D"], plain, rtol=1e-12, atol=1e-12)


def test_the_bound_is_that_of_each_matrix() -> None:
    problem = OP.problem((3, 9, 8, 17), epilogue="bias,relu,residual")
    inputs, scalars = OP.inputs[0].make(problem, np.random.default_rng(0))
    expected = reference(problem, inputs, scalars)
    whole = OP.bound(problem, inputs, scalars, expected)["D"]
    for i, ((_, mine), theirs) in enumerate(numerics.matrices(problem, inputs, expected)):
        one = GEMM.problem((9, 8, 17), epilogue="bias,relu,residual")
        np.testing.assert_allclose(whole[i], GEMM.bound(one, mine, scalars, theirs)["D"], rtol=1e-6)


@pytest.mark.parametrize("hot, other", [("one-hot A", "B"), ("one-hot B", "A")])
def test_position_codes_tell_matrices_of_a_batch_apart(hot: str, other: str) -> None:
    problem = OP.problem((4, 6, 5, 7))
    arrays, _ = next(s for s in OP.inputs if s.name == hot).make(problem, np.random.default_rng(0))
    assert len(np.unique(arrays[other])) == arrays[other].size


def test_the_identity_sees_one_wrong_element_in_one_matrix() -> None:
    problem = OP.problem((3, 40, 30, 50), layout="tn", epilogue="bias,residual")
    inputs, scalars = OP.inputs[0].make(problem, np.random.default_rng(0))
    out = {"D": reference(problem, inputs, scalars)["D"].astype(np.float32)}
    assert OP.identity(problem, inputs, scalars, out, np.random.default_rng(0)) < 0.5
    out["D"][2, 7, 11] += 1
    assert OP.identity(problem, inputs, scalars, out, np.random.default_rng(0)) > 1


def test_edges_have_several_batches_and_the_largest_has_two() -> None:
    shapes = OP.edges(OP.problem((9, 9, 9, 9)), {"MR": 6, "NR": 16, "KC": 64})
    assert {1, 2, 3} == {shape[0] for shape in shapes}
    assert shapes[-1][0] == 2 and len(set(shapes)) == len(shapes)


def test_templates_of_gemm_serve_batches() -> None:
    found = derive(OP.problem((8, 512, 512, 512), epilogue="bias,relu"), OP, registry.templates("cpu"))
    names = {variant.name for variant in found.variants}
    assert {"cache_tiled", "register_tiled", "unpacked", "split_k+combine", "contraction"} <= names


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 13, 11, 7), (2, 65, 130, 33)], ids=str)
def test_a_plan_multiplies_a_batch(layout: str, shape: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (batch, m, k)).astype("f4"), rng.integers(-4, 5, (batch, k, n)).astype("f4")
    bias, c = rng.integers(-4, 5, n).astype("f4"), rng.integers(-4, 5, (batch, m, n)).astype("f4")
    given = (x.swapaxes(1, 2).copy() if layout[0] == "t" else x for x in (a, b))
    plan = ks.load("bmm", shape=shape, layout=layout, epilogue="bias,relu,residual", device="cpu")
    d = plan(*given, bias=bias, C=c, beta=2.0)
    np.testing.assert_array_equal(d, np.maximum(a @ b + bias + 2 * c, 0))


def test_more_matrices_than_a_grid_has_rows() -> None:
    batch = 70_001
    a, b = np.arange(batch, dtype="f4").reshape(-1, 1, 1), np.full((1, 1, 2), 2, "f4")
    plan = ks.load("bmm", shape=(batch, 1, 2, 1), device="cpu")
    d = plan(a, np.broadcast_to(b, (batch, 1, 2)))
    np.testing.assert_array_equal(d[:, 0, 1], 2 * np.arange(batch, dtype="f4"))
