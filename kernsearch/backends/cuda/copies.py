"""Copies on a device for what no kernel takes as it is: other strides, other alignment, an input that is the output.

They are made by CuPy on the caller's stream, in memory of CuPy's pool that goes back in the order of that stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ...launch import ArrayView
from . import arrays, capture


@contextlib.contextmanager
def on_stream(stream: int, device: int) -> Iterator[None]:
    """CuPy's current device and stream are these inside."""
    cuda = arrays.xp().cuda
    with cuda.Device(device), arrays.on(cuda.ExternalStream(stream, device)):
        yield


def seen(view: ArrayView, device: int) -> Any:
    """A CuPy array of the bits where a view lies. Does not keep the memory alive."""
    cupy = arrays.xp()
    memory = cupy.cuda.UnownedMemory(view.address, 0, None, device)
    strides = tuple(step * view.itemsize for step in view.strides)
    return cupy.ndarray(view.shape, f"u{view.itemsize}", cupy.cuda.MemoryPointer(memory, 0), strides)


def contiguous(view: ArrayView, device: int, *, values: bool = True) -> Any:
    """A new C-contiguous array of the bits of a view, or without `values` one of its shape."""
    if values:
        return seen(view, device).copy(order="C")
    return arrays.xp().empty(view.shape, f"u{view.itemsize}")


def into(target: ArrayView, source: Any, device: int) -> None:
    """Copy bits to where a view lies."""
    seen(target, device)[...] = source


def zero(stream: int, device: int) -> Any:
    """Memory that begins with 16 bytes of 0, for work on this stream."""
    with on_stream(stream, device):
        made = arrays.xp().zeros(16, "u1")
    if capture.active(stream):
        capture.keep(stream, made)
    return made
