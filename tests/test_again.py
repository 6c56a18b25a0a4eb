"""Calls that are like earlier ones: which are, and what they hand to the kernels.

Arrays are NumPy's here, of a library of their own, so that this runs without a GPU; the real thing is in
`tests/spaces/test_attention_gpu.py`.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernsearch.launch import BASE_BYTES, ArrayView
from kernsearch.runtime import again, plans
from kernsearch.runtime.libraries import BY_TYPE, Library
from kernsearch.runtime.views import canonical, span


class Array(np.ndarray):
    """Of the library below."""


def aligned(shape, extra=0):
    room = np.zeros(np.prod(shape) * 4 + BASE_BYTES + extra, np.uint8)
    start = -room.ctypes.data % BASE_BYTES + extra
    return room[start : start + int(np.prod(shape)) * 4].view(np.float32).reshape(shape).view(Array)


class Host(Library):
    name = "Host"

    def __init__(self):
        self.address = lambda a: a.ctypes.data
        self.form = lambda a: (a.ctypes.data, (a.shape, a.strides, a.dtype, a.ctypes.data % BASE_BYTES))
        self.empty = lambda like, shape: aligned(shape)


class Bound:
    """Keeps what it was launched with."""

    def __init__(self, views):
        self.spans = tuple(span(view) for view in views)
        self.ran = []

    def run(self, addresses, scalars, library):
        self.ran.append((list(addresses), scalars))


def view(array):
    return ArrayView(array.ctypes.data, array.shape, tuple(s // 4 for s in array.strides), 4)


PLAN = SimpleNamespace(
    plan=SimpleNamespace(operands=tuple(SimpleNamespace(name=name) for name in ("B", "A", "Y"))), outputs=(2,)
)


@pytest.fixture
def library():
    plans.forget()
    BY_TYPE[Array] = found = Host()
    yield found
    del BY_TYPE[Array]
    plans.forget()


def taught(library, a, b, out=None, how=("op", 1), elementwise=()):
    """A call, prepared at length: (how it was asked, its launcher, the result)."""
    asked = again.Asked(library, (a, b), out, *how)
    assert asked.again() is None
    result = aligned(a.shape) if out is None else out
    views = [view(b), view(a), view(result)]
    bound = Bound([canonical(v) for v in views])
    asked.learn(PLAN, bound, views, (2.0,), {"A": 0, "B": 1}, a.shape, result, elementwise)
    return bound, result


def test_a_call_like_an_earlier_one_hands_its_own_addresses_to_the_kernels(library):
    bound, _ = taught(library, aligned((3, 5)), aligned((3, 5)))
    a, b = aligned((3, 5)), aligned((3, 5))
    result = again.Asked(library, (a, b), None, "op", 1).again()
    assert result.shape == (3, 5)
    assert bound.ran == [([b.ctypes.data, a.ctypes.data, result.ctypes.data], (2.0,))]


def test_what_decides_how_a_call_goes_is_a_part_of_its_key(library):
    taught(library, aligned((3, 5)), aligned((3, 5)))
    same = aligned((3, 5))
    for a, out, how in (
        (aligned((3, 5), extra=4), None, ("op", 1)),  # another alignment
        (aligned((3, 10))[:, ::2], None, ("op", 1)),  # other strides
        (aligned((5, 3)), None, ("op", 1)),
        (same, None, ("op", 2)),
        (same, aligned((3, 5)), ("op", 1)),
        (np.zeros((3, 5), np.float32), None, ("op", 1)),  # of no library
        (same, None, ("op", [1])),  # cannot be hashed
    ):
        assert again.Asked(library, (a, same), out, *how).again() is None
    assert again.Asked(None, (same, same), None, "op", 1).again() is None


def test_operands_that_begin_elsewhere_in_their_arrays_do_so_again(library):
    a, b, out = (aligned((3, 5)) for _ in range(3))
    asked = again.Asked(library, (a, b), None, "op", 1)
    views = [view(b), view(a[1:]), view(out)]
    bound = Bound(views)
    asked.learn(PLAN, bound, views, (2.0,), {"A": 0, "B": 1}, (3, 5), out)
    c, d = aligned((3, 5)), aligned((3, 5))
    again.Asked(library, (c, d), None, "op", 1).again()
    assert bound.ran[0][0][:2] == [d.ctypes.data, c[1:].ctypes.data]


def test_an_output_that_overlaps_is_looked_at_again(library):
    a, b, out = (aligned((4, 64)) for _ in range(3))
    bound, _ = taught(library, a, b, out)
    assert again.Asked(library, (a, b), a, "op", 1).again() is None
    room = aligned((8, 64))
    assert again.Asked(library, (room[:4], b), room[1:5], "op", 1).again() is None
    assert again.Asked(library, (room[:4], b), room[4:], "op", 1).again() is not None
    assert len(bound.ran) == 1


def test_an_output_may_be_where_an_elementwise_input_is(library):
    a, b, out = (aligned((4, 64)) for _ in range(3))
    bound, _ = taught(library, a, b, out, elementwise=("A",))
    assert again.Asked(library, (a, b), a, "op", 1).again() is a
    assert again.Asked(library, (a, b), b, "op", 1).again() is None
    room = aligned((5, 64))
    assert again.Asked(library, (room[:4], b), room[1:], "op", 1).again() is None
    assert len(bound.ran) == 1


def test_a_call_whose_arrays_were_copied_is_not_kept(library):
    a, b = aligned((3, 5)), aligned((3, 5))
    asked = again.Asked(library, (a, b), None, "op", 1)
    asked.again()
    asked.learn(PLAN, None, [], (), {}, (3, 5), aligned((3, 5)))
    assert again.Asked(library, (a, b), None, "op", 1).again() is None
