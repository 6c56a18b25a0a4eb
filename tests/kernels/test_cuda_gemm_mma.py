"""Rungs 05 and 06 of gemm on CUDA: every layout, alignment and edge, on the host and on a device."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_plans import OnGpu, OnHost, dtype_of, nominal, plan_around
from gemm_bindings import gemm_binding, reference
from kernsearch.spaces.gemm.templates import tensor_core

from kernsearch import backends
from kernsearch.backends.cuda import emit
from kernsearch.binding import Array
from kernsearch.feasible import FeasibleSpace
from kernsearch.sizes import evaluate

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
    used = {axis for array in arrays for axis in array.axes} | set(made.slabs.values())
    return replace(made, arrays=arrays, extents={axis: e for axis, e in made.extents.items() if axis in used})


def plan_of(made, template, letters, device):
    return plan_around(made, emit.kernel_plan(made, TEMPLATES[template], letters, device), letters)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    return OnGpu(request.getfixturevalue("gpu")) if request.param == "gpu" else OnHost(nominal("sm_80"))


def at_the_end_of_a_page(shape, dtype):
    """An array of NaNs; the page behind it may not be read."""
    size = int(np.prod(shape)) * dtype.itemsize
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    raw = np.frombuffer(mmap.mmap(-1, room + page), np.uint8)
    raw[:] = 0xFF
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(raw.ctypes.data + room), ctypes.c_size_t(page), 0) == 0
    return raw[room - size : room].view(dtype).reshape(shape)


def full(shape, dtype):
    return np.full(shape, np.nan, dtype)


def check(place, template, words, shape, layout="nn", dtype="bfloat16", epilogue="none", *, store=full, batch=()):
    """Run and compare with float64; `store` makes the arrays, given shape and dtype, that operands are put in."""
    m, n, k = shape
    split, atomic = template == "async_split_k", template == "async_atomic"
    made, kind = binding(layout, epilogue, dtype, batch=bool(batch), split=split, atomic=atomic), dtype_of(dtype)
    rng = np.random.default_rng(0)
    shapes = {"A": (m, k) if layout[0] == "n" else (k, m), "B": (k, n) if layout[1] == "n" else (n, k)}
    shapes |= {"bias": (n,)} if "bias" in epilogue else {}
    shapes |= {"C": (m, n)} if "residual" in epilogue else {}
    arrays = {}
    for name, size in shapes.items():
        arrays[name] = store((*batch, *size), kind) if name in "AB" else full(size, kind)
        arrays[name][...] = rng.standard_normal((*batch, *size) if name in "AB" else size)
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    result = "P" if split or atomic else "D"
    arrays[result] = full((3, m, n) if split else (*batch, m, n), np.dtype("float32") if split or atomic else kind)
    plan = plan_of(made, template, {**config(words), "SPLIT": 3}, place.device)
    place.run(plan, made, arrays, {name: 1.0 for name in plan.scalars})
    values["A"] = values["A"] if layout[0] == "n" else values["A"].T
    values["B"] = values["B"] if layout[1] == "n" else values["B"].T
    got = arrays[result].astype(np.float64)
    got = got.sum(axis=0) if split else got
    want = reference(values, epilogue, {"alpha": 1.0, "beta": 1.0})
    sums = np.abs(values["A"]) @ np.abs(values["B"]) + 1
    allowed = 1e-6 * sums + (0 if split or atomic else 2.0**-8) * np.abs(want)
    wrong = np.argwhere(~(np.abs(got - want) <= allowed))
    assert not len(wrong), f"{len(wrong)} wrong, the first at {wrong[0]}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)]
)
def test_all_layouts_agree_with_float64_where_everything_is_aligned(place, template, words, layout):
    check(place, template, words, (48, 72, 168), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)]
)
def test_pitches_that_break_alignment_are_computed_right(place, template, words, layout):
    check(place, template, words, (37, 71, 101), layout, store=at_the_end_of_a_page)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 7), (33, 1, 64), (2, 2, 15), (40, 66, 64), (5, 9, 1)])
@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", DEEP), ("async_pipeline", SLICED)]
)
def test_odd_extents_are_computed_right(place, template, words, shape):
    check(place, template, words, shape, store=at_the_end_of_a_page)
    check(place, template, words, shape, "tt", store=at_the_end_of_a_page)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_operand_may_be_aligned_and_the_other_not(place, layout):
    check(place, "async_pipeline", DEEP, (35, 64, 136), layout)
    check(place, "async_pipeline", DEEP, (64, 35, 136), layout)


@pytest.mark.parametrize("shape", [(40, 72, 264), (33, 35, 199), (20, 20, 60)])
@pytest.mark.parametrize("template", ["async_split_k", "async_atomic"])
def test_slabs_add_up_even_where_some_are_empty(place, template, shape):
    check(place, template, RING, shape)


@pytest.mark.parametrize(
    "template, words", [("tensor_core", SYNC), ("async_pipeline", RING), ("async_pipeline", SLICED)]
)
def test_no_thread_relies_on_those_before_it(template, words):
    check(OnHost(nominal("sm_80"), backwards=True), template, words, (33, 35, 264), store=at_the_end_of_a_page)


@pytest.mark.parametrize("epilogue", ["bias,gelu", "bias,relu,residual"])
@pytest.mark.parametrize("words", [RING, SLICED])
def test_epilogues_see_every_sum_once(place, words, epilogue):
    check(place, "async_pipeline", words, (33, 72, 64), epilogue=epilogue)
    check(place, "async_pipeline", words, (33, 37, 64), epilogue=epilogue)


def test_float16_runs_the_same_way(place):
    check(place, "async_pipeline", RING, (40, 72, 104), "nt", "float16")
    check(place, "tensor_core", SYNC, (35, 71, 103), "tn", "float16")


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_a_base_that_is_not_aligned_is_no_hindrance(place, offset):
    def shifted(shape, dtype):
        rows, columns = shape
        store = full(rows * (columns + 16) + 16, dtype)
        return store[offset : offset + rows * (columns + 16)].reshape(rows, columns + 16)[:, :columns]

    check(place, "async_pipeline", RING, (35, 64, 72), store=shifted)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("step", [-1, 2])
def test_any_strides_are_taken(place, layout, step):
    def spread(shape, dtype):
        rows, columns = shape
        return full((rows * 2, columns * 2), dtype)[::step, ::step][:rows, :columns]

    def flipped(shape, dtype):
        return full(shape, dtype)[::-1]

    check(place, "async_pipeline", RING, (35, 66, 70), layout, store=spread)
    check(place, "tensor_core", SYNC, (35, 66, 71), layout, store=flipped)


def test_batches_are_computed_apart(place):
    check(place, "async_pipeline", RING, (20, 40, 33), batch=(3,))


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
def test_tiles_of_every_form_are_computed_right(place, words):
    check(place, "async_pipeline", words, (150, 136, 96), "nn")
    check(place, "async_pipeline", words, (129, 67, 131), "tn", store=at_the_end_of_a_page)


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


@pytest.mark.parametrize(
    "arch, template, words",
    [
        ("sm_80", "async_pipeline", "BM128 BN256 BK32 WM64 WN64 STAGES4 SLICES1 GROUP8 BLOCKS1"),
        ("sm_89", "tensor_core", "BM128 BN128 BK32 WM64 WN32 GROUP8 BLOCKS1"),
        ("sm_90a", "async_pipeline", "BM16 BN32 BK256 WM16 WN32 STAGES8 SLICES8 GROUP1 BLOCKS1"),
        ("sm_90a", "async_atomic", "BM128 BN64 BK64 WM32 WN32 STAGES4 SLICES1 GROUP1 BLOCKS1"),
    ],
)
def test_large_tiles_compile_without_spills(arch, template, words):
    device, made = nominal(arch), binding(atomic=template == "async_atomic")
    kernel = emit.kernel_plan(made, TEMPLATES[template], {**config(words), "SPLIT": 4}, device)
    compiled = backends.get("cuda").compile(kernel, device, timeout_s=120)
    assert compiled.evidence["spill_stores"] == 0
