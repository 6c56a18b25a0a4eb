"""Kernels of attention on CUDA, on the host: threads as fibers, in both orders."""

from __future__ import annotations

from functools import cache, partial

import host_cuda
import numpy as np
import pytest
from cuda_twins import twin_in
from host_cuda import hopper

from kernsearch import backends, launch, registry
from kernsearch.candidate import lower
from kernsearch.derive import Derivation, derive
from kernsearch.errors import Rejected
from kernsearch.gates.correctness import agrees
from kernsearch.gates.reference import Reference
from kernsearch.launch import itemsize
from kernsearch.problem import Problem
from kernsearch.sizes import evaluate

SMALL = {"BM": 32, "WM": 16, "BK": 32, "BD": 32, "BE": 32, "STAGES": 2, "SLICES": 1, "TM": 2}
SLICED = {**SMALL, "BM": 16, "BK": 64, "SLICES": 2}
TALL = {**SMALL, "WM": 32, "BM": 64, "STAGES": 3}
DIRECT = {"BM": 8, "BK": 32, "BD": 64, "BE": 64, "STAGES": 2, "SLICES": 2, "AHEAD": 1, "TM": 2}
WAYS = {  # variant, config: rows and keys in several tiles, and in one
    "attention_async": SMALL,
    "attention_async ": SLICED,
    "attention_async  ": TALL,
    "attention_async_slabs+combine": {**SLICED, "SPLIT": 3},
    "attention_direct": DIRECT,
    "attention_direct ": {**DIRECT, "BM": 16, "BK": 128, "SLICES": 4, "AHEAD": 0},
    "attention_direct_slabs+combine": {**DIRECT, "SPLIT": 3, "BK": 64},
    "attention_ring": {**DIRECT, "STAGES": 1},
    "attention_ring ": {**DIRECT, "BM": 16, "BK": 128, "SLICES": 4, "STAGES": 3, "AHEAD": 0},
    "attention_ring_slabs+combine": {**DIRECT, "SPLIT": 3, "BK": 64, "STAGES": 2},
    "attention_async_slabs+state_combine": {**SLICED, "SPLIT": 6, "TM": 4, "LANES": 4},
}


TURNS = {"BM": 128, "BK": 64, "BD": 64, "BE": 64, "STAGES": 2, "OVERLAP": 1, "PINGPONG": 1, "GROUP": 2}
SPECIALIZED = {
    "in turns": TURNS,
    "without turns": {**TURNS, "PINGPONG": 0, "BK": 80},
    "one after the other": {**TURNS, "OVERLAP": 0},
    "alone": {**TURNS, "BM": 64, "PINGPONG": 0, "BK": 96},
    "three in turns": {**TURNS, "BM": 192, "STAGES": 3},
}


def problem(shape, dtype="bfloat16", **options) -> Problem:
    return registry.problem("attention", shape, dtype, backend="cuda", **options)


@cache
def derived(of: Problem) -> Derivation:
    return derive(of, registry.op(of.op), registry.templates("cuda"))


def small(of: Problem) -> Problem:
    """The same problem at a shape whose variants are derived once."""
    return of.at((1, 1, 2, 64, 64, 32, 32)[-len(of.shape) :])


def run(of: Problem, way: str, arrays, scalars, *, config=None, backwards=False, pad=0, shift=0):
    """The outputs of a variant by name; workspace and outputs are NaN before."""
    config, device = config or WAYS.get(way, SMALL), backends.get("cuda").compile_only("sm_80")
    variant = derived(small(of)).variant(way.strip())
    plan = lower(variant, config, of, backends.get("cuda"), device)
    sizes = {**registry.op(of.op).sizes(of), **config, "ITEMSIZE": itemsize(of.dtype)}
    held = {name: padded(array, pad, shift) for name, array in arrays.items()}
    for operand in plan.operands:
        if operand.role == "output":
            shape = tuple(evaluate(extent, sizes) for extent in operand.extents)
            like = next(iter(arrays.values())) if operand.dtype == of.dtype else np.zeros(1, operand.dtype)
            held[operand.name] = padded(np.full(shape, np.nan, like.dtype), pad, shift)
    for buffer in plan.workspace:
        held[buffer.name] = np.full(tuple(evaluate(e, sizes) for e in buffer.extents), np.nan, buffer.dtype)
    for kernel, matched in zip(plan.kernels, variant.kernels, strict=True):
        binding = matched.binding()
        mine = {array.name: typed(held[array.name]) for array in binding.arrays}
        host_cuda.run(kernel, binding, mine, sizes, scalars, backwards=backwards)
    return {operand.name: held[operand.name] for operand in plan.operands if operand.role == "output"}


