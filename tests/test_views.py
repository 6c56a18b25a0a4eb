"""Views say where elements lie: each operation is held against what NumPy does to the array itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernsearch.launch import ArrayView
from kernsearch.runtime import views

BASE = np.arange(5 * 6 * 7 * 8, dtype="f4").reshape(5, 6, 7, 8)


def view(array: np.ndarray) -> ArrayView:
    strides = tuple(s // array.itemsize for s in array.strides)
    return ArrayView(array.__array_interface__["data"][0], array.shape, strides, array.itemsize)


def elements(seen: ArrayView) -> np.ndarray:
    """What lies where a view, of something in BASE, says."""
    first = (seen.address - BASE.__array_interface__["data"][0]) // seen.itemsize
    return np.lib.stride_tricks.as_strided(BASE.reshape(-1)[first:], seen.shape, [4 * s for s in seen.strides])


SLICES = st.tuples(
    *[st.sampled_from([slice(None), slice(1, 3), slice(None, None, -1), slice(None, None, 2), slice(2, 3)])] * 4
)
ORDERS = st.permutations(range(4))


@given(SLICES, ORDERS)
def test_a_view_has_the_elements_of_its_array(where, order):
    array = BASE[where].transpose(order)
    np.testing.assert_array_equal(elements(view(array)), array)
    np.testing.assert_array_equal(elements(views.canonical(view(array))), array)
    np.testing.assert_array_equal(elements(views.swapped(view(array))), array.swapaxes(-1, -2))


@given(SLICES, ORDERS, st.integers(0, 3), st.integers(0, 3))
def test_dimensions_are_merged_exactly_when_that_needs_no_copy(where, order, start, stop):
    start, stop = min(start, stop), max(start, stop) + 1
    array = BASE[where].transpose(order)
    merged = views.merged(view(array), start, stop)
    shape = (*array.shape[:start], -1, *array.shape[stop:])
    alike = array.reshape(shape)
    if merged is None:
        assert not np.shares_memory(alike, BASE)
    else:
        np.testing.assert_array_equal(elements(merged), alike)


@pytest.mark.parametrize(
    "axis, index",
    [(0, (None,)), (-1, (..., None)), (-2, (..., None, slice(None))), (2, (slice(None), slice(None), None))],
)
def test_a_dimension_is_added_where_it_is_said(axis, index):
    array = BASE[1]
    np.testing.assert_array_equal(elements(views.lifted(view(array), axis)), array[index])


SHAPES = [(), (1,), (3,), (2, 1), (1, 3), (4, 2, 1), (4, 1, 3), (0, 3), (2,)]


@pytest.mark.parametrize("a", SHAPES)
@pytest.mark.parametrize("b", SHAPES)
def test_shapes_broadcast_as_in_numpy(a, b):
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        want = None
    assert views.broadcast_shapes(a, b) == want
    told = views.broadcast(view(BASE.reshape(-1)[: int(np.prod(a))].reshape(a)), b)
    assert (told is not None) == (want == b)
    if told is not None:
        np.testing.assert_array_equal(
            elements(told), np.broadcast_to(BASE.reshape(-1)[: int(np.prod(a))].reshape(a), b)
        )


def test_parts_go_through_the_leading_dimensions_in_order():
    array, other = BASE[:2, ::2], BASE[3:, ::-2]
    pairs = list(views.parts([view(array), view(other)], 2))
    assert len(pairs) == 6
    for (first, second), index in zip(pairs, np.ndindex(2, 3), strict=True):
        np.testing.assert_array_equal(elements(first), array[index])
        np.testing.assert_array_equal(elements(second), other[index])


@given(SLICES, ORDERS)
def test_the_span_is_from_the_first_byte_to_one_past_the_last(where, order):
    array = BASE[where].transpose(order)
    low, high = views.span(view(array))
    start = view(array).address - view(BASE).address
    assert (start + low, start + high) == (4 * array.min(), 4 * array.max() + 4)  # an element holds its own place
