"""Kernels of transpose: on the CPU through all gates, CUDA's on the host with threads as fibers; and broken ones."""

from __future__ import annotations

import random
import re

import host_cuda
import ml_dtypes
import numpy as np
import pytest
from cuda_twins import twin as cuda_twin
from on_cpu import bench_of, compiled
from softmax_cases import derived, plan_of, problem
from test_cuda_softmax import padded, typed
from twins import twin

from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.errors import Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.gates.correctness import agrees
from kernsearch.launch import itemsize

DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WAYS = {
    "naive": ("transpose_naive", {"BM": 64, "BN": 4}),
    "as they are": ("transpose_tiled", {"BM": 32, "BN": 64, "LAYOUT": 0}),
    "padded": ("transpose_tiled", {"BM": 64, "BN": 32, "LAYOUT": 1}),
    "swizzled": ("transpose_tiled", {"BM": 64, "BN": 64, "LAYOUT": 2}),
    "swizzled, narrow": ("transpose_tiled", {"BM": 64, "BN": 32, "LAYOUT": 2}),
}


def numbers(shape, dtype="float32") -> np.ndarray:
    """All different where the dtype can tell, NaN with a payload and -0 among them."""
    bits = np.arange(1, 1 + np.prod(shape), dtype=f"u{itemsize(dtype)}").reshape(shape)
    x = bits.view(DTYPES[dtype]).copy()
    x.flat[0] = -0.0
    return x


def run(way, x, *, out=None, backwards=False, changes=None):
    variant, config = WAYS[way]
    of = problem("transpose", x.shape, x.dtype.name)
    plan, (binding,) = plan_of(of, variant, config)
    kernel = cuda_twin(plan.kernels[0], changes) if changes else plan.kernels[0]
    out = np.zeros(x.shape[::-1], x.dtype) if out is None else out
    sizes = {"M": x.shape[0], "N": x.shape[1], "ITEMSIZE": x.itemsize}
    host_cuda.run(kernel, binding, {"X": typed(x), "Y": typed(out)}, sizes, backwards=backwards)
    return out


def same(got, x) -> None:
    as_bits = f"u{x.itemsize}"
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(as_bits), np.ascontiguousarray(x.T).view(as_bits))


# -- CUDA on the host


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_every_layout_moves_every_bit_in_both_orders_of_threads(way, dtype):
    for shape in ((1, 1), (3, 130), (65, 33), (128, 64)):
        x = numbers(shape, dtype)
        for backwards in (False, True):
            same(run(way, x, backwards=backwards), x)


@pytest.mark.parametrize("way", WAYS)
def test_any_strides_are_taken(way):
    x = numbers((70, 45))
    same(run(way, padded(x, 5, 3)), x)
    same(run(way, x[::-1, ::-1]), x[::-1, ::-1])
    same(run(way, np.asfortranarray(x)), x)
    same(run(way, np.broadcast_to(x[:1], x.shape)), np.broadcast_to(x[:1], x.shape))
    room = padded(np.zeros((45, 70), np.float32), 6, 1)
    same(run(way, x, out=room), x)
    assert not room.base.flat[0] and not room.base[1:].reshape(45, -1)[:, 70:].any()


FROM, INTO = "row * ks_step_X_M(x) + column * ks_step_X_N(x)", "= tile[place(row, column)]"
CUDA_TWINS = {
    "missing barrier": {"__syncthreads();": ""},
    "swapped strides": {FROM: "row * ks_step_X_N(x) + column * ks_step_X_M(x)"},
    "off by one at the edge": {"column < wide) to[": "column < wide - 1) to["},
    "a tile untransposed": {INTO: "= tile[place(column % BM, row % BN)]"},
    "the swizzle of one side only": {INTO: "= tile[row * PITCH + column]"},
}


@pytest.mark.parametrize("name", CUDA_TWINS)
def test_broken_twins_on_cuda_differ(name):
    x = numbers((96, 100))
    x.flat[0] = 7
    want, found = x.T.astype(np.float64), []
    for backwards in (False, True):
        got = run(
            "swizzled", x, out=np.full((100, 96), np.nan, np.float32), backwards=backwards, changes=CUDA_TWINS[name]
        )
        try:
            agrees("Y", got, want, np.zeros_like(want))
        except Rejected as refusal:
            found.append(refusal.gate)
    assert "correctness" in found


# -- the CPU


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_template_passes_all_gates(dtype, device, worker):
    of = problem("transpose", (261, 149), dtype, "cpu")
    bench, backend = bench_of(of, device, worker), backends.get("cpu")
    sizes = {"M": 261, "N": 149, "ITEMSIZE": itemsize(dtype), "THREADS": 2}
    variants = derived(of.at((64, 64)), "cpu").variants
    assert {v.name for v in variants} == {"map", "transpose_naive", "transpose_blocked"}
    for variant in variants:
        space = FeasibleSpace(variant.params, variant.constraints, device, sizes)
        for seed in range(3):
            config = space.sample(random.Random(seed))
            plan = lower(variant, config, of, backend, device)
            assert bench.examine(plan, compiled(plan, device), config)["full"]


TURN = "turn(out + c * LINE + r,"
CPU_TWINS = {
    "swapped strides": ("transpose_naive", {"apart = ks_step_X_M(x)": "apart = ks_step_X_N(x)"}, "should be|outside"),
    "off by one at the edge": (
        "transpose_blocked", {"rim(x, m_whole, m_end,": "rim(x, m_whole, m_end - 1,"}, "unwritten",
    ),
    "past the edge": ("transpose_naive", {"k < m;": "k <= m;"}, "wrote|should be|outside"),
    "a square untransposed": (
        "transpose_blocked", {TURN: f"if (r < 4) memcpy(out + c * LINE, in, 16); else {TURN}"}, "should be|is ",
    ),
    "halves exchanged": ("transpose_blocked", {"= LOW(t[r],": "= HIGH(t[r],"}, "should be|is "),
}  # fmt: skip
TWIN_CONFIGS = {"transpose_naive": {"NC": 4}, "transpose_blocked": {"NC": 32, "MC": 64, "STREAM": 0}}


@pytest.mark.parametrize("name", CPU_TWINS)
def test_broken_twins_on_the_cpu_are_refused(name, device, worker, tmp_path):
    variant, changes, words = CPU_TWINS[name]
    config = TWIN_CONFIGS[variant]
    of = problem("transpose", (131, 77), "float32", "cpu")
    plan, _ = plan_of(of, variant, config, backend="cpu")
    broken = twin(plan, changes, tmp_path)
    with pytest.raises(Rejected) as caught:
        bench_of(of, device, worker).examine(broken, compiled(broken, device), config)
    assert re.search(words, caught.value.reason), caught.value.reason


def test_streamed_lines_arrive(device, worker):
    of = problem("transpose", (192, 256), "float32", "cpu")
    config = {"NC": 32, "MC": 64, "STREAM": 1}
    plan, _ = plan_of(of, "transpose_blocked", config, backend="cpu")
    assert bench_of(of, device, worker).examine(plan, compiled(plan, device), config)["full"]


def test_the_op_is_one_node_and_its_schedules_are_steps_of_rules():
    of = problem("transpose", (64, 64))
    (kernel,) = registry.op("transpose").root(of).kernels
    assert len(kernel.members) == 1
    found = {v.name: [step.rule for step in v.steps] for v in derived(of, "cuda").variants}
    assert found == {"map": ["tile"], "transpose_naive": ["tile", "tile"], "transpose_tiled": ["tile", "tile", "move"]}
