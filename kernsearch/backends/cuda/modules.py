"""Loaded cubins, in the primary context of their device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from . import driver

PORTABLE_CLUSTER = 8  # blocks; larger ones must be allowed


class Module:
    """A cubin that is loaded on a device until `close`. `index` is the device's.

    Raises DriverError when the driver does not take the cubin, as when it is for another architecture.
    """

    def __init__(self, cubin: bytes | Path, index: int = 0):
        self.index, self.context = index, driver.primary_context(index)
        self._functions: dict[str, int] = {}
        self._shared: dict[str, int] = {}
        self._handle: ctypes.c_void_p | None = None
        image, handle = (cubin if isinstance(cubin, bytes) else cubin.read_bytes()), ctypes.c_void_p()
        with in_context(self.context):
            driver.check("load a kernel", driver.library().cuModuleLoadData(ctypes.byref(handle), image))
        self._handle = handle

    def function(self, entry: str, *, shared: int = 0, cluster: int = 1) -> int:
        """The handle of an entry that may be launched with so many bytes of dynamic shared memory and blocks of a
        cluster. Raises DriverError when there is no such entry or the device does not have as much."""
        library = driver.library()
        if self._handle is None:
            raise ValueError(f"{entry}: its module is closed")
        if entry not in self._functions:
            found = ctypes.c_void_p()
            with in_context(self.context):
                code = library.cuModuleGetFunction(ctypes.byref(found), self._handle, entry.encode())
                driver.check(f"kernel {entry}", code)
            assert found.value is not None
            self._functions[entry], self._shared[entry] = found.value, 0
        handle = self._functions[entry]
        with in_context(self.context):
            if shared > self._shared[entry]:
                code = library.cuFuncSetAttribute(handle, driver.MAX_DYNAMIC_SHARED, shared)
                driver.check(f"kernel {entry} with {shared} bytes of shared memory", code)
                self._shared[entry] = shared
            if cluster > PORTABLE_CLUSTER:
                code = library.cuFuncSetAttribute(handle, driver.NON_PORTABLE_CLUSTER, 1)
                driver.check(f"kernel {entry} in clusters of {cluster}", code)
        return handle

    def registers(self, entry: str) -> int:
        """Registers of a thread, as launched."""
        return self._attribute(entry, driver.REGISTERS)

    def local_bytes(self, entry: str) -> int:
        """Local memory of a thread: its stack and what was spilled."""
        return self._attribute(entry, driver.LOCAL_BYTES)

    def shared_bytes(self, entry: str) -> int:
        """Static shared memory of a block."""
        return self._attribute(entry, driver.SHARED_BYTES)

    def _attribute(self, entry: str, which: int) -> int:
        value, handle = ctypes.c_int(), self.function(entry)
        with in_context(self.context):
            code = driver.library().cuFuncGetAttribute(ctypes.byref(value), which, handle)
        driver.check(f"kernel {entry}", code)
        return value.value

    def close(self) -> None:
        """Unload. Nothing of it may be running; its functions are not to be launched again."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._functions.clear()
            with in_context(self.context):
                driver.check("unload a kernel", driver.library().cuModuleUnload(handle))

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """The calling thread's context is this one inside, and afterwards what it was. One that had none keeps it."""
    before = driver.current_context()
    if before != context:
        driver.use(context)
    try:
        yield
    finally:
        if before not in (0, context):
            driver.use(before)
