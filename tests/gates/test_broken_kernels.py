"""Broken kernels, real sources run for real: each is stopped by its gate with a reason, the next one is unharmed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gate_plans import TUNED, make_plan

from kernsearch import backends, registry
from kernsearch.errors import Rejected
from kernsearch.gates import Bench
from kernsearch.plan import Buffer
from kernsearch.worker import Worker

CONFIG = {"MR": 8, "KC": 8}
PADDED_ROW = "up(K, 8) * ITEMSIZE"


@dataclass(frozen=True)
class Broken:
    entry: str
    gate: str
    words: str  # a regular expression that the reason matches
    plan: dict[str, Any] = field(default_factory=dict)


TABLE = [
    Broken("wrong_at_one_edge", "correctness", r"D\[\d+, \d+\] is .*, should be .*: off by .*, allowed"),
    Broken("skips_a_tile", "correctness", "is unwritten, or was read before it was written"),
    Broken("forgets_the_end_of_k", "correctness", r"off by .* \(at "),
    Broken("forgets_alpha", "correctness", "off by"),
    Broken("swaps_two_columns", "correctness", "off by"),
    Broken("rounds_to_half", "correctness", r"off by .*, allowed"),
    Broken("knows_one_shape_only", "correctness", r"unwritten.* \(at 1x1x1, normal\)"),
    Broken("wrong_at_the_tuned_shape", "correctness", r"D\[30, 20\] is .* off by [^(]*$"),
    Broken("loses_nan", "correctness", r"is 0 where the reference has nan"),
    Broken("flushes_subnormals", "correctness", r"is -?0, should be .*subnormal products"),
    Broken("adds_to_the_output", "correctness", "is unwritten, or was read before it was written"),
    Broken(
        "adds_to_stale_workspace", "correctness", "NaN read from workspace or scratch that was not written",
        {"workspace": (Buffer("P", "float32", ("m", "n"), ("M", "N")),)},
    ),
    Broken("pads_with_scratch", "correctness", "NaN read from workspace or scratch", {"scratch": PADDED_ROW}),
    Broken("writes_past_the_end", "execution", "wrote past the end of D, 0 bytes after it"),
    Broken("writes_before_the_start", "execution", "wrote before the start of D"),
    Broken("writes_between_rows", "execution", "wrote between the rows of D, after row 0"),
    Broken("overflows_its_scratch", "execution", "wrote past the end of scratch of kernel 1", {"scratch": PADDED_ROW}),
    Broken("reads_past_the_end", "correctness", "NaN read from outside an input"),
    Broken("scales_its_input", "execution", r"changed its input A, first at \[0, 0\]"),
    Broken("scribbles_far_away", "execution", "wrote|changed its input"),
    Broken("ruins_the_neighbours_and_aborts", "execution", r"abort\(\)"),
    Broken("races", "correctness", "off by|two runs differ"),
    Broken("sums_in_another_order_each_time", "correctness", r"two runs differ: D\[.*\] is .*, then"),
    Broken("waits_for_threads_that_never_come", "execution", "still running after 2 s"),
    Broken("segfaults", "execution", "segmentation fault"),
    Broken("loops_forever", "execution", "still running after 2 s"),
    Broken("sleeps", "execution", "still running after 2 s"),
    Broken("aborts", "execution", r"abort\(\)"),
    Broken("eats_memory", "execution", "used more than 100 MB of memory"),
    Broken("leaves", "execution", r"ended the process: exit\(0\)"),
    Broken("closes_all_files", "execution", "closed file descriptors that are not its own"),
]  # fmt: skip


@pytest.mark.parametrize("broken", TABLE, ids=lambda b: b.entry)
def test_a_broken_kernel_is_stopped_by_its_gate_and_the_next_is_unharmed(bench: Bench, objects, broken: Broken) -> None:
    plan = make_plan(broken.entry, **broken.plan)
    with pytest.raises(Rejected) as caught:
        bench.examine(plan, objects(plan), CONFIG)
    assert caught.value.gate == broken.gate
    assert re.search(broken.words, caught.value.reason), caught.value.reason
    good = make_plan("good")
    assert bench.examine(good, objects(good), CONFIG)["full"]


@pytest.mark.parametrize("entry", ["good", "talkative"])
def test_a_good_kernel_passes_all_gates(bench: Bench, objects, entry: str) -> None:
    plan = make_plan(entry)
    evidence = bench.examine(plan, objects(plan), CONFIG, thorough=True)
    assert evidence["repeats"] == 20
    assert evidence["full"] and evidence["edge_runs"] > 50
    assert 0 < evidence["error"] <= 1 and 0 < evidence["edge_error"] <= 1


def test_a_kernel_that_may_move_is_not_asked_to_repeat_its_bits(bench: Bench, objects) -> None:
    plan = make_plan("sums_in_another_order_each_time", deterministic=False)
    bench.examine(plan, objects(plan), CONFIG, thorough=True)


def test_a_compile_that_never_ends_is_stopped_by_the_compile_gate(device, bench: Bench, objects) -> None:
    kernel = make_plan("anything", "endless.c").kernels[0]
    with pytest.raises(Rejected, match="the compiler took more than 1 s") as caught:
        backends.get("cpu").compile(kernel, device, timeout_s=1.0)
    assert caught.value.gate == "compile"
    good = make_plan("good")
    bench.examine(good, objects(good), CONFIG)


@pytest.fixture(scope="module")
def silu_bench(device, worker) -> Bench:
    op = registry.op("gemm")
    return Bench(op, op.problem(TUNED, epilogue="silu"), device, backends.get("cpu"), worker, threads=2)


def test_an_exp_by_rounding_is_right_until_fast_math_breaks_it(silu_bench: Bench, objects) -> None:
    plan = make_plan("product", "fast_math.c", flags=("-fno-math-errno",))
    silu_bench.examine(plan, objects(plan), CONFIG)
    reordered = make_plan(
        "product", "fast_math.c",
        flags=("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-freciprocal-math"),
    )  # fmt: skip
    with pytest.raises(Rejected, match=r"off by|where the reference has") as caught:
        silu_bench.examine(reordered, objects(reordered), CONFIG)
    assert caught.value.gate == "correctness"
    fast = make_plan("product", "fast_math.c", flags=("-ffast-math",))
    with pytest.raises(Rejected, match=r"off by|where the reference has|floating-point mode"):
        silu_bench.examine(fast, objects(fast), CONFIG)
    silu_bench.examine(plan, objects(plan), CONFIG)


def test_a_plan_is_not_run_where_its_assumptions_fail(bench: Bench, objects) -> None:
    plan = make_plan("good", assumes=("K % 2 == 0",))
    evidence = bench.examine(plan, objects(plan), CONFIG)
    assert evidence["edge_runs_skipped"] > 0
    assert evidence["edge_runs"] > 0
    never = make_plan("good", assumes=("K % 64 == 0",))
    with pytest.raises(Rejected, match="assumes K % 64 == 0, which this problem does not give"):
        bench.examine(never, objects(never), CONFIG)


def test_inputs_of_the_tuned_shape_are_restored_after_a_broken_kernel(bench: Bench, objects) -> None:
    good, bad = make_plan("good"), make_plan("scales_its_input")
    bench.examine(good, objects(good), CONFIG)
    views = bench._operands().views
    before = {name: views[name].copy() for name in "AB"}
    with pytest.raises(Rejected):
        bench.examine(bad, objects(bad), CONFIG)
    with pytest.raises(Rejected):
        bench._at_tuned_shape(bad, objects(bad), False, None)
    for name, array in before.items():
        assert np.array_equal(views[name], array)


def test_a_timer_times_every_repeat_and_refuses_what_crashes(bench: Bench, objects) -> None:
    good = make_plan("good")
    timing = bench.timer(good, objects(good))(3)
    assert len(timing.seconds) == 3 and min(timing.seconds) > 0
    bad = make_plan("segfaults")
    with pytest.raises(Rejected, match="segmentation fault"):
        bench.timer(bad, objects(bad))(3)
    assert len(bench.timer(good, objects(good), cold=False)(2).seconds) == 2


def test_a_bench_is_the_same_in_every_process_with_its_seed(device, objects) -> None:
    op = registry.op("gemm")
    made = []
    for _ in range(2):
        with Worker(device, threads=1) as worker:
            made.append(Bench(op, op.problem(TUNED), device, None, worker, seed=3)._operands().views["A"].copy())
    assert np.array_equal(*made)
