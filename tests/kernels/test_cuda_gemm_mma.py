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
@pytest.mark.parametrize("template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)])
def test_all_layouts_agree_with_float64_where_everything_is_aligned(template, words, layout):
    check(template, words, (48, 72, 168), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)])
def test_pitches_that_break_alignment_are_computed_right(template, words, layout):
    check(template, words, (37, 71, 101), layout, placed=at_the_end_of_a_page)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 7), (33, 1, 64), (2, 2, 15), (40, 66, 64), (5, 9, 1)])
@pytest.mark.parametrize("template, words", [("tensor_core", SYNC), ("async_pipeline", DEEP), ("async_pipeline", SLICED)])
def test_odd_extents_are_computed_right(template, words, shape):
    check(template, words, shape, placed=at_the_end_of_a_page)
    check(template, words, shape, "tt", placed=at_the_end_of_a_page)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_operand_may_be_aligned_and_the_other_not(layout):
    check("async_pipeline", DEEP, (35, 64, 136), layout)
    check("async_pipeline", DEEP, (64, 35, 136), layout)
