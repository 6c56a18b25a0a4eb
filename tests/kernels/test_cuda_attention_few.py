"""Attention of few rows, keys and values to registers or by rings: by the blocks of a cluster, and broken twins."""

from __future__ import annotations

from functools import partial

import pytest
from cuda_twins import twin_in
from test_cuda_attention import DIRECT, INPUTS, problem, specialized

from kernsearch.errors import Rejected

DIRECTLY, BY_RINGS, EVERY = "attention_direct_cluster", "attention_ring_cluster", 1 << 20
PAIR = {**DIRECT, "SPLIT": 2}
FOUR = {**DIRECT, "SPLIT": 4, "SLICES": 4, "BK": 128, "BM": 16}
EIGHT = {**DIRECT, "SPLIT": 8, "BE": 128, "BD": 128}
CLUSTERS = {"pair": PAIR, "four of 32 keys a warp": FOUR, "eight": EIGHT}


RINGS = {DIRECTLY: {}, BY_RINGS: {"STAGES": 3}}  # what is another config there
BOTH = pytest.mark.parametrize("variant", RINGS)


def clustered(of, config, inputs, change=lambda kernel: kernel, variant=DIRECTLY):
    specialized(of, {**config, **RINGS[variant]}, inputs, change, name=variant, blocks=EVERY)


@pytest.mark.parametrize("shape", ["1x2x1x520x64", "2x1x5x131x24x18", "1x1x19x20x32", "1x1x1x65x8"])
@pytest.mark.parametrize("causal", ["none", "bottom-right", "top-left"])
@pytest.mark.parametrize("name", CLUSTERS)
@BOTH
def test_blocks_of_a_cluster_share_keys_and_outputs(variant, name, shape, causal):
    clustered(problem(shape, causal=causal), CLUSTERS[name], "normal", variant=variant)


@pytest.mark.parametrize("inputs", INPUTS)
@BOTH
def test_a_cluster_takes_awkward_inputs(variant, inputs):
    clustered(problem("1x1x7x290x64", causal="bottom-right", lse="yes"), PAIR, inputs, variant=variant)


@BOTH
def test_columns_may_be_those_of_several_clusters(variant):
    """Scores are computed by each; 100 columns are one tile and a part of one."""
    clustered(problem("1x2x3x200x64x100", causal="bottom-right", lse="yes"), PAIR, "normal", variant=variant)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_heads_of_a_group_are_rows_of_one_product(layout):
    clustered(problem("2x12x1x150x64", "float16", kv_heads=2, layout=layout, lse="yes"), PAIR, "normal")


def test_a_block_without_outputs_of_its_own_still_helps():
    """Three rows of eight: of eight blocks the last five finish nothing."""
    clustered(problem("1x3x1x600x128", kv_heads=1), EIGHT, "normal")


TWINS = {
    "sums are not rescaled": {"sums.o[r][n][e] *= less, sums.o[r][n][2 + e] *= less;": ";"},
    "the normalizer is not rescaled": {"fmaf(sums.l[r][e], less, sum)": "sums.l[r][e] + sum"},
    "slabs are not carried to the common maximum": {"o[w] = fmaf(v.x, weight, o[w])": "o[w] += v.x"},
    "weights are not turned": {"ks_turn(ks_pair(": "(ks_pair("},
    "padding is counted": {"const bool cut = first + OWN > range.whole;": "const bool cut = false;"},
    "top-left for bottom-right": {"(x.e_k) - (x.e_q)": "0"},
    "keys of another slab": {"ks_at_K(x, i) + range.first * step_k": "ks_at_K(x, i)"},
    "one warp sends too little": {"send(room.met + rank": "if (slice != 1) send(room.met + rank"},
    "who ends before what it is sent": {"    ks_barrier_wait(barrier, 0);": ""},
}


OF_REGISTERS = {
    "keys of the step before": {"if (step + 1 < steps) ask_keys(step + 1);": ""},
    "values of the step before": {"if (step + 1 < steps) ask_values(step + 1);": ""},
}
OF_RINGS = {
    "keys of the lap before": {"ask_keys(step + STAGES, slot);": "ks_copy_commit();"},
    "values of the lap before": {"ask_values(step + STAGES, slot);": "ks_copy_commit();"},
    "copies are not waited for": {"ks_copy_wait<2 * STAGES - 1>();": "ks_copy_wait<2 * STAGES>();"},
    "columns of other lanes": {"16 * n + e / 2 * 8 + g] = o[r][n][e]": "16 * n + g] = o[r][n][e]"},
}


@pytest.mark.parametrize(
    "variant, changes",
    [
        *((variant, name) for variant in RINGS for name in TWINS),
        *((DIRECTLY, name) for name in OF_REGISTERS),
        *((BY_RINGS, name) for name in OF_RINGS),
    ],
)
def test_a_broken_twin_does_not_pass(variant, changes, tmp_path):
    change = partial(twin_in, tmp_path, changes={**TWINS, **OF_REGISTERS, **OF_RINGS}[changes])
    of = problem("1x1x7x290x64", causal="bottom-right")
    with pytest.raises((AssertionError, Rejected)):
        for inputs in ("normal", "climbing"):
            clustered(of, PAIR, inputs, change, variant)
