"""CUDA-graph capture: is a stream being captured, and memory that lives for as long as the captured graph.

A graph replays with the addresses it was captured with, so workspace that a captured call took must not be given to
anyone else while the graph may run. The graph itself says when it is gone: it owns a user object (CUDA driver API,
"User Objects"), whose destructor the driver calls from a thread of its own. That destructor must not be Python, which
may have ended by then; it is `sem_post` of the C library, and the next call that keeps something looks at the
semaphores.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from . import driver

NEVER = (0, 1)  # handles of the legacy default stream, which cannot be captured
ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE
SEMAPHORE_BYTES = 64  # at least sizeof(sem_t)

_lock = threading.Lock()
_kept: list[tuple[int, Any]] = []  # semaphore of a graph, 0 for ever; what lives as long


def active(stream: int) -> bool:
    """Is the stream being captured? A stream that is in no state to be captured is not."""
    if stream in NEVER:
        return False
    status = c_int()
    return not _driver().cuStreamIsCapturing(stream, ctypes.byref(status)) and status.value == ACTIVE


def keep(stream: int, thing: Any) -> None:
    """Keep a thing alive while the graph that is being captured on a stream, or one made from it, exists."""
    with _lock:
        gone = [semaphore for semaphore, _ in _kept if semaphore and _posted(semaphore)]
        _kept[:] = [entry for entry in _kept if entry[0] not in gone]
        for semaphore in gone:
            _libc().free(semaphore)
        _kept.append((_tied(stream), thing))


def _tied(stream: int) -> int:
    """A semaphore that is posted when the graph is gone; 0 when the driver ties nothing to it."""
    status, graph, made = c_int(), c_void_p(), c_void_p()
    code = _driver().cuStreamGetCaptureInfo_v2(
        stream, ctypes.byref(status), None, ctypes.byref(graph), None, None
    )  # fmt: skip
    if code or status.value != ACTIVE or not graph.value:
        return 0
    semaphore = _libc().calloc(1, SEMAPHORE_BYTES)
    _libc().sem_init(semaphore, 0, 0)
    post = ctypes.cast(_libc().sem_post, c_void_p)
    if _driver().cuUserObjectCreate(ctypes.byref(made), semaphore, post, 1, NO_DESTRUCTOR_SYNC):
        _libc().free(semaphore)
        return 0
    if _driver().cuGraphRetainUserObject(graph, made, 1, MOVE):
        _driver().cuUserObjectRelease(made, 1)  # posts the semaphore, which nobody looks at: it is not freed
        return 0
    return semaphore


def _posted(semaphore: int) -> bool:
    value = c_int()
    _libc().sem_getvalue(semaphore, ctypes.byref(value))
    return value.value > 0


@cache
def _driver() -> Any:
    library = driver.library()
    for name, parameters in {
        "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
        "cuStreamGetCaptureInfo_v2": (
            c_void_p, POINTER(c_int), POINTER(c_uint64), POINTER(c_void_p), c_void_p, POINTER(c_size_t),
        ),
        "cuUserObjectCreate": (POINTER(c_void_p), c_void_p, c_void_p, c_uint32, c_uint32),
        "cuUserObjectRelease": (c_void_p, c_uint32),
        "cuGraphRetainUserObject": (c_void_p, c_void_p, c_uint32, c_uint32),
    }.items():  # fmt: skip
        function = getattr(library, name)
        function.argtypes, function.restype = parameters, c_int
    return library


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None)
    library.calloc.argtypes, library.calloc.restype = (c_size_t, c_size_t), c_void_p
    for name, parameters in {
        "free": (c_void_p,), "sem_init": (c_void_p, c_int, c_uint32), "sem_getvalue": (c_void_p, POINTER(c_int)),
    }.items():  # fmt: skip
        getattr(library, name).argtypes = parameters
    return library
