"""Calling compiled kernels in this process, with as little Python as possible each time.

A `Launcher` belongs to one thread and one set of shapes and strides: its call structures are filled in once, and a
call writes the addresses and goes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...launch import Call
from ...plan import Plan
from . import pool

ALIGNMENT = 4096  # of the block that holds values between kernels and scratch
KEEP_BYTES = 256 << 20  # a thread keeps this much scratch from call to call; more is allocated for each call


class _Call(ctypes.Structure):
    """`ks_call` of kernsearch.h."""

    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    )


@cache
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(os.fspath(path))


def function(path: Path, entry: str) -> int:
    """The address of a kernel in a compiled object, which stays loaded. Raises OSError when it cannot be loaded."""
    address = ctypes.cast(_library(path)[entry], ctypes.c_void_p).value
    assert address is not None
    return address


def _by_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_function() -> Callable[[np.ndarray], int]:
    """How to ask an array for its address: by the place NumPy's binary interface gives it, ten times as fast, if here
    it is where that says."""
    offset, at = object.__basicsize__, ctypes.c_ssize_t.from_address

    def by_place(array: np.ndarray) -> int:
        return at(id(array) + offset).value

    probes: list[np.ndarray] = [np.zeros(5)[1:], np.zeros((3, 4), np.float32)[::-1].T]
    return by_place if all(by_place(p) == _by_interface(p) for p in probes) else _by_interface


address_of = _address_function()


_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)  # ks_launch


class Scratch(threading.local):
    """Memory of one thread for values between kernels and for scratch; grows, and is used again."""

    block: np.ndarray | None = None

    def take(self, size: int) -> np.ndarray:
        """A block of at least `size` bytes; its contents are anything."""
        if self.block is None or self.block.nbytes < size + ALIGNMENT:
            had = 0 if self.block is None else self.block.nbytes
            self.block = np.empty(max(size + ALIGNMENT, min(2 * had, KEEP_BYTES)), np.uint8)
        return self.block


_scratch = Scratch()


class Launcher:
    """Runs a plan for fixed shapes and strides. Not to be shared between threads.

    slots      where kernels look for addresses: (array of pointers, index, which operand)
    numbers    where they look for scalars: (array of doubles, index, which scalar)
    arguments  of `ks_launch`
    kept       is scratch there from call to call?
    """

    def __init__(self, plan: Plan, call: Call, functions: Sequence[int], threads: int):
        self.slots: list[tuple[Any, int, int]] = []
        self._inner: list[tuple[Any, int, int]] = []  # call array, index, offset in the block
        self.numbers: list[tuple[Any, int, int]] = []
        self._alive: list[Any] = []  # what the call structures point into
        calls: list[int] = []
        offsets, self._bytes = call.layout
        operands = {operand.name: i for i, operand in enumerate(plan.operands)}
        scalars = {name: i for i, name in enumerate(plan.scalars)}
        shared = pool.get_pool()
        for resolved in call.kernels:
            buffers = (ctypes.c_void_p * max(len(resolved.buffers), 1))()
            numbers = (ctypes.c_double * max(len(resolved.scalars), 1))(*resolved.scalars)
            sizes = (ctypes.c_int64 * max(len(resolved.sizes), 1))(*resolved.sizes)
            for index, name in enumerate(resolved.buffers):
                if name in operands:
                    self.slots.append((buffers, index, operands[name]))
                else:
                    self._inner.append((buffers, index, offsets[name]))
            self.numbers += [(numbers, i, scalars[name]) for i, name in enumerate(resolved.kernel.scalars)]
            struct = _Call(ctypes.addressof(buffers), ctypes.addressof(sizes), ctypes.addressof(numbers), threads)
            if threads > 1:
                struct.parallel, struct.pool = shared.function, shared.handle
            self._alive += [buffers, numbers, sizes, struct]
            calls.append(ctypes.addressof(struct))
        kernels, structs = ((ctypes.c_void_p * len(calls))(*addresses) for addresses in (functions, calls))
        self._alive += [kernels, structs]
        self._launch = _LAUNCH(shared.launch)
        self.arguments = (len(calls), ctypes.addressof(kernels), ctypes.addressof(structs))
        self.kept = self._bytes <= KEEP_BYTES
        if self._bytes and self.kept:
            self._place(_scratch.take(self._bytes))

    def _place(self, block: np.ndarray) -> None:
        start = -(-address_of(block) // ALIGNMENT) * ALIGNMENT
        for array, index, offset in self._inner:
            array[index] = start + offset
        self._block = block

    def run(self, addresses: Sequence[int], scalars: tuple[float, ...]) -> None:
        """Run on arrays at these addresses, in the order of the plan's operands; scalars in that of `plan.scalars`."""
        for array, index, operand in self.slots:
            array[index] = addresses[operand]
        for array, index, scalar in self.numbers:
            array[index] = scalars[scalar]
        if not self.kept:
            self._place(np.empty(self._bytes + ALIGNMENT, np.uint8))
        self._launch(*self.arguments)
        if not self.kept:
            del self._block
