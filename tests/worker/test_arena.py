"""Red zones, gaps between rows and poison: what is drawn, and what is noticed."""

from __future__ import annotations

import resource
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from kernsearch.errors import DeviceError
from kernsearch.worker import Arena, Layout
from kernsearch.worker.arena import LINE, OUTSIDE, STALE, UNWRITTEN, pattern_bits

DTYPES = [np.dtype("f8"), np.dtype("f4"), np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)]


@pytest.fixture
def arena():
    arena = Arena()
    yield arena
    arena.close()


def layout_of(arena: Arena, dtype: np.dtype, pad: int = 3, shift: int = 1) -> Layout:
    layout = Layout(arena, 0)
    layout.add("A", "input", dtype, (5, 7), pad=pad, shift=shift)
    layout.add("W", "workspace", dtype, (4, 5, 7))
    layout.add("D", "output", dtype, (5, 7), pad=pad, shift=shift)
    layout.commit()
    layout.poison()
    layout.view("A")[:] = 1
    return layout


@pytest.mark.parametrize("pattern", [OUTSIDE, STALE, UNWRITTEN])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pattern_is_nan_in_every_dtype(dtype: np.dtype, pattern: int) -> None:
    bits = pattern_bits(dtype, pattern)
    assert np.isnan(np.array([bits], f"u{dtype.itemsize}").view(dtype).astype("f8"))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_poison_fills_outputs_and_workspace_and_leaves_inputs(arena: Arena, dtype: np.dtype) -> None:
    layout = layout_of(arena, dtype)
    assert np.isnan(layout.view("D").astype("f8")).all()
    assert np.isnan(layout.view("W").astype("f8")).all()
    assert (layout.view("A").astype("f8") == 1).all()
    assert not list(layout.damage())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "at, words",
    [("first", "before the start of D"), ("last", "past the end of D"), ("gap", "between the rows of D, after row 2")],
)
def test_one_changed_byte_outside_a_buffer_is_noticed(arena: Arena, dtype: np.dtype, at: str, words: str) -> None:
    layout = layout_of(arena, dtype)
    slot = layout.slots["D"]
    place = {"first": -1, "last": slot.span, "gap": (2 * slot.strides[0] + 7) * dtype.itemsize}[at]
    raw = arena.bytes(slot.offset + place, 1)
    raw ^= 1
    assert words in next(layout.damage())
    raw ^= 1
    assert not list(layout.damage())


def test_all_of_a_buffer_may_be_written(arena: Arena) -> None:
    layout = layout_of(arena, np.dtype("f4"))
    layout.view("D")[:] = 7
    layout.view("W")[:] = 7
    assert not list(layout.damage())


def test_buffers_start_on_a_cache_line_unless_shifted(arena: Arena) -> None:
    layout = Layout(arena, 0)
    for i in range(20):
        layout.add(str(i), "input", np.dtype("f4"), (3, 1000))
        assert layout.slots[str(i)].offset % LINE == 0
    assert layout.add("odd", "input", np.dtype("f4"), (3,), shift=1).offset % LINE == 4


def test_neighbours_do_not_share_red_zones(arena: Arena) -> None:
    layout = layout_of(arena, np.dtype("f4"))
    ends = [(s.offset - s.zone, s.offset + s.span + s.zone) for s in layout.slots.values()]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_views_stay_valid_when_the_arena_grows(arena: Arena) -> None:
    layout = layout_of(arena, np.dtype("f4"))
    view = layout.view("D")
    arena.reserve(64 << 20)
    view[:] = 3
    assert (layout.view("D") == 3).all()


def test_discarded_memory_reads_as_zero(arena: Arena) -> None:
    layout = layout_of(arena, np.dtype("f4"))
    arena.discard(layout.start, layout.end)
    assert arena.bytes(layout.slots["W"].offset, 4).tolist() == [0, 0, 0, 0]


def test_memory_that_cannot_be_had_is_said_in_one_line(arena: Arena) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(DeviceError, match="shared memory: 4 MiB for arrays cannot be had"):
            arena.reserve(4 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    arena.reserve(4 << 20)
    assert arena.size == 4 << 20
