"""Broken kernels run on a real GPU: each is stopped by its gate with a reason, and the next one is unharmed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from gpu_plans import PARTIAL, TUNED, make_plan

from kernsearch import backends, registry
from kernsearch.backends.cuda import ceilings as cuda_ceilings
from kernsearch.device import Device
from kernsearch.errors import DeviceError, Rejected
from kernsearch.gates import cuda_machine, open_bench
from kernsearch.gates.device_bench import DeviceBench
from kernsearch.measure import policy, quick
from kernsearch.model import ceilings
from kernsearch.plan import Plan

pytestmark = pytest.mark.gpu
CONFIG = {"BM": 16, "BN": 16, "BK": 16}


@pytest.fixture(scope="module")
def where() -> Device:
    try:
        return backends.get("cuda").device(0)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bench(where: Device) -> Iterator[DeviceBench]:
    op = registry.op("gemm")
    problem = op.problem(TUNED, "float32", backend="cuda")
    with open_bench(op, problem, where, backends.get("cuda"), run_timeout_s=3.0) as bench:
        assert isinstance(bench, DeviceBench)
        yield bench


@pytest.fixture(scope="module")
def cubins(where: Device) -> Callable[[Plan], list]:
    """What a plan's one kernel was compiled to: the same object for all, as it holds every entry of the source."""
    built = backends.get("cuda").compile(make_plan("good").kernels[0], where, timeout_s=60.0)
    return lambda plan: [built]


@dataclass(frozen=True)
class Broken:
    entry: str
    gate: str
    words: str  # a regular expression that the reason matches
    plan: dict[str, Any] = field(default_factory=dict)


TABLE = [
    Broken("writes_past_the_end", "execution", "wrote past the end of D, 0 bytes after it"),
    Broken("writes_before_the_start", "execution", "wrote before the start of D"),
    Broken("writes_between_rows", "execution", "wrote between the rows of D, after row 0"),
    Broken("overflows_its_scratch", "execution", "wrote past the end of scratch", {"scratch": "K * ITEMSIZE"}),
    Broken("scales_its_input", "execution", r"changed its input A, first at \[0, 0\]"),
    Broken("reads_nowhere", "execution", "illegal memory access"),
    Broken("stores_nowhere", "execution", "illegal memory access"),
    Broken("misaligned", "execution", "misaligned address"),
    Broken("traps", "execution", "illegal instruction|unspecified launch failure"),
    Broken("loops_forever", "execution", "still running after 3 s"),
    Broken("good", "compile", "bytes of shared memory in a block, at most", {"shared": "240000"}),
    Broken("good", "execution", "launch failed|shared memory", {"shared": "min(M * 1000, 232000)"}),
    Broken("takes_many_registers", "compile", "registers in a block, at most", {"block": "1024"}),
    Broken("takes_many_registers", "execution", "launch failed", {"block": "min(M * 1024, 1024)"}),
    Broken("no_such_kernel", "execution", "missing|no_such_kernel"),
    Broken("misses_a_barrier", "correctness", "off by|where the reference|two runs differ|read before"),
    Broken("skips_a_tile", "correctness", "is unwritten, or was read before it was written"),
    Broken("wrong_at_an_edge", "correctness", r"D\[\d+, \d+\] is .*, should be .*: off by .*, allowed"),
    Broken("wrong_at_the_tuned_shape", "correctness", r"D\[299, 7\] is .* off by [^(]*$"),
    Broken("sums_in_another_order_each_time", "correctness", "two runs differ"),
    Broken("adds_to_stale_workspace", "correctness", "is nan where the reference|NaN read from workspace",
           {"workspace": PARTIAL}),
]  # fmt: skip


def _name(broken: Broken) -> str:
    return "-".join([broken.entry, *(f"{name}={text}" for name, text in broken.plan.items() if isinstance(text, str))])


@pytest.mark.parametrize("broken", TABLE, ids=_name)
def test_a_broken_kernel_is_stopped_by_its_gate_and_the_next_is_unharmed(
    bench: DeviceBench, cubins, broken: Broken
) -> None:
    plan, good = make_plan(broken.entry, **broken.plan), make_plan("good")
    with pytest.raises(Rejected) as caught:
        if broken.gate == "compile":
            backends.get("cuda").compile(plan.kernels[0], bench.device, timeout_s=60.0)
        bench.examine(plan, cubins(plan), CONFIG)
    assert caught.value.gate == broken.gate
    assert re.search(broken.words, caught.value.reason), caught.value.reason
    evidence = bench.examine(good, cubins(good), CONFIG)
    assert evidence["full"] and 0 < evidence["error"] <= 1


