"""The bench accepts what is right in every dtype and layout, and refuses to judge with a reference that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_plans import HERE, TUNED, make_plan

from kernsearch import registry
from kernsearch.errors import Rejected, SpaceError
from kernsearch.gates import Bench
from kernsearch.plan import KernelPlan, Operand, Plan

CONFIG = {"MR": 4, "NR": 8, "KC": 16, "SPLIT": 3}
C_TYPES = {"float32": "float", "float64": "double"}


def epilogue_plan(entry: str, dtype: str, layout: str) -> Plan:
    strides = ("A.m", "A.k", "B.k", "B.n", "C.m", "C.n", "D.m", "D.n")
    kernel = KernelPlan(
        template="test_epilogue", source=str(HERE / "epilogue.c"), tokens="", entry=entry, header="", defines={},
        buffers=("A", "B", "bias", "C", "D"), sizes=("M", "N", "K", *strides), scalars=("alpha", "beta"),
        flags=(f"-DT={C_TYPES[dtype]}",),
    )  # fmt: skip
    axes = {
        "A": "mk" if layout[0] == "n" else "km",
        "B": "kn" if layout[1] == "n" else "nk",
        "bias": "n",
        "C": "mn",
        "D": "mn",
    }
    operands = tuple(
        Operand(name, dtype, tuple(a), tuple(a.upper()), "output" if name == "D" else "input")
        for name, a in axes.items()
    )
    return Plan("cpu", ("M", "N", "K"), operands, {"alpha": 1.0, "beta": 0.0}, (), (kernel,))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
def test_a_right_kernel_is_accepted_in_every_dtype_and_layout(device, worker, objects, dtype: str, layout: str) -> None:
    op = registry.op("gemm")
    problem = op.problem((29, 23, 37), dtype, layout=layout, epilogue="bias,residual")
    bench = Bench(op, problem, device, None, worker, threads=1)
    plan = epilogue_plan("product", dtype, layout)
    assert bench.examine(plan, objects(plan), CONFIG, thorough=True)["full"]


def test_a_kernel_that_looks_at_c_when_beta_is_zero_is_refused(device, worker, objects) -> None:
    op = registry.op("gemm")
    problem = op.problem((29, 23, 37), epilogue="bias,residual")
    bench = Bench(op, problem, device, None, worker, threads=1)
    plan = epilogue_plan("always_looks_at_c", "float32", "nn")
    with pytest.raises(Rejected, match=r"is nan where the reference has .*beta = 0, C NaN"):
        bench.examine(plan, objects(plan), CONFIG)


def test_a_reference_that_fails_its_own_check_judges_nobody(device, worker) -> None:
    op = registry.op("gemm")

    def wrong(problem, inputs, scalars):
        return {name: 1.001 * out for name, out in op.textbook(problem, inputs, scalars).items()}

    with pytest.raises(SpaceError, match="op 'gemm': its reference of D disagrees with plain loops"):
        Bench(replace(op, textbook=wrong), op.problem(TUNED), device, None, worker)


def test_a_large_problem_is_checked_by_an_identity_and_fully_when_thorough(device, worker, objects) -> None:
    op = registry.op("gemm")
    bench = Bench(op, op.problem(TUNED), device, None, worker, threads=2, slow_reference_flops=0)
    good, bad = make_plan("good"), make_plan("wrong_at_the_tuned_shape")
    quick = bench.examine(good, objects(good), CONFIG)
    assert not quick["full"] and 0 < quick["error"] <= 1
    with pytest.raises(Rejected, match=r"D\[30, 20\] is"):
        bench.examine(bad, objects(bad), CONFIG)
    assert bench.examine(good, objects(good), CONFIG, thorough=True)["full"]


def test_without_an_identity_a_large_problem_is_checked_by_samples(device, worker, objects) -> None:
    op = replace(registry.op("gemm"), identity=None)
    bench = Bench(op, op.problem(TUNED), device, None, worker, threads=2, slow_reference_flops=0)
    plan = make_plan("good")
    assert not bench.examine(plan, objects(plan), CONFIG)["full"]


def test_benches_may_take_turns_on_one_worker(device, worker, objects) -> None:
    op = registry.op("gemm")
    benches = [Bench(op, op.problem(shape), device, None, worker, threads=2) for shape in (TUNED, (9, 80, 33))]
    plan = make_plan("good")
    for bench in benches * 2:
        bench.examine(plan, objects(plan), CONFIG)
    assert all(np.isfinite(bench._operands().views["D"]).all() for bench in benches[1:])
