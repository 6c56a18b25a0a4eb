"""Calls that a thread has made before: `kernels/common/c/known.c` takes them from Python's objects to the kernels.

It reads NumPy arrays by the places that NumPy's binary interface gives their fields. Where objects turn out to lie
otherwise, as in another Python than CPython, no call is ever known and all go the long way.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from . import pool
from .call import Launcher, address_of

SOURCE = "common/c/known.c"
KEEP = 4096  # calls of a thread that are kept before all are forgotten: half of the table's slots
MAX_WORDS = 128  # of a form, as in the source
_FASTCALL, _WRITEABLE = 0x0080, 0x0400
_HEAD, _WORD = object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)
_FIXED = (type(None), str)  # of arguments that count by which object they are and can never change


class _Python(ctypes.Structure):
    """`ks_python` of the source."""

    _fields_ = (
        ("head", ctypes.c_int64),
        ("array", ctypes.c_void_p),
        ("number", ctypes.c_void_p),
        ("none", ctypes.c_void_p),
        ("empty", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("acquire", ctypes.c_void_p),
        ("keep", ctypes.c_void_p),
        ("drop", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    """`ks_array` of the source: what follows the head of a NumPy array."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dimensions", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("base", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("flags", ctypes.c_int32),
    )


class _Operand(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int64), ("low", ctypes.c_int64), ("high", ctypes.c_int64))


class _Place(ctypes.Structure):
    _fields_ = (("place", ctypes.c_void_p), ("operand", ctypes.c_int64))


class _Number(ctypes.Structure):
    _fields_ = (("place", ctypes.c_void_p), ("argument", ctypes.c_int64), ("value", ctypes.c_double))


class _Known(ctypes.Structure):
    """`ks_known` of the source."""

    _fields_ = (
        ("hash", ctypes.c_uint64),
        ("words", ctypes.c_int64),
        ("form", ctypes.c_int64 * MAX_WORDS),
        ("operands", ctypes.c_int64),
        ("operand", ctypes.c_void_p),
        ("output", ctypes.c_int64),
        ("in_place", ctypes.c_int64),
        ("mask", ctypes.c_uint64),
        ("places", ctypes.c_int64),
        ("numbers", ctypes.c_int64),
        ("place", ctypes.c_void_p),
        ("number", ctypes.c_void_p),
        ("kernels", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("make", ctypes.c_void_p),
    )


class _Method(ctypes.Structure):
    """`PyMethodDef` of Python."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Calls(bytearray):
    """The table of one thread's calls, which owns all that it points to. Not to be shared between threads."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._kept: list[Any] = []

    def add(
        self,
        arguments: Sequence[Any],
        launcher: Launcher,
        *,
        operands: Sequence[int],
        spans: Sequence[tuple[int, int]],
        mask: int,
        output: int,
        scalars: Sequence[int | float],
        make: tuple[Any, ...],
        in_place: int = -1,
        owners: Sequence[Any] = (),
    ) -> None:
        """Remember a call with these arguments: native arrays, floats, strings and None.

        operands  for each operand of the plan, which argument it is; spans, mask: see `Bound`
        output    which operand is written, made as `np.empty(*make)` when its argument is None
        scalars   for each scalar of the plan, which argument (int) it is, or its value (float)
        in_place  which operand may be the output, or -1
        owners    further arguments that count by which object they are, and never change
        """
        library, owned = _library(), {id(x) for x in owners}
        if library is None or not launcher.kept or any(type(x) not in _TAKEN and id(x) not in owned for x in arguments):
            return
        objects = (ctypes.py_object * len(arguments))(*arguments)
        if library.ks_known_add(_address(self), objects, len(arguments), None):
            return
        if len(self._kept) >= KEEP:
            self[:] = bytes(len(self))
            self._kept.clear()
        operand = (_Operand * len(operands))(*[_Operand(i, *span) for i, span in zip(operands, spans, strict=True)])
        slots = [_Place(ctypes.addressof(array) + _WORD * index, which) for array, index, which in launcher.slots]
        place = (_Place * len(slots))(*slots)
        number = (_Number * len(launcher.numbers))()
        for one, (array, index, which) in zip(number, launcher.numbers, strict=True):
            told, one.place = scalars[which], ctypes.addressof(array) + 8 * index
            one.argument, one.value = (told, 0.0) if isinstance(told, int) else (-1, told)
        count, kernels, calls = launcher.arguments
        known = _Known(
            operands=len(operand), operand=ctypes.addressof(operand), output=output, in_place=in_place, mask=mask,
            places=len(place), place=ctypes.addressof(place), numbers=len(number), number=ctypes.addressof(number),
            kernels=count, kernel=kernels, call=calls, make=id(make),
        )  # fmt: skip
        if library.ks_known_add(_address(self), objects, len(arguments), ctypes.byref(known)):
            held = [x.dtype if type(x) is np.ndarray else x for x in arguments]
            self._kept.append((known, operand, place, number, launcher, make, held))


_TAKEN = (np.ndarray, float, *_FIXED)


def table() -> tuple[Calls, Callable[..., Any]] | None:
    """A thread's table, and a function that takes a call's arguments and returns its output, or None for a call that
    is not known, or is not to be made as before. None where objects do not lie as the source reads them.

    Raises CompilerError or Rejected when the source does not compile.
    """
    library = _library()
    if library is None:
        return None
    calls = Calls(library.ks_known_sizes(0))
    return calls, _function()(ctypes.byref(_method()), calls)


def _address(table: Calls) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(table))


