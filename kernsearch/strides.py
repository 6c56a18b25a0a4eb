"""NumPy arrays as kernels see them: strides in elements, places in memory, what must be copied first."""

from __future__ import annotations

import numpy as np

from .launch import ArrayView


def usable(array: np.ndarray, role: str) -> bool:
    """Can a kernel take the array as it is, if its address is a multiple of the itemsize?

    Strides must be whole elements and the byte order native; an output may not visit an element twice.
    """
    taken = [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1]
    whole = array.dtype.isnative and not any(s % array.itemsize for s in taken)
    return whole and (role == "input" or 0 not in taken)


def view_of(array: np.ndarray) -> ArrayView:
    """Shape and strides in elements; an extent of 1, whose stride is never taken, gets that of a C-contiguous array."""
    strides, inner = [], 1
    for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        strides.append(inner if extent <= 1 else stride // array.itemsize)
        inner *= max(extent, 1)
    return ArrayView(0, array.shape, tuple(reversed(strides)), array.itemsize)


def span(array: np.ndarray) -> tuple[int, int]:
    """(first byte, one past the last) of an array, relative to its address."""
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + array.itemsize


def overlap(a: int, span_a: tuple[int, int], b: int, span_b: tuple[int, int]) -> bool:
    """May two arrays share memory, going by their first and last bytes?"""
    return a + span_a[0] < b + span_b[1] and b + span_b[0] < a + span_a[1]
