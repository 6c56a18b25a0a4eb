"""Templates of softmax on CUDA, compiled for three architectures without a GPU, and what the machine code says."""

from __future__ import annotations

import random
import re
from functools import cache
from math import prod

import pytest
from pairwise import cover
from softmax_cases import derived, plan_of, problem

from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.errors import Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.launch import itemsize
from kernsearch.model import ceilings, predict
from kernsearch.sizes import evaluate

BACKEND = backends.get("cuda")
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")
SHAPES = {"smallest": (64, 16), "largest": (64, 65536), "short": (4096, 1000), "random": (512, 8192)}
OPS = {"": "softmax", "_max": "softmax", "_product": "softmax_backward", "_sum": "log_softmax_backward"}
TIMEOUT_S = 120
MOST_COMPILES = 120


@cache
def names() -> tuple[str, ...]:
    """Templates of softmax, and the generic one that spreads."""
    sources = ("softmax/", "generic/cuda/04")
    return tuple(t.name for t in registry.templates("cuda") if t.source.startswith(sources))


def op_of(template: str) -> str:
    return next(op for suffix, op in reversed(OPS.items()) if template.endswith(suffix))


@cache
def space(template: str, dtype: str, arch: str, corner: str, prologue: str):
    """(variant, configs) of the first variant with the template; None when there are none."""
    name = op_of(template)
    options = {"prologue": prologue} if name == "softmax" else {}
    if not options and prologue != "none":
        return None
    of = problem(name, SHAPES[corner], dtype, **options)
    found = [v for v in derived(of.at((64, 64)), "cuda").variants if template in v.name.split("+")]
    device = BACKEND.compile_only(arch)
    sizes = {**registry.op(name).sizes(of), "ITEMSIZE": itemsize(dtype), "THREADS": device.sms}
    for variant in found:
        made = FeasibleSpace(variant.params, variant.constraints, device, sizes)
        if next(made.iterate(), None) is not None:
            return of, variant, made
    return None


@cache
def rows() -> list[tuple[str, ...]]:
    factors = {
        "template": names(),
        "dtype": ("bfloat16", "float16", "float32", "float64"),
        "arch": ARCHITECTURES,
        "corner": tuple(SHAPES),
        "prologue": ("none", "scale,bias,mask"),
    }
    return [tuple(row.values()) for row in cover(factors, lambda row: space(*row.values()) is not None)]


def kernel(row):
    of, variant, made = space(*row)
    rng = random.Random(repr(row))
    drawn = [made.sample(rng) for _ in range(12)]
    config = max(drawn, key=lambda c: prod(c.values())) if row[3] == "largest" else drawn[0]
    plan = lower(variant, config, of, BACKEND, BACKEND.compile_only(row[2]))
    return next(k for k in plan.kernels if k.template == row[0]), config


def test_the_cover_has_every_template_and_few_rows():
    assert {row[0] for row in rows()} == set(names())
    assert len(rows()) <= MOST_COMPILES


@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_feasible_config_compiles_and_can_be_launched(arch):
    chosen = [(row, *kernel(row)) for row in rows() if row[2] == arch]
    device = BACKEND.compile_only(arch)
    refused = {}
    for at, outcome in BACKEND.compile_many([k for _, k, _ in chosen], device, jobs=2, timeout_s=TIMEOUT_S):
        if isinstance(outcome, Rejected):
            refused[f"{chosen[at][0]} {chosen[at][2]}"] = outcome.reason
        else:
            assert outcome.evidence["warnings"] == "", chosen[at]
    assert refused == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name, options", [("softmax", {"prologue": "scale,bias,mask"}), ("softmax_backward", {})])
def test_shared_memory_has_a_place_for_each_word_that_is_kept_there(name, options, dtype):
    """Also where a kernel reads what another one wrote in a wider dtype than the problem's."""
    of, seen = problem(name, (4096, 2048), dtype, **options), 0
    for variant in derived(of.at((64, 64)), "cuda").variants:
        config = {param.name: param.values[-1] for param in variant.params} | {"TK": 16, "WK": 128, "BM": 1}
        for kernel in lower(variant, config, of, BACKEND, BACKEND.compile_only("sm_90a")).kernels:
            if not (kernel.defines.get("SHARED") or kernel.defines.get("AHEAD")):
                continue
            header = kernel.header
            word = int(re.search(r"#define KS_VEC (\d+)", header)[1])
            kept = re.search(r"ks_kept \{\s*(.*?)\s*\};", header, re.DOTALL)[1].count("ks_acc")
            (launch,) = kernel.launches
            assert evaluate(launch.shared, {}) >= 128 * 16 // word * kept * 16, variant.name
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("waves, split, clusters", [(1, 2, 66), (1, 4, 31), (1, 8, 15), (1, 16, 7), (2, 16, 15)])
@pytest.mark.parametrize("name, word", [("cluster_row", 64), ("cluster_shared", 64)])
def test_clusters_that_stay_are_as_many_as_an_h200_holds_at_once(name, word, waves, split, clusters):
    """One more would begin when the others have ended, and take as long as they did."""
    config = {"SPLIT": split, "BM": 1, "TK": word, "WK": 64, "WAVES": waves, "STREAM": 0, "LIFT": 0, "AHEAD": 1}
    of = problem("softmax", (4096, split * 4096), "bfloat16")
    config |= {"SHARED": 1} if name == "cluster_shared" else {}
    plan, _ = plan_of(of, name, config)
    grid = plan.kernels[0].launches[0].grid[0]
    assert evaluate(grid, {"M": 4096, "N": split * 4096}) == clusters * split
    assert evaluate(grid, {"M": 3, "N": split * 4096}) == 3 * split


@pytest.mark.parametrize("name", ["block_row", "shared_row", "cluster_row", "cluster_shared"])
def test_lifting_exponentials_is_expected_to_save_arithmetic_and_is_for_16_bits_only(name):
    device, of = BACKEND.compile_only("sm_90a"), problem("softmax", (4096, 8192), "bfloat16")
    variant, roof = derived(of.at((64, 64)), "cuda").variant(name), ceilings.guess(device)
    sizes = {**registry.op("softmax").sizes(of), "ITEMSIZE": 2, "THREADS": device.sms}
    space = FeasibleSpace(variant.params, variant.constraints, device, sizes)
    lifted = next(config for config in space.iterate() if config["LIFT"])
    seconds = [
        predict(variant, config, device, sizes, roof).parts["compute"] for config in (lifted, lifted | {"LIFT": 0})
    ]
    assert seconds[0] < seconds[1]
    wide = FeasibleSpace(variant.params, variant.constraints, device, sizes | {"ITEMSIZE": 4})
    assert not any(config["LIFT"] for config in wide.iterate())