def typed(array: np.ndarray) -> np.ndarray:
    """bfloat16 as its bits, as the kernels on the host take it."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array


def padded(array: np.ndarray, pad: int, shift: int) -> np.ndarray:
    """The array in one with longer rows, its first element off the start."""
    rows = int(np.prod(array.shape[:-1]))
    room = np.zeros(shift + rows * (array.shape[-1] + pad), array.dtype)
    view = room[shift:].reshape(*array.shape[:-1], -1)[..., : array.shape[-1]]
    view[...] = array
    return view


def check(of: Problem, way: str, inputs: str, **how):
    op = registry.op(of.op)
    arrays, scalars = next(s for s in op.inputs if s.name == inputs).make(of, np.random.default_rng(0))
    got = run(of, way, arrays, scalars, **how)
    (block,) = Reference(op, of, arrays, scalars).blocks()
    for name, want in block.expected.items():
        agrees(name, got[name], want, block.allowed[name])


@pytest.mark.parametrize("causal", ["none", "bottom-right", "top-left"])
@pytest.mark.parametrize("shape", ["1x2x40x72x32", "2x1x33x131x24x18", "1x1x70x20x32", "1x1x1x65x8"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_agrees_with_float64(way, shape, causal):
    check(problem(shape, causal=causal), way, "normal")


INPUTS = [one.name for one in registry.op("attention").inputs]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("way", WAYS)
def test_awkward_inputs_come_out_right_in_both_orders_of_threads(way, inputs):
    for backwards in (False, True):
        check(problem("1x2x37x67x32", causal="bottom-right"), way, inputs, backwards=backwards)


def test_weights_computed_beside_the_keys_are_none_at_all():
    """A product whose left operand is computed as it is read: beyond the keys that is exp(0 - m), which is infinite."""
    config = {"BM": 32, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "SPLIT": 2}
    check(problem("1x1x7x1x8x16"), "vectorized+reduce+vectorized_split_k+combine#3", "climbing", config=config)


@pytest.mark.parametrize("name", ["attention_async", "attention_specialized"])
def test_a_plan_holds_head_dimensions_up_to_those_of_its_tiles(name):
    config = TURNS if name == "attention_specialized" else {**SMALL, "BD": 64, "BE": 64}
    device = backends.get("cuda").compile_only("sm_90a")
    for shape, refused in ((8, 8, 64, 64), None), ((8, 8, 48, 8), None), ((8, 8, 72, 64), "64"), ((8, 8, 64, 72), "64"):
        of = problem((1, 2, *shape))
        plan = lower(derived(small(of)).variant(name), config, of, backends.get("cuda"), device)
        unmet = launch.unmet(plan, launch.call_at(plan, of.shape, 1)[1])
        assert unmet is None if refused is None else unmet is not None and unmet.endswith(f"<= {refused}")


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("way", WAYS)
def test_heads_of_a_group_share_keys_and_values(way, layout):
    check(problem("2x4x11x50x32", kv_heads=2, causal="bottom-right", layout=layout), way, "normal")


@pytest.mark.parametrize("pad, shift", [(0, 1), (1, 0), (8, 8), (4, 0)])
@pytest.mark.parametrize("way", WAYS)
def test_any_pitch_and_base_are_taken(way, pad, shift):
    check(problem("1x2x20x70x32"), way, "normal", pad=pad, shift=shift)


def test_float16_and_the_normalizer():
    for way in ("attention_async", "attention_async_slabs+combine"):
        check(problem("1x2x37x67x32", "float16", lse="yes", causal="bottom-right"), way, "normal")


def specialized(
    of: Problem, config, inputs: str, change=lambda kernel: kernel, *, name="attention_specialized", blocks=2
):
    """Run a kernel for sm_90a, or what `change` makes of it, on the host with so many blocks, and compare."""
    op, device = registry.op(of.op), backends.get("cuda").compile_only("sm_90a")
    plan = lower(derived(small(of)).variant(name), config, of, backends.get("cuda"), device)
    arrays, scalars = next(s for s in op.inputs if s.name == inputs).make(of, np.random.default_rng(0))
    sizes = {**op.sizes(of), **config, "ITEMSIZE": 2}
    rooms = {}
    for operand in plan.operands:
        given = arrays.get(operand.name)
        shape = tuple(evaluate(extent, sizes) for extent in operand.extents)
        like = next(iter(arrays.values())).dtype if operand.dtype == of.dtype else np.dtype(operand.dtype)
        rooms[operand.name] = roomy(np.full(shape, np.nan, like) if given is None else given)
    views = {
        name: launch.ArrayView(a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides), a.itemsize)
        for name, a in rooms.items()
    }
    names = launch.names(plan, views, 132)
    assert launch.unmet(plan, names) is None
    addresses = {name: view.address for name, view in views.items()}
    assert hopper.run(change(plan.kernels[0]), names, addresses, scalars, blocks) is None
    (block,) = Reference(op, of, arrays, scalars).blocks()
    for name, want in block.expected.items():
        agrees(name, rooms[name], want, block.allowed[name])


def roomy(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 128 bytes whose rows are whole 16 bytes, amid NaNs."""
    pitch = -(-array.shape[-1] // 8) * 8 + 8
    rows = int(np.prod(array.shape[:-1]))
    memory = np.full(rows * pitch + 256, np.nan, array.dtype)
    start = -memory.ctypes.data % 128 // array.itemsize
    view = memory[start : start + rows * pitch].reshape(*array.shape[:-1], pitch)[..., : array.shape[-1]]
    view[...] = array
    return view


@pytest.mark.parametrize("causal", ["none", "bottom-right", "top-left"])
@pytest.mark.parametrize("shape", ["1x3x170x230x64", "2x1x130x67x40x72", "1x1x300x20x64", "1x1x1x65x128"])
def test_a_producer_and_consumers_agree_with_float64(shape, causal):
    of = problem(shape, causal=causal)
    *_, depth, columns = of.shape
    specialized(of, {**TURNS, "BD": -(-depth // 64) * 64, "BE": -(-columns // 64) * 64}, "normal")


@pytest.mark.parametrize("way", [way for way in SPECIALIZED if way != "in turns"])
def test_every_way_of_sharing_the_work_agrees_with_float64(way):
    specialized(problem("1x3x200x330x64", causal="bottom-right"), SPECIALIZED[way], "normal")


@pytest.mark.parametrize("inputs", INPUTS)
def test_a_producer_and_consumers_take_awkward_inputs(inputs):
    specialized(problem("1x2x137x167x64", causal="bottom-right", lse="yes"), TURNS, inputs)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_heads_of_a_group_are_found_by_maps_of_five_dimensions(layout):
    specialized(problem("2x4x70x130x64", "float16", kv_heads=2, causal="bottom-right", layout=layout), TURNS, "normal")


TWINS = {  # what is changed in the source or the header
    "sums are not rescaled": {"            rescale(less);\n            round_weights(s);\n        } else {":
                              "            round_weights(s);\n        } else {"},
    "the normalizer is not rescaled": {"fmaf(l[h], less[h], sum)": "l[h] + sum"},
    "keys are read before they are there": {"ks_barrier_wait(shared + K_FULL + 8 * keys.stage, keys.phase);": ""},
    "weights change while products read them": {
        "            values_done();\n            rescale(less);\n            round_weights(s);":
        "            round_weights(s);\n            values_done();\n            rescale(less);"},
    "padding is counted": {"if (w.whole < w.tiles)": "if (false)"},
    "top-left for bottom-right": {"(x.e_k) - (x.e_q)": "0"},
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_twin_does_not_pass(name, tmp_path):
    change = partial(twin_in, tmp_path, changes=TWINS[name])
    of = problem("1x3x200x330x64", causal="bottom-right")
    with pytest.raises((AssertionError, Rejected)):
        for inputs in ("normal", "climbing"):
            specialized(of, TURNS, inputs, change)
