"""Arrays of more than 2^31 elements on a GPU: every row is that of a small problem, wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest

import kernsearch as ks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
PERIOD, COLUMNS = (
    61,
    32768,
)  # rows until they repeat: no power of two, so that an offset cut to 32 bits meets another row
ROWS = 2**31 // COLUMNS + PERIOD
PIECE = 4096  # rows compared at once
SMALLEST = float(np.finfo(np.float16).smallest_subnormal)


@pytest.fixture(autouse=True)
def room(gpu):
    import cupy

    if cupy.cuda.runtime.memGetInfo()[0] < 24 << 30:
        pytest.skip("wants 24 GB of free device memory")
    yield
    cupy.get_default_memory_pool().free_all_blocks()


def numbers(columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((PERIOD, columns)).astype(np.float16)


def repeated(block):
    """ROWS rows on the device, those of the block again and again."""
    import cupy

    return cupy.asarray(block)[cupy.arange(ROWS) % PERIOD]


def check(got, want, rtol, atol=2 * SMALLEST):
    """Every row of `got` against that of the small problem, `want` in float64."""
    import cupy

    there = cupy.asarray(want)
    for first in range(0, ROWS, PIECE):
        rows = got[first : first + PIECE].astype("float64")
        wanted = there[cupy.arange(first, first + len(rows)) % PERIOD]
        off = ~(cupy.abs(rows - wanted) <= atol + rtol * cupy.abs(wanted))  # not by NumPy: minutes for these sizes
        assert not off.any(), f"{int(off.sum())} elements of rows {first} and following are off"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_rows_of_softmax(gpu):
    block = 8 * numbers(COLUMNS)
    check(ks.softmax(repeated(block)), softmax(block.astype(float)), 2**-10)


def test_rows_of_the_gradient(gpu):
    dy = numbers(COLUMNS)
    y = softmax(dy[::-1].astype(float) * 4).astype(np.float16)
    wide = dy.astype(float), y.astype(float)
    total = (wide[0] * wide[1]).sum(-1, keepdims=True)
    want = wide[1] * (wide[0] - total)
    got = ks.softmax_backward(repeated(dy), repeated(y))
    check(got, want, 2**-9)


@pytest.mark.parametrize("depth", [8, 5])
def test_rows_of_a_product(gpu, depth):
    import cupy

    block = numbers(depth)
    right = np.random.default_rng(1).standard_normal((depth, COLUMNS)).astype(np.float16)
    want = block.astype(float) @ right.astype(float)
    check(ks.matmul(repeated(block), cupy.asarray(right)), want, 0, 2**-7)


def test_operands_further_apart_than_2_to_the_31_elements(gpu):
    import cupy

    flat = cupy.empty(2**31 + 4096, "float16")
    rows = cupy.lib.stride_tricks.as_strided(flat, (2, 1000), (2 * (2**31 + 5), 2))
    block = numbers(1000)[:2]
    rows[...] = cupy.asarray(block)
    got = ks.softmax(rows).get().astype(float)
    np.testing.assert_allclose(got, softmax(block.astype(float)), 2**-10, 2 * SMALLEST)
    right = np.eye(1000, 40, dtype=np.float16)
    np.testing.assert_array_equal(ks.matmul(rows, cupy.asarray(right)).get(), block[:, :40])
