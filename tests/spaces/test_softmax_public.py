"""`ks.softmax` and its kin on NumPy arrays: axes, masks, layouts, outputs, policies and errors."""

from __future__ import annotations

import mmap

import ml_dtypes
import numpy as np
import pytest
from kernsearch.spaces.softmax.shapes import matrices

import kernsearch as ks
from kernsearch.errors import ArrayError, DtypeError, ProblemError
from kernsearch.runtime import plans


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        plans.forget()
        yield
    plans.forget()


def numbers(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plain(x, axis=-1):
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def close(got, want, relative=4e-6):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=relative, atol=1e-30)


@pytest.mark.parametrize(
    "shape, axis",
    [
        ((5, 7), -1),
        ((5, 7), 0),
        ((3, 4, 5), 1),
        ((70, 3, 5), 1),
        ((2, 3, 4, 50), -2),
        ((9,), 0),
        ((4, 1), 1),
        ((1, 4), 0),
    ],
)
def test_any_axis_of_any_shape(shape, axis):
    x = numbers(shape)
    close(ks.softmax(x, axis), plain(x, axis))
    np.testing.assert_allclose(ks.log_softmax(x, axis), np.log(plain(x, axis)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype, relative", [(np.float64, 1e-13), (ml_dtypes.bfloat16, 8e-3)])
def test_other_dtypes(dtype, relative):
    x = numbers((7, 300), dtype=dtype)
    got = ks.softmax(x)
    assert got.dtype == dtype
    close(got.astype(np.float64), plain(x.astype(np.float64)), relative)


def test_strides_of_every_kind_are_taken():
    room = numbers((40, 60))
    backwards, narrow, turned = room[::-2, ::-3], room[:, 1:50], np.asfortranarray(room)
    spread = np.broadcast_to(room[:1], (5, 60))
    for x in (backwards, narrow, turned, spread, turned.T, room.astype(">f4")):
        close(ks.softmax(x), plain(x))
        close(ks.softmax(x, 0), plain(x, 0))


def test_rows_further_apart_than_2_to_the_31_elements_are_reached():
    far = (1 << 31) + 3
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 4 * (far + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    rows = np.lib.stride_tricks.as_strided(np.frombuffer(memory, "float32"), (2, 50), (4 * far, 4))
    rows[...] = x = numbers((2, 50))
    close(ks.softmax(rows), plain(x))
    ks.softmax(rows, out=rows)
    close(rows, plain(x))


def test_the_result_goes_where_it_is_wanted():
    x = numbers((6, 90))
    out = np.full((6, 90), np.nan, np.float32)
    assert ks.softmax(x, out=out) is out
    close(out, plain(x))
    inside = np.full((6, 200), np.nan, np.float32)
    ks.softmax(x, out=inside[:, 3:183:2])
    close(inside[:, 3:183:2], plain(x))
    assert np.isnan(inside[:, 4:183:2]).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_output_may_be_or_overlap_the_input(axis):
    x = numbers((4, 30, 50))
    same = x.copy()
    ks.softmax(same, axis, out=same)
    close(same, plain(x, axis))
    long = np.concatenate([x, x[:1]])
    ks.softmax(long[:-1], axis, out=long[1:])
    close(long[1:], plain(x, axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_square_result_may_lie_the_other_way_round(axis, order):
    """Its matrix has the array's shape, but not its strides."""
    x = numbers((8, 8))
    close(ks.softmax(np.array(x, order=order), axis, out=np.empty((8, 8), np.float32, order="F")), plain(x, axis))
    turned = np.array(x, order=order)
    close(ks.softmax(turned, axis, out=turned.T), plain(x, axis))
    dy, y = numbers((8, 8), 1), ks.softmax(x, axis)
    got = ks.softmax_backward(np.array(dy, order=order), y, axis, out=np.empty((8, 8), np.float32, order="F"))
    np.testing.assert_allclose(got, y * (dy - (dy * y).sum(axis, keepdims=True)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_input_that_several_matrices_would_overwrite_is_copied_with_strides_of_its_own(axis):
    """Rows do not lie at one distance from each other in both arrays, and the copy is closer than what it is of."""
    x = numbers((4, 4, 4))
    for room in (np.empty((4, 4, 7), np.float32)[:, :, :4], np.empty((4, 4, 4), np.float32)[::-1]):
        for order in ((2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0)):
            room[...] = x
            close(ks.softmax(room, axis, out=room.transpose(order)), plain(x, axis))


def test_a_mask_leaves_out_what_is_false_whatever_is_there():
    x, mask = numbers((6, 80)), np.random.default_rng(1).random((6, 80)) < 0.5
    mask[2] = False
    x[~mask] = np.nan
    got = ks.softmax(x, mask=mask, scale=0.5)
    want = np.zeros((6, 80))
    for row in range(6):
        if mask[row].any():
            want[row, mask[row]] = plain(0.5 * x[row, mask[row]])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    logs = ks.log_softmax(x, mask=mask)
    assert np.isneginf(logs[~mask]).all() and np.isneginf(logs[2]).all() and np.isfinite(logs[mask]).all()


def test_masks_and_biases_broadcast():
    x, mask, bias = numbers((3, 4, 50)), np.arange(50) < 20, numbers((4, 1), 3)
    got = ks.softmax(x, mask=mask, bias=bias)
    want = plain(np.where(mask, x + bias, -np.inf))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rows_of_minus_infinity_give_zeros_and_others_what_numpy_gives():
    x = numbers((4, 9))
    x[0], x[1, 3], x[2, 4] = -np.inf, np.inf, np.nan
    got = ks.softmax(x)
    assert (got[0] == 0).all() and np.isnan(got[1]).all() and np.isnan(got[2]).all()
    assert np.isneginf(ks.log_softmax(x)[0]).all()
    close(got[3], plain(x[3]))


def test_nothing_is_computed_of_nothing():
    for shape in ((0, 5), (5, 0), (2, 0, 3)):
        for axis in range(len(shape)):
            assert ks.softmax(np.zeros(shape, np.float32), axis).shape == shape
    assert ks.softmax(np.float32(3)) == 1
    assert ks.softmax(numbers((5, 1))).tolist() == [[1.0]] * 5


def test_the_gradient_is_that_of_finite_differences():
    x, dy = numbers((3, 20), 1, np.float64), numbers((3, 20), 2, np.float64)
    step = 1e-6 * numbers((3, 20), 3, np.float64)
    for forward, log in ((ks.softmax, False), (ks.log_softmax, True)):
        dx = ks.softmax_backward(dy, forward(x), log=log)
        change = (dy * (forward(x + step) - forward(x - step))).sum() / 2
        np.testing.assert_allclose((dx * step).sum(), change, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_may_take_the_place_of_what_it_is_made_of(axis):
    dy, y = numbers((30, 40), 1), plain(numbers((30, 40)), axis).astype(np.float32)
    want = ks.softmax_backward(dy, y, axis)
    for which in range(2):
        given = [dy.copy(), y.copy()]
        ks.softmax_backward(*given, axis, out=given[which])
        np.testing.assert_array_equal(given[which], want)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: ks.softmax(x.astype(np.int32)), DtypeError, "x is int32: want float32, float64, bfloat16"),
        (lambda x: ks.softmax(x, 2), ArrayError, "axis 2: x has 2 dimensions, want one from -2 to 1"),
        (lambda x: ks.softmax(x, 1.5), ArrayError, "axis 1.5: want a whole number"),
        (lambda x: ks.softmax(x, mask=x), DtypeError, "mask is float32: want bool"),
        (lambda x: ks.softmax(x, mask=np.ones(3, bool)), ArrayError, r"mask has shape \(3,\): want \(4, 5\)"),
        (lambda x: ks.softmax(x, bias=x.astype(float)), DtypeError, "bias is float64: want float32"),
        (lambda x: ks.softmax(x, scale="2"), ProblemError, "scale '2': want a real number"),
        (lambda x: ks.softmax(x, out=x[:2]), ArrayError, r"out has shape \(2, 5\): want \(4, 5\)"),
        (lambda x: ks.softmax(x, out=x.astype(float)), DtypeError, "out is float64: want float32"),
        (lambda x: ks.softmax(x, out=np.broadcast_to(x, x.shape)), ArrayError, "out is read-only"),
        (lambda x: ks.softmax_backward(x, x[:1]), ArrayError, r"y has shape \(1, 5\): want \(4, 5\)"),
        (lambda x: ks.softmax_backward(x, x[:, :3]), ArrayError, r"y has shape \(4, 3\): want \(4, 5\)"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(call, error, words):
    with pytest.raises(error, match=words):
        call(numbers((4, 5)))


def test_rows_are_found_without_copies_where_strides_allow_it():
    found = matrices({"X": ((2, 3, 4), (12, 4, 1))}, 2)
    assert (found.rows, found.columns, found.layout, found.count) == (6, 4, "n", 1)
    found = matrices({"X": ((2, 3, 4), (12, 4, 1))}, 0)
    assert (found.rows, found.columns, found.layout, found.count) == (12, 2, "t", 1)
    found = matrices({"X": ((2, 3, 4), (12, 4, 1))}, 1)
    assert (found.rows, found.columns, found.layout, found.count) == (4, 3, "t", 2)
    assert list(found.offsets(["X"])) == [(0,), (12,)]
    found = matrices({"X": ((2, 3, 4), (12, 4, 1)), "mask": ((2, 3, 4), (0, 4, 1))}, 2)
    assert (found.rows, found.count) == (3, 2) and list(found.offsets(["X", "mask"])) == [(0, 0), (12, 0)]
