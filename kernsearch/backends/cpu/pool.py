"""The thread pool that CPU kernels run on: `kernels/common/c/pool.c`, compiled once and loaded once a process.

Safe to use from many threads and after a fork. Importing this module compiles and starts nothing.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DeviceError

if TYPE_CHECKING:
    from .. import Compiled

SOURCE = "common/c/pool.c"
MAX_THREADS = 4096


@dataclass(frozen=True)
class Pool:
    """A loaded pool, as addresses.

    handle    what `function` takes first: the value of `ks_call.pool`
    function  ks_pool_run, the value of `ks_call.parallel`: void (handle, threads, count, task, context)
    launch    ks_launch: void (count, kernels[], calls[]), calls kernels in order in the default floating-point mode
    """

    path: Path
    handle: int
    function: int
    launch: int
    library: ctypes.CDLL

    def rouse(self, threads: int) -> None:
        """Have that many threads awake (a sleeping one takes 5 to 50 us to wake), the caller's included."""
        self.library.ks_pool_rouse(self.handle, threads)

    def configure(self, threads: int, cores: int) -> None:
        """No call uses more than `threads` threads; the idle spin only while they are no more than `cores`."""
        self.library.ks_pool_configure(self.handle, threads, cores)


_pool: Pool | None = None
_threads: int | None = None


def get_pool() -> Pool:
    """The pool of this process. Raises CompilerError, or Rejected with the compiler's words, when it is not built."""
    global _pool
    if _pool is None:  # two threads here at once load the same library twice, which is once
        from .device import usable_cores

        pool = load(compiled().path)
        pool.configure(get_threads(), usable_cores())
        _pool = pool
    return _pool


def set_threads(threads: int) -> None:
    """How many threads a call may use at most, the caller's included, from now on. Raises DeviceError."""
    global _threads
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise DeviceError(f"threads {threads!r}: want a whole number from 1 to {MAX_THREADS}")
    _threads = threads
    if _pool is not None:
        from .device import usable_cores

        _pool.configure(threads, usable_cores())


def get_threads() -> int:
    """How many threads a call may use: what `set_threads` said, else KERNSEARCH_THREADS, else the usable cores."""
    if _threads is not None:
        return _threads
    from .device import this_device

    return min(this_device().threads, MAX_THREADS)


def compiled(timeout_s: float = 60.0) -> Compiled:
    """The pool's object, compiled like any kernel. Another process may `load` its path."""
    from .compiler import build
    from .device import this_device

    return build(SOURCE, "ks_pool_run", this_device(), name="pool", timeout_s=timeout_s)


def for_worker(threads: int) -> dict[str, str | int]:
    """What the worker's child needs to make its own pool of at most `threads` threads."""
    from .device import usable_cores

    names = {"function": "ks_pool_run", "create": "ks_pool_get", "configure": "ks_pool_configure",
             "rouse": "ks_pool_rouse"}  # fmt: skip
    return {"path": str(compiled().path), **names, "threads": threads, "cores": usable_cores()}


def load(path: str | Path) -> Pool:
    """Load a compiled pool. Its limit is one thread until `configure` is called."""
    library = ctypes.CDLL(str(path))
    library.ks_pool_get.restype = ctypes.c_void_p
    library.ks_pool_configure.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.ks_pool_rouse.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.ks_pool_configure.restype = library.ks_pool_rouse.restype = None
    function, launch = (ctypes.cast(f, ctypes.c_void_p).value for f in (library.ks_pool_run, library.ks_launch))
    assert function is not None and launch is not None
    return Pool(Path(path), library.ks_pool_get(), function, launch, library)
