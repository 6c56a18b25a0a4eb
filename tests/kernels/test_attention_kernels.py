"""Kernels of attention on the CPU: through all gates, and with what a broken one does."""

from __future__ import annotations

import random
import re
from functools import cache

import msgspec
import pytest
from on_cpu import bench_of, compiled
from twins import twin

from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.derive import Derivation, derive
from kernsearch.errors import Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.launch import itemsize
from kernsearch.problem import Problem

SHAPE = "1x2x61x131x36x20"
PROBLEMS = {
    "float32": ("float32", {}),
    "causal": ("float32", {"causal": "bottom-right"}),
    "top-left, bshd": ("float32", {"causal": "top-left", "layout": "bshd"}),
    "before the first key": ("float32", {"causal": "bottom-right", "query_offset": -7, "lse": "yes"}),
    "lse, float64": ("float64", {"lse": "yes"}),
    "bfloat16": ("bfloat16", {"causal": "bottom-right"}),
    "lse, bfloat16, bshd": ("bfloat16", {"lse": "yes", "layout": "bshd"}),
    "grouped": ("float32", {"kv_heads": 1, "causal": "bottom-right", "lse": "yes"}),
    "grouped, bfloat16, bshd": ("bfloat16", {"kv_heads": 1, "causal": "bottom-right", "layout": "bshd"}),
}


def problem(dtype: str = "float32", shape: str = SHAPE, **options) -> Problem:
    return registry.problem("attention", shape, dtype, **options)


@cache
def derived(of: Problem) -> Derivation:
    return derive(of, registry.op(of.op), registry.templates("cpu"))


def space_of(variant, of, device):
    sizes = {**registry.op(of.op).sizes(of), "ITEMSIZE": itemsize(of.dtype), "THREADS": 2}
    return FeasibleSpace(variant.params, variant.constraints, device, sizes)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_template_of_one_pass_over_the_keys_passes_all_gates(name, device, worker):
    dtype, options = PROBLEMS[name]
    of = problem(dtype, **options)
    names = ["flash", "flash_packed", "flash_slabs+combine", "flash_slabs_packed+combine"]
    bench, backend = bench_of(of, device, worker), backends.get("cpu")
    for number, variant in enumerate(map(derived(of).variant, names)):
        config = space_of(variant, of, device).sample(random.Random(number))
        plan = lower(variant, config, of, backend, device)
        evidence = bench.examine(plan, compiled(plan, device), config)
        assert evidence["full"] and evidence["edge_runs_skipped"] == 0, variant.name


def three_kernels(of: Problem, *templates: str, masked: bool):
    """The first variant of these templates whose first product masks its scores, or leaves that to others."""
    return next(
        v
        for v in derived(of).variants
        if tuple(t.name for t in v.templates) == templates
        and masked == any(v.partition.nodes[n].fields[0].name == "masked" for n in v.partition.kernels[0].members)
    )


UNFUSED = (
    ("packed_a", "row_passes", "packed_a"),
    ("register_tiled", "row_states", "register_tiled"),  # weights are made where the second product packs them
    ("unpacked", "reduce", "unpacked"),
)


@pytest.mark.parametrize("masked", [True, False], ids=["epilogue", "prologue"])
@pytest.mark.parametrize("templates", UNFUSED, ids="+".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_products_with_softmax_between_them_pass_all_gates(dtype, templates, masked, device, worker):
    of = problem(dtype, causal="bottom-right")
    variant = three_kernels(of, *templates, masked=masked)
    config = space_of(variant, of, device).sample(random.Random(0))
    plan = lower(variant, config, of, backends.get("cpu"), device)
    assert masked == ("ks_mask" in plan.kernels[0].header)
    bench_of(of, device, worker).examine(plan, compiled(plan, device), config)


def test_the_textbook_program_runs_a_kernel_a_node(device, worker):
    of = problem(causal="bottom-right", lse="yes")
    variant = next(v for v in derived(of).variants if not v.path and {t.name for t in v.templates} <= {
        "contraction", "map", "reduce"})  # fmt: skip
    assert len(variant.kernels) == 10
    plan = lower(variant, {"ROWS": 4}, of, backends.get("cpu"), device)
    bench_of(of, device, worker).examine(plan, compiled(plan, device), {"ROWS": 4})


# -- broken twins: (variant, what is changed in the source, what the refusal says)

CONFIG = {"MC": 48, "KC": 64, "MR": 6, "NR": 16, "KU": 1}
TWINS = {
    "sums are not rescaled": ("flash", {"if (carried[r] == 1) continue;": "continue;"}, "off by"),
    "the normalizer is not rescaled": (
        "flash", {"ks_load_all(s->l + q) * carried": "ks_load_all(s->l + q)"}, "off by"),
    "the mask hides the wrong side": ("flash", {"slack + step * i < 0": "slack + step * i > 0"}, "off by|is "),
    "top-left for bottom-right": ("flash", {"(x->e_k) - (x->e_q)": "0"}, "off by|is "),
    "one key too many is seen": ("flash", {"(x->e_k) - (x->e_q)": "(x->e_k) - (x->e_q) + 1"}, "off by|is "),
    "padding is counted in the sum": (
        "flash", {"weigh(s, v, b->first, keys, ": "weigh(s, v, b->first, ks_ceil(keys, KS_MR) * KS_MR, "},
        "off by|is "),
    "keys of the block before": (
        "flash_packed", {"    pack_keys(x, i, keys, s->k);": "    if (first == 0) pack_keys(x, i, keys, s->k);"},
        "off by|is "),
    "queries of the job before": (
        "flash", {"    pack_queries(s);": "    if (s->at.M == 0) pack_queries(s);"}, "off by|is "),
    "sums of the job before": (
        "flash", {"memset(s->o, 0, (size_t)(s->rows * s->pitch) * sizeof(ks_t));": ""}, "off by|is "),
    "the last columns are not stored": ("flash", {"ks_finish(s->x, i, columns - i.N, &f);": ";"}, "unwritten"),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_twin_is_refused(name, device, worker, tmp_path):
    variant, changes, words = TWINS[name]
    of = problem(causal="bottom-right")
    plan = lower(derived(of).variant(variant), CONFIG, of, backends.get("cpu"), device)
    bench = bench_of(of, device, worker)
    broken = twin(plan, changes, tmp_path)
    with pytest.raises(Rejected) as refused:
        bench.examine(broken, compiled(broken, device), CONFIG)
    assert refused.value.gate == "correctness" and re.search(words, refused.value.reason), refused.value.reason
    bench.examine(plan, compiled(plan, device), CONFIG)  # and the next one is unharmed


def test_slabs_that_are_not_carried_to_the_common_maximum_are_refused(device, worker, tmp_path):
    of = problem(causal="bottom-right")
    config = {**CONFIG, "SPLIT": 3, "ROWS": 4}
    plan = lower(derived(of).variant("flash_slabs+combine"), config, of, backends.get("cpu"), device)
    first, second = plan.kernels
    assert "ks_exp_of_shift(" in second.header
    header = second.header.replace("ks_exp_of_shift(", "ks_one_for(")
    header = header.replace('#include "elementary.h"', '#include "elementary.h"\n#define ks_one_for(a, b) ks_splat(1)')
    broken = msgspec.structs.replace(plan, kernels=(first, msgspec.structs.replace(second, header=header)))
    with pytest.raises(Rejected, match="off by") as refused:
        bench_of(of, device, worker).examine(broken, compiled(broken, device), config)
    assert refused.value.gate == "correctness"
