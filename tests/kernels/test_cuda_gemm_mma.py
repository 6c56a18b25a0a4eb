"""Rungs 05 and 06 of gemm on CUDA: every layout, alignment and edge, on the host and on a device."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import replace

import numpy as np
import pytest
from gemm_bindings import gemm_binding, reference
from host_cuda import from_bfloat16, run, to_bfloat16
from msgspec import structs

from kernsearch.backends.cuda import emit
from kernsearch.backends.cuda.architectures import nominal
from kernsearch.binding import Array
from kernsearch.feasible import FeasibleSpace
from kernsearch.sizes import evaluate
from kernsearch.spaces.gemm.templates import tensor_core

LAYOUTS = ("nn", "nt", "tn", "tt")
SYNC = "BM32 BN64 WM16 WN32 BK32 GROUP1 BLOCKS1"
RING = "BM32 BN64 WM16 WN32 BK32 STAGES3 SLICES1 GROUP4 BLOCKS1"
DEEP = "BM64 BN32 WM32 WN16 BK64 STAGES2 SLICES1 GROUP1 BLOCKS1"
SLICED = "BM16 BN32 WM16 WN16 BK128 STAGES3 SLICES4 GROUP1 BLOCKS1"
TEMPLATES = {template.name: template for template in tensor_core.templates()}


def config(words):
    return {letter: int(value) for letter, value in re.findall(r"([A-Z]+)(\d+)", words)}


def binding(layout="nn", epilogue="none", dtype="bfloat16", *, batch=False, split=False, atomic=False):
    """As the derivation makes it: 16-bit operands, sums and slabs in float32."""
    made = replace(gemm_binding(layout, epilogue, dtype, batch=batch, split=split or atomic), acc="float32")
    arrays = tuple(replace(a, dtype="float32") if a.name == "P" else a for a in made.arrays)
    if atomic:
        made = replace(made, roots=(replace(made.roots[0], axes=("m", "n")),))
        arrays = (*arrays[:2], Array("P", "float32", ("m", "n")))
    return replace(made, arrays=arrays)


def plan_of(template, made, words, arch="sm_80"):
    return emit.kernel_plan(made, TEMPLATES[template], {**config(words), "SPLIT": 3}, nominal(arch))


def at_the_end_of_a_page(shape, itemsize=2):
    """An array of raw elements; the page behind it may not be read. NaNs before it."""
    size = int(np.prod(shape)) * itemsize
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    raw = np.frombuffer(memory, np.uint8)
    raw[:] = 0xFF
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(raw.ctypes.data + room), ctypes.c_size_t(page), 0) == 0
    kind = {2: np.uint16, 4: np.uint32}[itemsize]
    return raw[room - size : room].view(kind).reshape(shape)


def numbers(dtype, values, store=None, exact=False):
    """(the stored operand, its value in float64). bfloat16 is stored as its bits."""
    stored = to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)
    if store is not None:
        store[...] = stored.view(store.dtype)
        stored = store.view(stored.dtype)
    return stored, (from_bfloat16(stored) if dtype == "bfloat16" else stored).astype(np.float64)


def value_of(dtype, array):
    return (from_bfloat16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def check(template, words, shape, layout="nn", dtype="bfloat16", epilogue="none", *, placed=None, backwards=False):
    """Run on the host and compare with float64; `placed` makes the arrays of shapes (a, b) to store operands in."""
    m, n, k = shape
    split, atomic = template == "async_split_k", template == "async_atomic"
    made = binding(layout, epilogue, dtype, split=split, atomic=atomic)
    rng = np.random.default_rng(0)
    shapes = {"A": (m, k) if layout[0] == "n" else (k, m), "B": (k, n) if layout[1] == "n" else (n, k)}
    arrays, values = {}, {}
    for name, size in shapes.items():
        arrays[name], values[name] = numbers(dtype, rng.standard_normal(size, np.float32), placed and placed(size))
    if "bias" in epilogue:
        arrays["bias"], values["bias"] = numbers(dtype, rng.standard_normal(n, np.float32))
    if "residual" in epilogue:
        arrays["C"], values["C"] = numbers(dtype, rng.standard_normal((m, n), np.float32))
    out = {"bfloat16": np.uint16}.get(dtype, dtype)
    plan = plan_of(template, made, words)
    if split or atomic:
        arrays["P"] = np.zeros((m, n), np.float32) if atomic else np.full((3, m, n), np.nan, np.float32)
        plan = structs.replace(plan, launches=plan.launches[-1:])
    else:
        arrays["D"] = numbers(dtype, np.full((m, n), np.nan, np.float32))[0].astype(out, copy=False)
    run(plan, made, arrays, {"M": m, "N": n, "K": k, "SPLIT": 3}, {"alpha": 1.0, "beta": 1.0}, backwards=backwards)
    values["A"] = values["A"] if layout[0] == "n" else values["A"].T
    values["B"] = values["B"] if layout[1] == "n" else values["B"].T
    got = arrays["P"].astype(np.float64) if split or atomic else value_of(dtype, arrays["D"])
    got = got.sum(axis=0) if split else got
    want = reference(values, epilogue, {"alpha": 1.0, "beta": 1.0})
    size = np.abs(values["A"]) @ np.abs(values["B"]) + 1
    allowed = 1e-6 * size + (0 if split or atomic else 2.0**-8) * np.abs(want) + 1e-6
    assert np.isfinite(got).all()
    wrong = np.argwhere(np.abs(got - want) > allowed)
    assert not len(wrong), f"{len(wrong)} wrong, the first at {wrong[0]}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)]
)
def test_all_layouts_agree_with_float64_where_everything_is_aligned(template, words, layout):
    check(template, words, (48, 72, 168), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)]
)
def test_pitches_that_break_alignment_are_computed_right(template, words, layout):
    check(template, words, (37, 71, 101), layout, placed=at_the_end_of_a_page)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 7), (33, 1, 64), (2, 2, 15), (40, 66, 64), (5, 9, 1)])
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", DEEP), ("async_pipeline", SLICED)]
)
def test_odd_extents_are_computed_right(template, words, shape):
    check(template, words, shape, placed=at_the_end_of_a_page)
    check(template, words, shape, "tt", placed=at_the_end_of_a_page)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_operand_may_be_aligned_and_the_other_not(layout):
    check("async_pipeline", DEEP, (35, 64, 136), layout)
    check("async_pipeline", DEEP, (64, 35, 136), layout)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("shape", [(40, 72, 264), (33, 35, 199), (20, 20, 60)])
@pytest.mark.parametrize("template", ["async_split_k", "async_atomic"])
def test_slabs_add_up_even_where_some_are_empty(template, shape, backwards):
    check(template, RING, shape, backwards=backwards)


@pytest.mark.parametrize("epilogue", ["bias,gelu", "bias,relu,residual"])
@pytest.mark.parametrize("words", [RING, SLICED])
def test_epilogues_see_every_sum_once(words, epilogue):
    check("async_pipeline", words, (33, 72, 64), epilogue=epilogue)
    check("async_pipeline", words, (33, 37, 64), epilogue=epilogue)


def test_float16_runs_the_same_way():
    check("async_pipeline", RING, (40, 72, 104), "nt", "float16")
    check("tensor_core", SYNC, (35, 71, 103), "tn", "float16")


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_a_base_that_is_not_aligned_is_no_hindrance(offset):
    def shifted(shape):
        rows, columns = shape
        store = np.full(rows * (columns + 16) + 16, 0xFFFF, np.uint16)
        return store[offset : offset + rows * (columns + 16)].reshape(rows, columns + 16)[:, :columns]

    check("async_pipeline", RING, (35, 64, 72), placed=shifted)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("step", [-1, 2])
def test_any_strides_are_taken(layout, step):
    def spread(shape):
        rows, columns = shape
        store = np.full((rows * 2, columns * 2), 0xFFFF, np.uint16)
        return store[::step, ::step][:rows, :columns]

    def flipped(shape):
        return np.full(shape, 0xFFFF, np.uint16)[::-1]

    check("async_pipeline", RING, (35, 66, 70), layout, placed=spread)
    check("tensor_core", SYNC, (35, 66, 71), layout, placed=flipped)


def test_batches_are_computed_apart():
    made, count, shape = binding(batch=True), 3, (20, 40, 33)
    m, n, k = shape
    rng = np.random.default_rng(1)
    arrays, values = {}, {}
    for name, size in {"A": (count, m, k), "B": (count, k, n)}.items():
        arrays[name], values[name] = numbers("bfloat16", rng.standard_normal(size, np.float32))
    arrays["D"] = np.full((count, m, n), 0xFFFF, np.uint16)
    sizes = {"M": m, "N": n, "K": k, "BATCH": count}
    run(plan_of("async_pipeline", made, RING), made, arrays, sizes, {"alpha": 1.0})
    want = values["A"] @ values["B"]
    assert np.abs(from_bfloat16(arrays["D"]) - want).max() < 2.0**-7 * np.abs(want).max()


CORNERS = (
    "BM16 BN64 WM16 WN16 BK64 STAGES4 SLICES1 GROUP1 BLOCKS2",
    "BM64 BN16 WM16 WN16 BK32 STAGES2 SLICES1 GROUP8 BLOCKS1",
    "BM128 BN128 WM64 WN32 BK32 STAGES4 SLICES1 GROUP1 BLOCKS1",
    "BM128 BN64 WM32 WN32 BK64 STAGES3 SLICES1 GROUP4 BLOCKS1",
    "BM256 BN64 WM64 WN32 BK32 STAGES2 SLICES1 GROUP1 BLOCKS1",
    "BM64 BN256 WM32 WN64 BK32 STAGES2 SLICES1 GROUP1 BLOCKS1",
    "BM16 BN32 WM16 WN32 BK256 STAGES2 SLICES8 GROUP1 BLOCKS1",
    "BM32 BN16 WM16 WN16 BK64 STAGES6 SLICES2 GROUP1 BLOCKS1",
)


@pytest.mark.parametrize("words", CORNERS)
def test_tiles_of_every_form_are_computed_right(words):
    check("async_pipeline", words, (150, 136, 96), "nn")
    check("async_pipeline", words, (129, 67, 131), "tn", placed=at_the_end_of_a_page)


def test_corner_configs_are_in_the_space_and_nothing_else_is():
    template, device = TEMPLATES["async_pipeline"], nominal("sm_90a")
    sizes = {"M": 4096, "N": 4096, "K": 4096, "ITEMSIZE": 2, "THREADS": 132}
    space = FeasibleSpace((*template.params, *template.knobs), template.constraints, device, sizes)
    assert [space.contains(config(words)) for words in CORNERS] == [None] * len(CORNERS)
    assert "warp tiles" in space.contains(config(RING) | {"WM": 64})
    assert "exceed shared memory" in space.contains(config("BM256 BN128 WM64 WN64 BK64 STAGES8 SLICES1 GROUP1 BLOCKS1"))


def test_shared_memory_of_launches_is_what_constraints_count():
    for name, template in TEMPLATES.items():
        for words in (*CORNERS, RING, DEEP, SLICED):
            letters = config(words)
            if name == "tensor_core":
                letters = {letter: value for letter, value in letters.items() if letter not in ("STAGES", "SLICES")}
            told = evaluate(template.launches[-1].shared, letters)
            assert told == tensor_core.shared_bytes(letters)
            assert evaluate(template.launches[-1].block, letters) == 32 * tensor_core.warps(letters)
