"""A plan and arrays give buffers, sizes and scalars; arrays that do not fit are named."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from kernsearch import launch
from kernsearch.errors import ProblemError
from kernsearch.launch import ArrayView
from kernsearch.plan import Buffer, KernelPlan, Operand, Plan


def plan() -> Plan:
    kernel = KernelPlan(
        "split_k", "k.c", "", "entry", "", {}, ("A", "B", "P", "scratch"),
        ("M", "N", "K", "A.m", "B.k", "P.s", "THREADS * 2"), ("alpha",), scratch="THREADS * up(K, 8) * ITEMSIZE",
    )  # fmt: skip
    combine = KernelPlan("combine", "c.c", "", "entry", "", {}, ("P", "D"), ("ceil(K, 4)", "D.m"), ("beta", "alpha"))
    return Plan(
        "cpu", ("M", "N", "K"),
        (
            Operand("A", "float32", ("m", "k"), ("M", "K"), "input"),
            Operand("B", "float32", ("k", "n"), ("K", "N"), "input"),
            Operand("D", "float32", ("m", "n"), ("M", "N"), "output"),
        ),
        {"alpha": 1.0, "beta": 0.0},
        (Buffer("P", "float64", ("s", "m", "n"), ("4", "M", "N")),),
        (kernel, combine),
        assumes=("B.n == 1",),
    )  # fmt: skip


def arrays(**changed: ArrayView) -> dict[str, ArrayView]:
    given = {
        "A": ArrayView(0, (3, 5), (11, 1), 4),
        "B": ArrayView(0, (5, 7), (7, 1), 4),
        "D": ArrayView(0, (3, 7), (9, 1), 4),
    }
    return given | changed


def test_sizes_strides_and_scalars_are_resolved_in_the_order_of_the_plan() -> None:
    call = launch.resolve(plan(), arrays(), {"alpha": 2.0}, threads=2)
    first, second = call.kernels
    assert first.sizes == (3, 7, 5, 11, 7, 21, 4)
    assert first.scalars == (2.0,)
    assert first.scratch_bytes == 2 * 8 * 4
    assert second.sizes == (2, 9)
    assert second.scalars == (0.0, 2.0)
    assert call.workspace == {"P": 4 * 3 * 7 * 8}
    assert (
        call.workspace_bytes == 768 + 64
    )  # the value from a multiple of 256 on, then scratch, both in the first kernel


def test_an_unmet_assumption_is_named() -> None:
    assert launch.unmet(plan(), launch.names(plan(), arrays(), 1)) is None
    transposed = arrays(B=ArrayView(0, (5, 7), (1, 5), 4))
    assert launch.unmet(plan(), launch.names(plan(), transposed, 1)) == "B.n == 1"


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"B": ArrayView(0, (6, 7), (7, 1), 4)}, "array 'B' has 6 along 'k', another array 5"),
        ({"B": ArrayView(0, (5,), (1,), 4)}, "array 'B' has 1 dimensions, want 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(changed: dict[str, ArrayView], words: str) -> None:
    with pytest.raises(ProblemError, match=words):
        launch.resolve(plan(), arrays(**changed))


def test_missing_arrays_and_unknown_scalars_are_named() -> None:
    given = arrays()
    del given["A"]
    with pytest.raises(ProblemError, match="array 'A' is missing"):
        launch.resolve(plan(), given)
    with pytest.raises(ProblemError, match="scalar 'gamma': want alpha, beta"):
        launch.resolve(plan(), arrays(), {"gamma": 1.0})


def test_resolving_needs_nothing_heavy() -> None:
    heavy = ("numpy", "networkx", "optuna", "joblib")
    code = f"import sys, kernsearch.launch; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("damage", [{"scratch": "0 - 500"}, {"scratch": "M - 100"}])
def test_a_plan_whose_memory_is_less_than_nothing_is_flawed(damage: dict[str, str]) -> None:
    good = plan()
    assert launch.flaw(good, (3, 7, 5)) is None
    kernels = (replace(good.kernels[0], **damage), *good.kernels[1:])
    assert launch.flaw(replace(good, kernels=kernels), (3, 7, 5)) == "its workspace is less than nothing"
