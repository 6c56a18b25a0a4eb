"""NumPy arrays as kernels see them: strides in elements, places in memory, what must be copied first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from ..errors import ArrayError
from ..launch import ArrayView


def usable(array: np.ndarray) -> bool:
    """Can a kernel take the array as it is, if its address is a multiple of the itemsize?

    Strides must be whole elements and the byte order native.
    """
    taken = (s for n, s in zip(array.shape, array.strides, strict=True) if n > 1)
    return array.dtype.isnative and not any(s % array.itemsize for s in taken)


def check_apart(name: str, shape: Sequence[int], strides: Sequence[int], size: int) -> None:
    """Raise ArrayError for an output that visits memory twice: what it holds in the end would be a matter of luck.
    `strides` and the `size` of an element are in the same unit."""
    if _visits_twice(shape, strides, size):
        raise ArrayError(f"{name} visits an element twice, by strides {tuple(strides)}: want an array that does not")


def _visits_twice(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    if 0 in shape:
        return False
    reach, strange = size, False
    for stride, extent in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        strange |= stride < reach
        reach += stride * (extent - 1)
    return strange and _meet(shape, strides, size)


def _meet(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Do elements share memory? Looks at where each one lies: for strides that no slice of an array has."""
    if any(n > 1 and not s for n, s in zip(shape, strides, strict=True)):
        return True
    places = np.zeros(1, np.int64)
    for extent, stride in zip(shape, strides, strict=True):
        places = (places[:, None] + np.arange(extent, dtype=np.int64) * stride).ravel()
    places.sort()
    return bool((np.diff(places) < size).any())


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


def apart(
    spans: Sequence[tuple[int, int]], addresses: Sequence[int], output: int, in_place: Collection[int] = ()
) -> bool:
    """Is one of several arrays, an output, apart from all others, or just where one of `in_place` is? Of each array
    `spans` has the first byte and one past the last, relative to its address."""
    at = addresses[output]
    first, end = at + spans[output][0], at + spans[output][1]
    for i, (address, (low, high)) in enumerate(zip(addresses, spans, strict=True)):
        if first < address + high and address + low < end and i != output and not (address == at and i in in_place):
            return False
    return True


def overlap(a: int, span_a: tuple[int, int], b: int, span_b: tuple[int, int]) -> bool:
    """May two arrays share memory, going by their first and last bytes?"""
    return a + span_a[0] < b + span_b[1] and b + span_b[0] < a + span_a[1]
