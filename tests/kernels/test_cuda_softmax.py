"""Kernels of softmax on CUDA: on the host, threads as fibers, in both orders. Clusters need a GPU."""

from __future__ import annotations

from math import prod

import host_cuda
import numpy as np
import pytest
from softmax_cases import expected, made, output_name, plan_of, problem

from kernsearch.gates.correctness import agrees
from kernsearch.launch import itemsize
from kernsearch.sizes import evaluate

KEPT = {"STREAM": 0, "WAVES": 4}
WAYS = {  # variant, config: several tiles a row and rows a block
    "warp_rows": {"BM": 8, "WM": 4, "TK": 8, **KEPT},
    "warp_rows ": {"BM": 4, "WM": 1, "TK": 16, **KEPT, "STREAM": 3},
    "block_row": {"BM": 2, "TK": 8, "WK": 64, **KEPT, "STREAM": 1, "AHEAD": 0, "LIFT": 0},
    "block_row ": {"BM": 1, "TK": 16, "WK": 128, **KEPT, "AHEAD": 0, "LIFT": 0},
    "block_row  ": {"BM": 2, "TK": 16, "WK": 64, **KEPT, "WAVES": 1, "AHEAD": 1, "LIFT": 0},
    "shared_row": {"BM": 1, "TK": 32, "WK": 64, "SHARED": 1, **KEPT, "AHEAD": 0, "LIFT": 0},
    "shared_row ": {"BM": 2, "TK": 16, "WK": 64, "SHARED": 1, **KEPT, "STREAM": 3, "AHEAD": 0, "LIFT": 0},
    "shared_row  ": {"BM": 2, "TK": 32, "WK": 64, "SHARED": 1, **KEPT, "WAVES": 1, "AHEAD": 1, "LIFT": 0},
    "row_online": {"BM": 1, "BK": 1024, "WK": 64, **KEPT},
    "row_slabs+spread": {"SPLIT": 4, "BM": 1, "TK": 8, "WK": 64, "BN": 1024, "TN": 4},
    "row_slabs+combine+map": {"SPLIT": 2, "BM": 1, "TK": 8, "WK": 64, "TM": 4},
    "map+row_slabs+spread": {"SPLIT": 2, "BM": 1, "TK": 8, "WK": 64, "BN": 1024, "TN": 4, "TM": 4},
    "row_states+map": {"BM": 1, "TK": 8, "WK": 64, "TM": 4},
    "row_states_max+row_states_sum+map": {"BM": 1, "TK": 8, "WK": 64, "TM": 1},
}
# those that keep the row, each in another place
KEEPING = ("warp_rows", "block_row", "block_row  ", "shared_row", "shared_row  ")


