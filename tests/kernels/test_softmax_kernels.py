"""Kernels of softmax on the CPU: through all gates, and with what a broken one does."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from gemm_bindings import build, run
from kernsearch.spaces.generic.templates import cpu as generic
from on_cpu import bench_of, compiled
from softmax_cases import derived, plan_of, problem
from twins import twin

from kernsearch import backends, registry
from kernsearch.binding import Array, Binding, Root
from kernsearch.candidate import lower
from kernsearch.errors import Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.launch import itemsize

SHAPE = (61, 781)
PROBLEMS = {
    "float32": ("softmax", "float32", {}),
    "float64": ("softmax", "float64", {}),
    "bfloat16": ("softmax", "bfloat16", {}),
    "log": ("softmax", "float32", {"result": "log"}),
    "turned": ("softmax", "float32", {"layout": "t", "prologue": "mask"}),
    "whole prologue": ("softmax", "float32", {"prologue": "scale,bias,mask"}),
    "log, bfloat16, prologue": ("softmax", "bfloat16", {"result": "log", "prologue": "scale,mask"}),
    "backward": ("softmax_backward", "float32", {}),
    "backward, bfloat16, turned": ("softmax_backward", "bfloat16", {"layout": "t"}),
    "backward of log": ("log_softmax_backward", "float32", {}),
    "backward of log, float64": ("log_softmax_backward", "float64", {}),
}
OWN = ("row_", "spread")  # how names of templates of softmax begin; those that run anything have tests of their own


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_template_passes_all_gates(name, device, worker):
    op, dtype, options = PROBLEMS[name]
    of = problem(op, SHAPE, dtype, "cpu", **options)
    bench, backend = bench_of(of, device, worker), backends.get("cpu")
    tried: set[str] = set()
    for number, variant in enumerate(derived(of.at((64, 64)), "cpu").variants):
        own = {template.name for template in variant.templates if template.name.startswith(OWN)}
        if own <= tried:
            continue
        tried |= own
        sizes = {**registry.op(op).sizes(of), "ITEMSIZE": itemsize(dtype), "THREADS": 2}
        config = FeasibleSpace(variant.params, variant.constraints, device, sizes).sample(random.Random(number))
        plan = lower(variant, config, of, backend, device)
        evidence = bench.examine(plan, compiled(plan, device), config)
        assert evidence["full"] and evidence["edge_runs_skipped"] == 0, variant.name
    assert len(tried) >= 4


def test_the_textbook_program_runs_a_kernel_a_node(device, worker):
    of = problem("softmax", SHAPE, "float32", "cpu")
    variant = derived(of.at((64, 64)), "cpu").variant("reduce+map+map+reduce+map")
    assert not variant.path and len(variant.kernels) == 5
    plan = lower(variant, {"ROWS": 4}, of, backends.get("cpu"), device)
    bench_of(of, device, worker).examine(plan, compiled(plan, device), {"ROWS": 4})


# -- broken twins: (what is changed in the source, what it becomes), by variant


TWINS = {
    "missing rescale": (
        "row_online", {"ROWS": 4, "KC": 256, "KU": 1}, {"l = l * ks_exp_of_shift(m, f.m) + f.l;": "l = l + f.l;"},
        r"off by",
    ),
    "maximum of the first piece only": (
        "row_online", {"ROWS": 4, "KC": 256, "KU": 1}, {"f.m = ks_max(f.m, m);": "if (first) f.m = m;"},
        r"climbing|normal|large",
    ),
    "forgets the end of a row": (
        "row_passes", {"ROWS": 4, "KU": 1}, {"if (at < stop) {": "if (at < stop) at = stop; else if (0) {"},
        r"off by|is |differ"),
    "adds up what is past the end": (
        "row_streamed", {"ROWS": 4, "KU": 2},
        {"ks_select(ks_first_lanes(stop - at), term, ks_none_##monoid)": "term"}, r"off by"),
    "does not store the end of a row": (
        "row_passes", {"ROWS": 4, "KU": 2}, {"if (i.N < (end)) BODY((end) - i.N)": ""}, "unwritten|off by"),
    "rows share a place": (
        "row_streamed", {"ROWS": 1, "KU": 1}, {"+ slot * pitch": ""}, r"off by|differ|is "),
    "no policy for -inf": (
        "row_passes", {"ROWS": 4, "KU": 1},
        {"ks_exp_to_44(x - ks_larger(ks_splat(-KS_LARGEST), m))": "ks_exp_to_44(x - m)"}, r"is -?nan where .*-inf"),
    "a coarse exponential": (
        "row_passes", {"ROWS": 4, "KU": 1}, {"p = p * r + 0.5f;": "p = p * r + 0.4999f;"}, r"off by"),
    "slabs overlap": (
        "row_slabs+spread", {"SPLIT": 2, "ROWS": 4, "VK": 1, "COLUMNS": 1024},
        {"last = ks_last(x, i)": "last = ks_least(ks_columns(x), ks_last(x, i) + 1)"}, r"off by"),
}  # fmt: skip


RACES = {"rows share a place"}  # which threads may win when the machine is busy
RUNS_OF_A_RACE = 40


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_twin_is_refused(name, device, worker, tmp_path):
    variant, config, changes, words = TWINS[name]
    of = problem("softmax", SHAPE, "float32", "cpu")
    plan, _ = plan_of(of, variant, config, backend="cpu")
    bench = bench_of(of, device, worker)
    broken = twin(plan, changes, tmp_path)
    with pytest.raises(Rejected) as refused:
        for _ in range(RUNS_OF_A_RACE if name in RACES else 1):
            bench.examine(broken, compiled(broken, device), config)
    assert refused.value.gate == "correctness" and re.search(words, refused.value.reason), refused.value.reason
    bench.examine(plan, compiled(plan, device), config)  # and the next one is unharmed


def test_fast_math_is_refused(device, worker):
    import msgspec

    of = problem("softmax", SHAPE, "float32", "cpu")
    plan, _ = plan_of(of, "row_passes", {"ROWS": 4, "KU": 1}, backend="cpu")
    fast = msgspec.structs.replace(plan.kernels[0], flags=("-ffast-math",))
    twin = msgspec.structs.replace(plan, kernels=(fast,))
    with pytest.raises(Rejected) as refused:
        bench_of(of, device, worker).examine(twin, compiled(twin, device), {"ROWS": 4, "KU": 1})
    assert refused.value.gate == "correctness"


# -- the exponential


def exponential(x: np.ndarray, flags: tuple[str, ...] = (), *, below: float | None = None) -> np.ndarray:
    """exp(x), or exp(shift(x, below)) as a kernel has it."""
    arrays = tuple(Array(name, "float32", ("a",)) for name in "XY")
    argument = ("load", "X", ("a",))
    root = Root("Y", ("a",), ("exp", argument if below is None else ("shift", argument, ("const", below))))
    binding = Binding("", {}, {"a": "A"}, {}, (root,), arrays, (), "float32")
    kernel = build(binding, replace(generic.MAP, flags=flags), {"ROWS": 1})
    y = np.full(x.shape, np.nan, np.float32)
    run(kernel, {"X": x, "Y": y}, {"A": x.size})
    return y


def every(step: int) -> np.ndarray:
    """Every so many-th float32, from the bits 0 to those of the largest NaN."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def test_the_exponential_errs_as_little_as_its_file_says_over_all_of_float32():
    x = every(1013)
    y = exponential(x).astype(np.float64)
    with np.errstate(all="ignore"):
        right = np.exp(x.astype(np.float64))
        stored = right.astype(np.float32)
    assert (np.isnan(y) == np.isnan(x)).all()
    assert (np.isinf(y) == np.isinf(stored)).all()
    normal = np.isfinite(stored) & (right >= 2.0**-126)
    assert np.abs(y[normal] / right[normal] - 1).max() <= 9e-8
    small = np.isfinite(stored) & (right < 2.0**-126)
    assert np.abs(y[small] - right[small]).max() <= 2.0**-149


