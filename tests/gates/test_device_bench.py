"""The process that owns a device: its gates stop what the CPU's do, and what ends it is named and never inherited."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from gate_plans import TUNED, make_plan

from kernsearch import registry
from kernsearch.errors import DeviceError, Rejected
from kernsearch.gates.device_bench import DeviceBench, DeviceProcess
from kernsearch.plan import Buffer

CONFIG = {"MR": 8, "KC": 8}
MACHINE = "host_machine:HostMachine"


@pytest.fixture(scope="module")
def bench(device) -> Iterator[DeviceBench]:
    op = registry.op("gemm")
    with DeviceBench(op, op.problem(TUNED), device, run_timeout_s=2.0, machine=MACHINE) as bench:
        yield bench


@dataclass(frozen=True)
class Broken:
    entry: str
    gate: str
    words: str  # a regular expression that the reason matches
    ends: bool  # does the process end with it?
    plan: dict[str, Any] = field(default_factory=dict)


TABLE = [
    Broken("wrong_at_one_edge", "correctness", r"D\[\d+, \d+\] is .*, should be .*: off by .*, allowed", False),
    Broken("skips_a_tile", "correctness", "is unwritten, or was read before it was written", False),
    Broken("wrong_at_the_tuned_shape", "correctness", r"D\[30, 20\] is .* off by [^(]*$", False),
    Broken("loses_nan", "correctness", r"is 0 where the reference has nan", False),
    Broken("adds_to_stale_workspace", "correctness", "NaN read from workspace or scratch", False,
           {"workspace": (Buffer("P", "float32", ("m", "n"), ("M", "N")),)}),
    Broken("pads_with_scratch", "correctness", "NaN read from workspace", False, {"scratch": "up(K, 8) * ITEMSIZE"}),
    Broken("reads_past_the_end", "correctness", "NaN read from outside an input", False),
    Broken("sums_in_another_order_each_time", "correctness", r"two runs differ: D\[.*\] is .*, then", False),
    Broken("writes_past_the_end", "execution", "wrote past the end of D, 0 bytes after it", True),
    Broken("writes_before_the_start", "execution", "wrote before the start of D", True),
    Broken("writes_between_rows", "execution", "wrote between the rows of D, after row 0", True),
    Broken("overflows_its_scratch", "execution", "wrote past the end of scratch of kernel 1", True,
           {"scratch": "up(K, 8) * ITEMSIZE"}),
    Broken("scales_its_input", "execution", r"changed its input A, first at \[0, 0\]", True),
    Broken("segfaults", "execution", "segmentation fault", True),
    Broken("loops_forever", "execution", "still running after 2 s", True),
    Broken("aborts", "execution", r"abort\(\)", True),
    Broken("leaves", "execution", r"ended the process: exit\(0\)", True),
]  # fmt: skip


@pytest.mark.parametrize("broken", TABLE, ids=lambda b: b.entry)
def test_a_broken_kernel_is_stopped_by_its_gate_and_the_next_is_unharmed(
    bench: DeviceBench, objects, broken: Broken
) -> None:
    plan, good = make_plan(broken.entry, **broken.plan), make_plan("good")
    before = bench.process.restarts
    with pytest.raises(Rejected) as caught:
        bench.examine(plan, objects(plan), CONFIG)
    assert caught.value.gate == broken.gate
    assert re.search(broken.words, caught.value.reason), caught.value.reason
    assert not caught.value.doubtful
    assert bench.examine(good, objects(good), CONFIG)["full"]
    assert bench.process.restarts == max(before, 0) + broken.ends


def test_a_good_kernel_passes_all_gates(bench: DeviceBench, objects) -> None:
    plan = make_plan("good")
    evidence = bench.examine(plan, objects(plan), CONFIG, thorough=True)
    assert evidence["repeats"] == 20
    assert evidence["full"] and evidence["edge_runs"] > 50
    assert 0 < evidence["error"] <= 1 and 0 < evidence["edge_error"] <= 1


def test_a_hang_says_which_limit_it_overran(bench: DeviceBench, objects) -> None:
    plan = make_plan("loops_forever")
    with pytest.raises(Rejected) as caught:
        bench.examine(plan, objects(plan), CONFIG)
    assert caught.value.limit_s == 2.0


def test_a_plan_is_not_run_where_its_assumptions_fail(bench: DeviceBench, objects) -> None:
    plan = make_plan("good", assumes=("K % 2 == 0",))
    evidence = bench.examine(plan, objects(plan), CONFIG, thorough=True)
    assert evidence["edge_runs_skipped"] > 0 and evidence["edge_runs"] > 0
    never = make_plan("good", assumes=("K % 64 == 0",))
    with pytest.raises(Rejected, match="assumes K % 64 == 0, which this problem does not give"):
        bench.examine(never, objects(never), CONFIG)


def test_plans_for_aligned_rows_are_run_on_odd_shapes_with_padded_rows(device, objects) -> None:
    op = registry.op("gemm")
    rules = ("A.m * ITEMSIZE % 16 == 0", "B.k * ITEMSIZE % 16 == 0", "A.base % 16 == 0", "B.base % 16 == 0")
    plan = make_plan("good", assumes=rules)
    with DeviceBench(op, op.problem((61, 44, 72)), device, machine=MACHINE) as bench:
        evidence = bench.examine(plan, objects(plan), CONFIG, thorough=True)
        glance = bench.examine(plan, objects(plan), CONFIG)
    assert evidence["edge_runs_skipped"] == 0 and evidence["edge_runs"] > 50
    assert 20 < glance["edge_runs"] < evidence["edge_runs"]


def test_a_timer_samples_and_goes_on_in_a_fresh_process(bench: DeviceBench, objects) -> None:
    good, bad = make_plan("good"), make_plan("segfaults")
    timer = bench.timer(good, objects(good))
    assert len(timer(3).seconds) == 3
    with pytest.raises(Rejected, match="segmentation fault"):
        bench.timer(bad, objects(bad))(2)
    timing = timer(2)
    assert len(timing.seconds) == 2 and min(timing.seconds) > 0
    assert len(bench.timer(good, objects(good), cold=False)(1).seconds) == 1


def test_workspace_is_given_to_each_copy_that_is_timed(bench: DeviceBench, objects) -> None:
    plan = make_plan("adds_to_stale_workspace", workspace=(Buffer("P", "float32", ("m", "n"), ("M", "N")),))
    assert len(bench.timer(plan, objects(plan))(2).seconds) == 2


def test_a_device_that_cannot_be_used_is_told_in_one_line(device, objects) -> None:
    op = registry.op("gemm")
    with (
        DeviceBench(op, op.problem(TUNED), device, machine="host_machine:Nothing") as bench,
        pytest.raises(DeviceError, match=r"cpu cannot be used: AttributeError: .* \(device_child.py:\d+\)"),
    ):
        bench.examine(make_plan("good"), objects(make_plan("good")), CONFIG)


def test_a_process_ends_with_its_bench(device) -> None:
    process = DeviceProcess(device, machine=MACHINE)
    with pytest.raises(DeviceError):
        process.ask({"do": "ceilings", "module": "no_such_module"})
    assert process.pid is None
    process.close()
    op = registry.op("gemm")
    with DeviceBench(op, op.problem(TUNED), device, machine=MACHINE) as bench:
        assert bench.conditions() == {}
        bench.process.ask({"do": "time", "key": 0, "repeat": 1})
        pid = bench.process.pid
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
