"""Packed copies and bulk-tensor maps, as the plan of any kernel may have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_plans import OnGpu, OnHost, dtype_of, nominal, plan_of
from gemm_bindings import gemm_binding

from kernsearch.backends.cuda.places import PITCH
from kernsearch.space import Param
from kernsearch.template import Launch, Template, TileMap, dot, hole

HERE = Path(__file__).parent
TILE = {"BM": 64, "BN": 64, "BK": 64}
BLOCKS = "min(ceil(M * K * B, 2048) + 1, SMS * 8)"
TEMPLATE = Template(
    name="moves",
    backend="cuda",
    roots=(hole("D", dot("A", "B")),),
    params=tuple(Param(letter, (value,), "") for letter, value in TILE.items()),
)
PACKED = replace(
    TEMPLATE,
    source=str(HERE / "packed.cu"),
    ann=(("move", "A", "pack"), ("move", "B", "pack")),
    scratch="M * 4",
    launches=tuple(Launch(entry, (BLOCKS, "1", "1"), "256") for entry in ("pack_a", "pack_b")),
)
MAPPED = replace(
    TEMPLATE,
    source=str(HERE / "mapped.cu"),
    maps=(TileMap("A", "MK", ("BM", "BK")), TileMap("D", "MN", ("BM", "BN"))),
    launches=(Launch("copy_boxes", ("ceil(K, 64)", "ceil(M, 64)", "B"), "32"),),
)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    return OnGpu(request.getfixturevalue("gpu")) if request.param == "gpu" else OnHost(nominal())


def binding_of(layout, dtype, batch=True):
    base = gemm_binding(layout, "none", "float64" if dtype == "float64" else "float32", batch=batch)
    return replace(base, arrays=tuple(replace(array, dtype=dtype) for array in base.arrays))


def shifted(shape, dtype, seed, by):
    """An array that begins `by` elements after a multiple of 256 bytes, with rows that follow each other directly."""
    size, dtype = int(np.prod(shape)), dtype_of(dtype)
    room = np.zeros(size + 256 // dtype.itemsize + by, dtype)
    start = -room.ctypes.data % 256 // dtype.itemsize + by
    array = room[start : start + size].reshape(shape)
    array[...] = np.random.default_rng(seed).standard_normal(shape)
    return array


def copies_of(scratch, arrays):
    """The packed copies that a kernel left in its scratch."""
    start = 0
    for array in arrays:
        batch, rows, inner = array.shape
        pitch = -(-inner // PITCH) * PITCH
        size = batch * rows * pitch * array.itemsize
        yield scratch[start : start + size].view(array.dtype).reshape(batch, rows, pitch)
        start += -(-size // 256) * 256


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("by", [0, 1, 2, 5])
def test_a_packed_copy_holds_the_operand_and_zeros(place, dtype, by):
    binding = binding_of("nn", dtype)
    m, n, k = 7, 130, 71
    a, b = shifted((2, m, k), dtype, 1, by), shifted((2, k, n), dtype, 2, by)
    arrays = {"A": a, "B": b, "D": np.zeros((2, m, n), a.dtype)}
    scratch = place.run(plan_of(binding, PACKED, TILE, place.device), binding, arrays)
    for copy, array in zip(copies_of(scratch, (a, b)), (a, b), strict=True):
        np.testing.assert_array_equal(copy[:, :, : array.shape[2]], array)
        assert not copy[:, :, array.shape[2] :].any()


def test_an_operand_whose_elements_lie_apart_is_packed_element_by_element(place):
    binding = binding_of("nn", "bfloat16")
    a, b = shifted((2, 7, 142), "bfloat16", 1, 1)[:, :, ::-2], shifted((2, 71, 66), "bfloat16", 2, 0)[:, ::-1]
    arrays = {"A": a, "B": b, "D": np.zeros((2, 7, 66), a.dtype)}
    scratch = place.run(plan_of(binding, PACKED, TILE, place.device), binding, arrays)
    for copy, array in zip(copies_of(scratch, (a, b)), (a, b), strict=True):
        np.testing.assert_array_equal(copy[:, :, : array.shape[2]], array)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "shape"), [("bfloat16", (2, 100, 72)), ("float32", (1, 64, 64)), ("float16", (3, 1, 8))]
)
def test_boxes_move_by_their_maps_and_stop_at_the_edges(gpu, dtype, shape):
    if gpu.cc_major < 9:
        pytest.skip("no bulk-tensor copies before compute capability 9")
    binding = binding_of("nt", dtype)  # with as many columns as depth, so that D lies as A does
    batch, rows, inner = shape
    a = shifted(shape, dtype, 1, 0)
    outside = np.full((batch, rows + 8, inner + 16), 7, a.dtype)
    arrays = {"A": a, "B": np.zeros((batch, inner, inner), a.dtype), "D": outside[:, :rows, :inner]}
    inner_box = 128 // a.itemsize
    template = replace(MAPPED, launches=(Launch("copy_boxes", (f"ceil(K, {inner_box})", "ceil(M, 64)", "B"), "32"),))
    OnGpu(gpu).run(plan_of(binding, template, TILE, gpu), binding, arrays)
    np.testing.assert_array_equal(outside[:, :rows, :inner], a)
    assert (outside[:, rows:] == 7).all() and (outside[:, :, inner:] == 7).all()