def test_after_a_shift_the_exponential_errs_as_little_over_all_that_is_left():
    x = every(1013)
    x = x[~(x > 44)]
    y = exponential(x, below=0.0).astype(np.float64)
    with np.errstate(all="ignore"):
        right = np.exp(x.astype(np.float64))
    assert (np.isnan(y) == np.isnan(x)).all()
    normal = right >= 2.0**-126
    assert np.abs(y[normal] / right[normal] - 1).max() <= 9e-8
    small = right < 2.0**-126
    assert np.abs(y[small] - right[small]).max() <= 2.0**-149


def test_in_a_row_of_nothing_but_minus_infinity_terms_are_0():
    assert (exponential(np.full(9, -np.inf, np.float32), below=-np.inf) == 0).all()


@pytest.mark.parametrize("below", [None, 80.0])
def test_under_fast_math_the_exponential_is_another_one(below):
    x = np.linspace(-80, 80, 10_001, dtype=np.float32)
    with np.errstate(all="ignore"):
        right = np.exp(x.astype(np.float64) - (below or 0))
        error = np.abs(exponential(x, ("-ffast-math",), below=below) / right - 1)
    assert not error.max() <= 1e-6


def test_the_exponential_is_exactly_one_at_zero_and_never_falls_as_x_grows_by_much():
    x = np.array([0.0, -0.0, -1e-45, 1e-45], np.float32)
    assert (exponential(x) == 1).all()
    x = np.linspace(-104, 88.5, 200_001, dtype=np.float32)
    y = exponential(x)
    assert (np.diff(y) >= -1.2e-7 * np.abs(y[1:])).all()
