"""The reference in blocks is the reference, whatever the problem's layout, epilogue and size."""

from __future__ import annotations

import numpy as np
import pytest

from kernsearch import registry
from kernsearch.gates import reference
from kernsearch.gates.reference import Reference, free_axes
from kernsearch.meaning import interpret

OP = registry.op("gemm")


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("epilogue", ["none", "bias,gelu,residual"])
def test_blocks_put_together_are_the_whole(monkeypatch: pytest.MonkeyPatch, layout: str, epilogue: str) -> None:
    problem = OP.problem((151, 203, 17), layout=layout, epilogue=epilogue)
    inputs, scalars = OP.inputs[0].make(problem, np.random.default_rng(0))
    whole = interpret(OP.root(problem), inputs, OP.sizes(problem), scalars)["D"]
    allowed = OP.bound(problem, inputs, scalars, {"D": whole})["D"]
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", 5000)
    found = Reference(OP, problem, inputs, scalars)
    assert len(found) > 4
    seen = np.zeros(whole.shape, int)
    for block in found.blocks():
        where = block.where["D"]
        seen[where] += 1
        np.testing.assert_allclose(block.expected["D"], whole[where], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(block.allowed["D"], allowed[where], rtol=1e-5)
        assert (block.allowed["D"] >= allowed[where] * (1 - 1e-7)).all()
    assert (seen == 1).all()
    assert found.known


def test_blocks_that_are_large_beside_the_arrays_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "LEAST_BUDGET_BYTES", 0)
    problem = OP.problem((40, 50, 1))
    found = Reference(OP, problem, *OP.inputs[0].make(problem, np.random.default_rng(0)))
    list(found.blocks())
    assert not found.known


def test_only_axes_that_nothing_sums_over_may_be_cut() -> None:
    assert free_axes(OP.root(OP.problem((3, 4, 5))), OP) == ("m", "n")


def test_the_arrays_of_a_problem_are_in_the_order_of_the_caller() -> None:
    arrays = reference.operands(OP, OP.problem((3, 4, 5), layout="tn", epilogue="bias,residual"))
    assert {name: (a.role, a.shape) for name, a in arrays.items()} == {
        "A": ("input", (5, 3)),
        "B": ("input", (5, 4)),
        "bias": ("input", (4,)),
        "C": ("input", (3, 4)),
        "D": ("output", (3, 4)),
    }