@pytest.mark.parametrize(
    ("entry", "more"),
    [("good", {}), ("waits_but_keeps_its_barriers", {}), ("starts_its_workspace", {"workspace": PARTIAL})],
)
def test_a_good_kernel_passes_all_gates(bench: DeviceBench, cubins, entry: str, more: dict[str, Any]) -> None:
    plan = make_plan(entry, **more)
    evidence = bench.examine(plan, cubins(plan), CONFIG, thorough=True)
    assert evidence["repeats"] == 20 and evidence["full"]
    assert evidence["edge_runs"] > 30 and evidence["edge_runs_skipped"] == 0
    assert 0 < evidence["error"] <= 1 and 0 < evidence["edge_error"] <= 1


def test_plans_with_aligned_rows_are_run_on_odd_shapes(bench: DeviceBench, cubins) -> None:
    rules = ("B.k * ITEMSIZE % 16 == 0", "B.base % 16 == 0")
    plan = make_plan("good", assumes=rules)
    assert bench.examine(plan, cubins(plan), CONFIG)["edge_runs_skipped"] == 0


def test_device_memory_is_flat_over_many_refusals(bench: DeviceBench, cubins) -> None:
    bad = make_plan("skips_a_tile")
    cubin = cubins(bad)
    free = []
    for _ in range(200):
        with pytest.raises(Rejected):
            bench.examine(bad, cubin, CONFIG)
        free.append(bench.process.ask({"do": "memory"})["memory"][0])
    assert free[-1] >= free[20] - (16 << 20)


def test_a_kernel_that_allocates_and_forgets_costs_the_next_one_nothing(bench: DeviceBench, cubins) -> None:
    plan, good = make_plan("allocates_and_forgets"), make_plan("good")
    for _ in range(20):
        bench.examine(plan, cubins(plan), CONFIG)
    assert bench.examine(good, cubins(good), CONFIG, thorough=True)["full"]


def test_a_timer_samples_cold_and_warm_and_survives_a_fault(bench: DeviceBench, cubins) -> None:
    good, bad = make_plan("good"), make_plan("stores_nowhere")
    cold, warm = bench.timer(good, cubins(good)), bench.timer(good, cubins(good), cold=False)
    for timer in (cold, warm):
        assert all(0 < seconds < 1e-2 for seconds in timer(5).seconds)
    with pytest.raises(Rejected, match="illegal memory access"):
        bench.timer(bad, cubins(bad))(1)
    assert quick(cold).median_s > 0
    seen = bench.conditions()
    assert not seen or seen["sm_mhz"]["max"] > 0
    assert bench.policy == policy(bench.device) == "cuda-graph-rotating-1"


def test_runs_wait_for_what_was_filled_before_them_also_after_a_timing(bench: DeviceBench, cubins) -> None:
    plan = make_plan("starts_its_workspace", workspace=PARTIAL)
    bench.timer(plan, cubins(plan))(3)
    for _ in range(5):
        assert bench.examine(plan, cubins(plan), CONFIG, thorough=True)["repeats"] == 20


def test_a_device_is_waited_for_on_whatever_stream_it_works(where: Device) -> None:
    made = cuda_machine.machine(where)
    array, null = made.xp.ones((4096, 4096)), made.xp.cuda.Stream.null
    made.synchronize()
    null.use()  # as CuPy does by itself after `with`
    try:
        for _ in range(20):
            array @ array
        assert not null.done
        made.synchronize()
        assert null.done
    finally:
        null.use()


def test_ceilings_leave_the_stream_as_it_was(where: Device) -> None:
    made = cuda_machine.machine(where)
    try:
        cuda_ceilings.measure_here(where)
        assert made.xp.cuda.get_current_stream() == made.stream
    finally:
        made.xp.cuda.Stream.null.use()


def test_a_hang_while_timing_is_ended(bench: DeviceBench, cubins) -> None:
    hang, good = make_plan("loops_forever"), make_plan("good")
    with pytest.raises(Rejected, match="still running after 3 s"):
        bench.timer(hang, cubins(hang))(1)
    assert len(bench.timer(good, cubins(good))(3).seconds) == 3


def test_the_device_process_ends_with_its_bench(where: Device, cubins) -> None:
    op, good = registry.op("gemm"), make_plan("good")
    with DeviceBench(op, op.problem(TUNED, "float32", backend="cuda"), where) as bench:
        bench.examine(good, cubins(good), CONFIG)
        pid = bench.process.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ceilings_are_measured(where: Device, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    found = ceilings.of(backends.get("cuda"), where, again=True)
    assert found.measured and found.how
    assert found.flops["float16"] > found.flops["float32"] > 1e11
    assert found.read["l2"] > found.read["memory"] > 1e10 and found.copy > 1e10
    assert 1e-7 < found.launch_s < 1e-4
