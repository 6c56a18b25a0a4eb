"""NumPy arrays as kernels see them: strides in elements, places in memory, what must be copied first."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..launch import ArrayView


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


def collapsed(array: np.ndarray) -> np.ndarray | None:
    """The array with all dimensions but the last as one, if its strides allow that without a copy."""
    lead = [(n, s) for n, s in zip(array.shape[:-1], array.strides[:-1], strict=True) if n > 1]
    if any(outer != inner * n for (_, outer), (n, inner) in itertools.pairwise(lead)):
        return None
    step = lead[-1][1] if lead else array.strides[-2]
    rows = math.prod(array.shape[:-1])
    return np.lib.stride_tricks.as_strided(array, (rows, array.shape[-1]), (step, array.strides[-1]))


def offsets(array: np.ndarray, batch: tuple[int, ...]) -> list[int]:
    """Byte offsets of the matrices of an array whose leading dimensions broadcast to `batch`, in C order."""
    lead = len(batch) - (array.ndim - 2)
    places = np.zeros((1,) * len(batch), np.int64)
    for axis, (n, stride) in enumerate(zip(array.shape[:-2], array.strides[:-2], strict=True)):
        steps = (np.arange(n, dtype=np.int64) * stride).reshape(
            [n if i == lead + axis else 1 for i in range(len(batch))]
        )
        places = places + steps
    return np.broadcast_to(places, batch).ravel().tolist()


def span(array: np.ndarray) -> tuple[int, int]:
    """(first byte, one past the last) of an array, relative to its address."""
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + array.itemsize


def overlap(a: int, span_a: tuple[int, int], b: int, span_b: tuple[int, int]) -> bool:
    """May two arrays share memory, going by their first and last bytes?"""
    return a + span_a[0] < b + span_b[1] and b + span_b[0] < a + span_a[1]