@cache
def _library() -> ctypes.PyDLL | None:
    """The source, compiled and told where things are: called with Python's lock held."""
    if sys.implementation.name != "cpython" or not _as_read():
        return None
    from .compiler import build
    from .device import this_device

    library = ctypes.PyDLL(str(build(SOURCE, "ks_known_call", this_device(), name="known", timeout_s=60.0).path))
    api, launch = ctypes.pythonapi, pool.get_pool().launch
    library.ks_known_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.ks_known_sizes.argtypes = [ctypes.c_int64]
    library.ks_known_add.restype = library.ks_known_sizes.restype = ctypes.c_int64
    functions = (api.PyEval_SaveThread, api.PyEval_RestoreThread, api.Py_IncRef, api.Py_DecRef, api.PyObject_CallObject,
                 api.PyByteArray_AsString)  # fmt: skip
    objects = [id(x) for x in (np.ndarray, float, None, np.empty)]
    library.ks_known_set_up(
        ctypes.byref(_Python(_HEAD, *objects, *[ctypes.cast(f, ctypes.c_void_p).value for f in functions], launch))
    )
    return library


@cache
def _method() -> _Method:
    library = _library()
    assert library is not None
    address = ctypes.cast(library.ks_known_call, ctypes.c_void_p).value
    return _Method(b"known_call", address, _FASTCALL, None)


@cache
def _function() -> Any:
    make = ctypes.pythonapi["PyCFunction_New"]  # an object of its own: no other user's types change
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object], ctypes.py_object
    return make


def _as_read() -> bool:
    """Do arrays and floats lie as the source reads them? Probed from the front, so that nothing else is followed."""
    if _WORD != 8 or ctypes.c_double.from_address(id(_PROBE) + _HEAD).value != _PROBE:
        return False
    closed = np.zeros((2, 1, 3), np.float32)
    closed.flags.writeable = False
    for array in (np.zeros(5)[1:], np.zeros((3, 4), np.float32)[::-1].T, closed, np.zeros(())):
        have = _Array.from_address(id(array) + _HEAD)
        typed = ctypes.c_void_p.from_address(id(array) + _HEAD - _WORD).value == id(np.ndarray)
        if not typed or have.data != address_of(array) or have.dimensions != array.ndim:
            return False
        if array.ndim and (tuple(have.shape[: array.ndim]), tuple(have.strides[: array.ndim])) != (
            array.shape, array.strides,
        ):  # fmt: skip
            return False
        if have.dtype != id(array.dtype) or bool(have.flags & _WRITEABLE) != array.flags.writeable:
            return False
    return True


_PROBE = 1.5