def typed(array: np.ndarray) -> np.ndarray:
    """bfloat16 as its bits, as the kernels on the host take it."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array


def run(of, variant, config, arrays, scalars, *, backwards=False, out=None, **layout):
    """The output of a variant on arrays; workspace is NaN before."""
    plan, bindings = plan_of(of, variant.strip(), config)
    held = {name: padded(array, **layout) for name, array in arrays.items()}
    first = next(iter(arrays.values()))
    result = padded(np.full_like(first, np.nan), **layout) if out is None else held[out]
    held[output_name(of)] = result
    sizes = {"M": of.shape[0], "N": of.shape[1], "SPLIT": config.get("SPLIT", 1), "ITEMSIZE": itemsize(of.dtype)}
    for buffer in plan.workspace:
        shape = tuple(evaluate(extent, sizes) for extent in buffer.extents)
        held[buffer.name] = np.full(shape, np.nan, buffer.dtype)
    for kernel, binding in zip(plan.kernels, bindings, strict=True):
        mine = {array.name: typed(held[array.name]) for array in binding.arrays}
        host_cuda.run(kernel, binding, mine, sizes, scalars, backwards=backwards)
    return result


def padded(array: np.ndarray, pad: int = 0, shift: int = 0) -> np.ndarray:
    """The array in one with longer rows, its first element off the start."""
    room = np.zeros(shift + array.shape[0] * (array.shape[1] + pad), array.dtype)
    view = room[shift:].reshape(array.shape[0], -1)[:, : array.shape[1]]
    view[...] = array
    return view


def check(of, got, arrays, scalars):
    want, allowed = expected(of, arrays, scalars)
    agrees("out", got, want, allowed)


@pytest.mark.parametrize("shape", [(5, 1), (3, 64), (7, 781), (2, 2051), (3, 1600)], ids=str)
@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("map")])
def test_every_way_of_softmax_agrees_with_float64(way, shape):
    of = problem("softmax", shape)
    arrays, scalars = made(of, "normal")
    check(of, run(of, way, WAYS[way], arrays, scalars), arrays, scalars)


@pytest.mark.parametrize("way", [*KEEPING, "row_online", "row_slabs+spread"])
@pytest.mark.parametrize("inputs", ["climbing", "-inf", "NaN and Inf", "equal", "large", "deep"])
def test_awkward_rows_come_out_right_in_both_orders_of_threads(way, inputs):
    for shape in ((6, 600), (5, 131)):  # threads with elements of all heights, and with one or two
        of = problem("softmax", shape)
        arrays, scalars = made(of, inputs)
        for backwards in (False, True):
            check(of, run(of, way, WAYS[way], arrays, scalars, backwards=backwards), arrays, scalars)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("way", [*KEEPING, "row_online"])
def test_other_dtypes_have_statistics_of_their_own(way, dtype):
    for shape in ((5, 256), (5, 261)):
        of = problem("softmax", shape, dtype)
        arrays, scalars = made(of, "climbing")
        check(of, run(of, way, WAYS[way], arrays, scalars), arrays, scalars)


@pytest.mark.parametrize("pad, shift", [(0, 1), (4, 0), (1, 0), (8, 4)])
@pytest.mark.parametrize("way", [*KEEPING, "row_online", "row_slabs+spread"])
def test_any_pitch_and_base_are_taken(way, pad, shift):
    of = problem("softmax", (9, 512))
    arrays, scalars = made(of, "normal")
    check(of, run(of, way, WAYS[way], arrays, scalars, pad=pad, shift=shift), arrays, scalars)


@pytest.mark.parametrize("way", [*KEEPING, "row_online", "row_slabs+spread"])
def test_the_output_may_be_the_input(way):
    of = problem("softmax", (7, 1025))
    arrays, scalars = made(of, "normal")
    check(of, run(of, way, WAYS[way], arrays, scalars, out="X", backwards=True), arrays, scalars)


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("result", ["softmax", "log"])
@pytest.mark.parametrize("way", [*KEEPING, "row_online", "map+row_slabs+spread"])
def test_the_prologue_is_computed_where_the_row_is_read(way, result, layout):
    of = problem("softmax", (6, 300), result=result, layout=layout, prologue="scale,bias,mask")
    for inputs in ("normal", "NaN under the mask"):
        arrays, scalars = made(of, inputs)
        check(of, run(of, way, WAYS[way], arrays, scalars), arrays, scalars)


BACK = {
    "warp_rows": WAYS["warp_rows"],
    "block_row": WAYS["block_row"],
    "shared_row": WAYS["shared_row"],
    "row_slabs+spread": WAYS["row_slabs+spread"],
}


@pytest.mark.parametrize("op, suffix", [("softmax_backward", "_product"), ("log_softmax_backward", "_sum")])
@pytest.mark.parametrize("way", BACK)
def test_the_backward_pass_agrees_with_float64(way, op, suffix):
    first, plus, rest = way.partition("+")
    for dtype, shape in (("float32", (5, 781)), ("float32", (3, 1024)), ("bfloat16", (4, 512))):
        of = problem(op, shape, dtype)
        for inputs in ("normal", "left out", "cancelling"):
            arrays, scalars = made(of, inputs)
            got = run(of, f"{first}{suffix}{plus}{rest}", BACK[way], arrays, scalars)
            check(of, got, arrays, scalars)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", ["block_row", "block_row  ", "shared_row", "shared_row  "])
@pytest.mark.parametrize("result", ["softmax", "log"])
def test_lifted_exponentials_are_those_of_the_row(result, way, dtype):
    """Also of rows of which the kernel keeps a part, of those that are no whole words, and of what is subnormal."""
    config = {**WAYS[way], "LIFT": 1}
    for shape in ((5, 512), (3, 261), (2, 2600)):
        of = problem("softmax", shape, dtype, result=result)
        for inputs in ("climbing", "-inf", "NaN and Inf", "equal", "large", "deep"):
            arrays, scalars = made(of, inputs)
            check(of, run(of, way, config, arrays, scalars), arrays, scalars)


@pytest.mark.parametrize("way", ["block_row", "shared_row"])
def test_lifted_exponentials_leave_subnormal_results(way):
    x = np.zeros((4, 256), np.float32)
    x[:, 1:] = np.linspace(-93, -80, 255)  # from 2^-133, the smallest number of bfloat16, on
    of = problem("softmax", x.shape, "bfloat16")
    arrays, scalars = made(of, "normal")
    arrays["X"] = np.asarray(x).astype(arrays["X"].dtype)
    got = run(of, way, {**WAYS[way], "LIFT": 1}, arrays, scalars)
    check(of, got, arrays, scalars)
    small = got.astype(np.float64)
    assert ((small > 0) & (small < 2.0**-126)).sum() > 400


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op, suffix", [("softmax", ""), ("softmax_backward", "_product")])
@pytest.mark.parametrize("way", ["block_row  ", "shared_row  "])
def test_a_block_that_asks_ahead_takes_its_rows_in_turn(way, op, suffix, dtype):
    of, config = problem(op, (1200, 256), dtype), WAYS[way]  # five rows for some of 132 blocks, four for others
    arrays, scalars = made(of, "normal")
    for backwards in (False, True):
        check(of, run(of, f"{way.strip()}{suffix}", config, arrays, scalars, backwards=backwards), arrays, scalars)


def test_rows_are_shared_out_among_fewer_blocks_than_there_are_rows():
    of = problem("softmax", (1100, 5))
    config = {"BM": 2, "TK": 4, "WK": 64, "STREAM": 0, "WAVES": 4, "AHEAD": 0, "LIFT": 0}
    plan, _ = plan_of(of, "block_row", config)
    assert prod(evaluate(x, {"M": 1100}) for x in plan.kernels[0].launches[0].grid) == 528 < 550
    arrays, scalars = made(of, "normal")
    check(of, run(of, "block_row", config, arrays, scalars), arrays, scalars)
