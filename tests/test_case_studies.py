"""The case studies that run on a CPU and on CUDA: their arms on every kind of device, and each run at a small size."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import know_rates

from kernsearch import backends, registry
from kernsearch.cases import find, judged, recording, run, running
from kernsearch.cases.case import Arm, Case
from kernsearch.cases.prepare import Prepared, all_prepared
from kernsearch.device import Device
from kernsearch.model import ceilings
from kernsearch.records import classes
from kernsearch.space import zeroed
from kernsearch.worker import Timing

NAMES = ("split-k", "fusion", "hot-cache", "fast-math")
DEVICES = ("x86_64-avx2", "x86_64-avx512", "aarch64-neon", "sm_80", "sm_89", "sm_90a")
SMALL = {3: (72, 72, 512), 2: (24, 8192)}  # by the number of sizes


def device_of(arch: str) -> tuple[Any, Device]:
    if arch.startswith("sm_"):
        backend = backends.get("cuda")
        return backend, backend.compile_only(arch)
    return backends.get("cpu"), classes.of("cpu", arch).device()


@functools.cache
def arms_of(name: str, arch: str) -> tuple[Device, dict[str, Prepared]]:
    (backend, device), case = device_of(arch), find(name)
    found = all_prepared(case.arms(device), case.op, backend, device, ceilings.guess(device))
    return device, {one.arm.label: one for one in found}


def small(case: Case) -> Case:
    """The case at sizes that a test can afford."""

    def shrunk(arm: Arm) -> Arm:
        return replace(arm, shape=tuple(map(min, arm.shape, SMALL[len(arm.shape)])))

    return replace(case, arms=lambda device: tuple(shrunk(arm) for arm in case.arms(device)))


class Runs:
    """Small runs of cases on this CPU, each once; `asked` is (zeros, cold) of the timers that a run asked for."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.known: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, list[tuple[bool, bool]]] = {}

    def __call__(self, name: str) -> dict[str, Any]:
        if name not in self.known:
            self.known[name] = self._run(name, self.asked.setdefault(name, []))
        return self.known[name]

    def _run(self, name: str, asked: list[tuple[bool, bool]]) -> dict[str, Any]:
        real = running.open_bench

        @contextmanager
        def watched(*arguments: Any, zeros: bool, **named: Any) -> Iterator[Any]:
            with real(*arguments, zeros=zeros, **named) as bench:
                timer = bench.timer
                bench.timer = lambda *a, cold: asked.append((zeros, cold)) or timer(*a, cold=cold)
                yield bench

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KERNSEARCH_CACHE", str(self.home))
            know_rates(self.home)
            patch.setattr(running, "open_bench", watched)
            return run(small(find(name)), device="cpu", rounds=5, out=self.home / name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


# their arms


@pytest.mark.parametrize(
    ("name", "arch"),
    [(name, arch) for name in NAMES for arch in DEVICES]
    + [(name, arch) for name in ("occupancy", "bigger-tile-short-k") for arch in DEVICES if arch.startswith("sm_")]
    + [("multicast", "sm_90a")],
)
def test_arms_exist_everywhere_and_comparisons_are_between_them(name: str, arch: str) -> None:
    device, arms = arms_of(name, arch)
    comparisons = find(name).comparisons(device)
    assert {c.before for c in comparisons} | {c.after for c in comparisons} == set(arms)
    assert len({c.label for c in comparisons}) == len(comparisons) > 1
    assert all(one.prediction.seconds > 0 and math.isfinite(one.prediction.seconds) for one in arms.values())


@pytest.mark.parametrize("arch", DEVICES)
def test_slabs_change_nothing_but_the_letters_that_they_bring(arch: str) -> None:
    device, arms = arms_of("split-k", arch)
    for c in find("split-k").comparisons(device):
        before, after = (dict(arms[label].candidate.config) for label in (c.before, c.after))
        assert {letter for letter in before if before[letter] != after[letter]} <= {"SPLIT"}
        assert after["SPLIT"] > before.get("SPLIT", 1)
    for one in arms.values():
        assert len(one.plan.kernels) == (1 if "K whole" in one.arm.label else 2), "the second one adds up"


@pytest.mark.parametrize("arch", DEVICES)
def test_an_epilogue_apart_is_a_kernel_more_with_the_same_tile(arch: str) -> None:
    device, arms = arms_of("fusion", arch)
    *epilogues, row = find("fusion").comparisons(device)
    for c in epilogues:
        apart, fused = arms[c.before], arms[c.after]
        assert len(apart.plan.kernels) == 1 + len(fused.plan.kernels)
        assert set(fused.candidate.config) <= set(apart.candidate.config)
        assert fused.problem == apart.problem and "gelu_tanh" in fused.problem.key
    assert len(arms[row.after].plan.kernels) == 1 < len(arms[row.before].plan.kernels)
    assert (
        arms[row.after].op.name == "softmax"
        and arms[row.after].prediction.seconds > arms[row.before].prediction.seconds
    )


@pytest.mark.parametrize("name", ["hot-cache", "fast-math"])
@pytest.mark.parametrize("arch", DEVICES)
def test_arms_of_one_shape_differ_in_how_they_are_compiled_or_timed_alone(name: str, arch: str) -> None:
    device, arms = arms_of(name, arch)
    for c in find(name).comparisons(device):
        before, after = arms[c.before], arms[c.after]
        assert before.candidate == after.candidate and before.problem == after.problem
        assert before.told()["how"] == [] != after.told()["how"]
        flags = {flag for kernel in after.plan.kernels for flag in kernel.flags}
        assert set(after.arm.flags) <= flags and (before.plan == after.plan) == (not after.arm.flags)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_blocks_of_the_same_depth_are_fewer_where_they_are_larger(arch: str) -> None:
    _, arms = arms_of("occupancy", arch)
    for depth in (4096, 128):
        sizes = [arm.candidate for label, arm in arms.items() if label.endswith(f"K={depth}")]
        blocks = [dict(one.config) for one in sizes]
        assert [c["BLOCKS"] for c in blocks] == [1, 2, 3]
        assert sorted(blocks, key=lambda c: -c["BM"] * c["BN"]) == blocks
    assert {arm.candidate.variant for arm in arms.values()} == {"async_pipeline"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_larger_tile_is_larger_at_every_depth(arch: str) -> None:
    device, arms = arms_of("bigger-tile-short-k", arch)
    comparisons = find("bigger-tile-short-k").comparisons(device)
    areas = [[(c := dict(arms[x].candidate.config))["BM"] * c["BN"] for x in (d.before, d.after)] for d in comparisons]
    assert all(small < large for small, large in areas)
    depths = [arms[c.after].problem.shape[2] for c in comparisons]
    assert depths == sorted(depths) and all(arms[c.before].problem == arms[c.after].problem for c in comparisons)


def test_clusters_are_the_only_difference_of_multicast_and_need_hopper() -> None:
    device, arms = arms_of("multicast", "sm_90a")
    for c in find("multicast").comparisons(device):
        before, after = (dict(arms[label].candidate.config) for label in (c.before, c.after))
        assert {letter for letter in before if before[letter] != after[letter]} in ({"CM"}, {"CN"})
    assert find("multicast").arms(device_of("sm_80")[1]) == ()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["split-k", "fast-math", "occupancy", "multicast", "padding-or-swizzle", "overlap-ablation"]
)
def test_cubins_of_arms_are_made_without_a_device(name: str) -> None:
    device, arms = arms_of(name, "sm_90a")
    c = find(name).comparisons(device)[0]
    objects = [backends.get("cuda").compile(k, device, timeout_s=240) for k in arms[c.after].plan.kernels]
    assert all(built.evidence["registers"] > 0 for built in objects)


# runs


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_is_predicted_measured_and_judged_by_its_samples(name: str, ran: Runs) -> None:
    told = ran(name)
    predicted, found = (json.loads((ran.home / name / file).read_text()) for file in ("prediction.json", "data.json"))
    assert "samples_s" not in json.dumps(predicted) and "refused" not in json.dumps(predicted)
    for before, after in zip(predicted["arms"], found["arms"], strict=True):
        assert {key: after[key] for key in before} == before and len(after["samples_s"]) == 5
    assert judged(recording(found, name)) == found == json.loads(json.dumps(told))
    for c in found["comparisons"]:
        swapped = copy.deepcopy(found)
        arms = {arm["label"]: arm for arm in swapped["arms"]}
        before, after = arms[c["before"]], arms[c["after"]]
        before["samples_s"], after["samples_s"] = after["samples_s"], before["samples_s"]
        again = next(d for d in judged(swapped)["comparisons"] if d["label"] == c["label"])
        turned = {"wins": "loses", "loses": "wins"}
        assert again["measured"] == pytest.approx(1 / c["measured"])
        assert again["verdict"] == turned.get(c["verdict"], c["verdict"])


def test_fast_math_is_refused_for_what_it_computes_and_is_timed_all_the_same(ran: Runs) -> None:
    told = ran("fast-math")
    plain, fast, *parts = told["arms"]
    assert "refused" not in plain and plain["evidence"]["gates"]["error"] <= 1
    assert fast["refused"]["gate"] == "correctness" and fast["refused"]["reason"]
    assert len(fast["samples_s"]) == 5 and fast["evidence"]["gates"] == {}
    assert told["verdict"]["verdict"] == "refused"
    refused = [c["verdict"] == "refused" for c in told["comparisons"]]
    assert refused == [True, *("refused" in arm for arm in parts)]


def test_arms_are_timed_as_they_say(ran: Runs) -> None:
    told, asked = ran("hot-cache"), ran.asked["hot-cache"]
    assert asked == [("inputs of zeros" in arm["how"], "warm caches" not in arm["how"]) for arm in told["arms"]]
    assert {True, False} == {zeros for zeros, _ in asked} == {cold for _, cold in asked}


def test_the_best_of_many_is_the_shortest_of_each_lot() -> None:
    times = iter([3.0, 1.0, 2.0, 5.0, 6.0, 4.0])

    def timer(repeat: int) -> Timing:
        taken = [next(times) for _ in range(repeat)]
        return Timing(taken, [10 * t for t in taken], taken, [100 * t for t in taken])

    best = running.shortest(timer, 3)(2)
    assert (best.seconds, best.cpu_seconds, best.wait_seconds) == ([1.0, 4.0], [10.0, 40.0], [100.0, 400.0])
    assert running.shortest(timer, 1) is timer


@pytest.mark.parametrize("op", ["gemm", "softmax"])
def test_zeros_take_the_place_of_what_is_timed_and_no_other_input_set(op: str) -> None:
    plain = registry.op(op)
    problem = registry.problem(op, (5, 7, 9)[: len(plain.letters)], backend="cpu")
    first, *rest = zeroed(plain).inputs
    arrays, scalars = first.make(problem, np.random.default_rng(0))
    wanted, same = plain.inputs[0].make(problem, np.random.default_rng(0))
    assert scalars == same and all(not array.any() for array in arrays.values())
    assert {n: (a.shape, a.dtype) for n, a in arrays.items()} == {n: (a.shape, a.dtype) for n, a in wanted.items()}
    assert [one.name for one in rest] == [one.name for one in plain.inputs]
