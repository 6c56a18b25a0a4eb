"""The worker child: loads compiled kernels and runs them on shared memory, so that a bad one hurts nobody else.

Runs as a script under `python -I -S`: standard library only, no package around it, so that it starts in about 20 ms.
Frames on the two pipes: 4 magic bytes, length as a little-endian uint32, JSON. Standard output and error lead nowhere,
so kernels may print. A thread waits for the end of the life pipe, which only the host holds open, and ends the process;
that works while a kernel runs, because ctypes lets go of the interpreter lock.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import platform
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MAGIC = b"ksw1"
LOST_PIPE = 97  # exit status: a kernel closed the pipes
CONTROL_BYTES = 4096  # first page of the arena: how many repeats are done
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class KsCall(ctypes.Structure):
    """ks_call of kernels/common/c/kernsearch.h."""

    _fields_ = [
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("scalars", ctypes.POINTER(ctypes.c_double)),
        ("threads", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    ]


class Refused(Exception):
    """The request cannot be run; the text goes to the host."""


class Unable(Exception):
    """Nothing can be run here, which is no fault of the candidate's."""


def read_frame(fd: int) -> dict | None:
    """The next frame, or None at the end of the pipe."""

    def exactly(count: int) -> bytes | None:
        parts = []
        while count:
            part = os.read(fd, count)
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    head = exactly(8)
    if head is None:
        return None
    body = exactly(struct.unpack("<4sI", head)[1])
    return None if body is None else json.loads(body)


def write_frame(fd: int, message: dict) -> None:
    body = json.dumps(message).encode()
    data = memoryview(struct.pack("<4sI", MAGIC, len(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


def run_queue_wait_ns() -> int:
    """Nanoseconds that the tasks of this process have waited for a core; 0 where the kernel does not say."""
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/schedstat", "rb", buffering=0) as file:
                total += int(file.read(96).split()[1])
    except (OSError, IndexError, ValueError):
        return total
    return total


class FloatMode:
    """Rounding, flush-to-zero and trap bits of this thread; kernels must leave them as they were."""

    def __init__(self) -> None:
        self._get = None
        for name in (None, "libm.so.6"):
            try:
                self._get = ctypes.CDLL(name).fegetenv
                break
            except (OSError, AttributeError):
                continue
        self._env = ctypes.create_string_buffer(64)
        machine = platform.machine()
        self._where, self._mask = {"x86_64": (28, 0xFFC0), "aarch64": (0, 0xFFFFFFFF)}.get(machine, (0, 0))

    def read(self) -> int:
        if self._get is None or not self._mask:
            return 0
        self._get(self._env)
        return int.from_bytes(self._env.raw[self._where : self._where + 4], "little") & self._mask


class Flusher:
    """Streams through private memory, on as many threads as the kernels use, so that caches hold nothing of theirs."""

    def __init__(self) -> None:
        self._memory: list[mmap.mmap] = []
        self._halves: list[tuple[int, int, int]] = []
        self.compare = ctypes.CDLL(None).memcmp
        self.compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def flush(self, nbytes: int, threads: int) -> None:
        half = nbytes // threads // 2
        if len(self._halves) != threads or self._halves[0][2] != half:
            self._halves = []
            self._memory = [mmap.mmap(-1, max(2 * half, 1), flags=mmap.MAP_PRIVATE) for _ in range(threads)]
            for memory in self._memory:
                start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                ctypes.memset(start, 1, 2 * half)  # untouched pages would all be the one zero page
                self._halves.append((start, start + half, half))
        others = [threading.Thread(target=self.compare, args=h) for h in self._halves[1:]]
        for other in others:
            other.start()
        self.compare(*self._halves[0])
        for other in others:
            other.join()


class Child:
    """State between requests: the mapped arena, loaded objects, the thread pool."""

    def __init__(self, settings: dict) -> None:
        self.settings = settings
        self.mode = FloatMode()
        self.flusher = Flusher()
        self.arena: mmap.mmap | None = None
        self.base = 0
        self.touched: set[tuple[int, int]] = set()
        self.progress: ctypes.c_int64 | None = None
        self.functions: dict[tuple[str, str], Any] = {}
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.parallel = self.pool = 0
        self.rouse: Callable[[], object] | None = None

    def attach(self, size: int) -> None:
        """Map the arena once more after it has grown."""
        if self.arena is not None and len(self.arena) >= size:
            return
        self.progress = None
        try:
            self.arena = mmap.mmap(self.settings["arena"], size)
        except OSError as error:
            raise Unable(f"{size >> 20} MiB of shared memory cannot be mapped ({error.strerror})") from None
        self.touched.clear()
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.arena))
        self.progress = ctypes.c_int64.from_address(self.base)
        if limit := self.settings["memory_limit"]:
            with open("/proc/self/statm", "rb") as file:
                now = int(file.read().split()[0]) * mmap.PAGESIZE
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            # A backstop only: the host watches resident memory. Generous, as thread stacks, arenas
            # and what empties the caches reserve much.
            soft = now + 4 * limit + (16 << 30)
            if hard == resource.RLIM_INFINITY or soft <= hard:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def touch(self, spans: list) -> None:
        """Read parts of the arena that this mapping has not read yet."""
        for offset, count in spans:
            if (offset, count) not in self.touched:
                self.touched.add((offset, count))
                self.flusher.compare(self.base + offset, self.base + offset, count)

    def start_pool(self, pool: dict | None, threads: int) -> None:
        """Load the thread pool when first needed, and let it use as many threads as this run does."""
        if pool is None:
            return
        library = self.libraries.get(pool["path"])
        if library is None:
            try:
                library = self.libraries[pool["path"]] = ctypes.CDLL(pool["path"])
            except OSError as error:
                raise Unable(str(error)) from None
            self.parallel = ctypes.cast(getattr(library, pool["function"]), ctypes.c_void_p).value or 0
            if create := pool.get("create"):
                make = getattr(library, create)
                make.restype = ctypes.c_void_p
                self.pool = make() or 0
        if configure := pool.get("configure"):
            getattr(library, configure)(*map(ctypes.c_int64, (self.pool, threads, pool["cores"])))
        if rouse := pool.get("rouse"):
            wake = getattr(library, rouse)
            self.rouse = lambda: wake(ctypes.c_int64(self.pool), ctypes.c_int64(threads))

    def function(self, path: str, entry: str) -> Any:
        found = self.functions.get((path, entry))
        if found is None:
            try:
                library = self.libraries.get(path) or ctypes.CDLL(path)
            except OSError as error:
                if "failed to map segment" in str(error):  # a folder mounted noexec, or no address space left
                    raise Unable(str(error)) from None
                raise Refused(f"cannot be loaded: {str(error).replace(path, os.path.basename(path))}") from None
            self.libraries[path] = library
            try:
                found = getattr(library, entry)
            except AttributeError:
                raise Refused(f"cannot be loaded: it has no function {entry!r}") from None
            found.argtypes = [ctypes.c_void_p]
            found.restype = None
            self.functions[path, entry] = found
        return found

    def prepare(self, launch: dict) -> tuple:
        buffers = [self.base + offset if offset >= 0 else None for offset in launch["buffers"]]
        threads = launch["threads"]
        # Room for one more of each: a kernel that looks past its own sizes reads zero, not a neighbour.
        call = KsCall(
            (ctypes.c_void_p * (len(buffers) + 1))(*buffers),
            (ctypes.c_int64 * (len(launch["sizes"]) + 1))(*launch["sizes"]),
            (ctypes.c_double * (len(launch["scalars"]) + 1))(*launch["scalars"]),
            threads,
            self.parallel if threads > 1 else None,
            self.pool if threads > 1 else None,
        )
        return self.function(launch["object"], launch["entry"]), ctypes.addressof(call), call

    def run(self, request: dict) -> dict:
        self.attach(request["arena_bytes"])
        mode = self.mode.read()
        threads = request["threads"]
        self.touch(request["touch"])
        calls = [self.prepare(launch) for launch in request["launches"]]
        flush_bytes = request["flush_bytes"]
        # Threads awake: for timing, a call does not pay for waking them; for the gates, they do take part.
        rouse = self.rouse if threads > 1 else None
        wall, cpu, thread, wait = [], [], [], []
        now, process_ns, thread_ns = time.perf_counter_ns, time.process_time_ns, time.thread_time_ns
        for done in range(request["repeat"]):
            if flush_bytes:
                self.flusher.flush(flush_bytes, threads)
            if rouse:
                rouse()
            waited = run_queue_wait_ns()
            used, own = process_ns(), thread_ns()
            start = now()
            for function, address, _ in calls:
                function(address)
            end = now()
            own, used = thread_ns() - own, process_ns() - used
            wait.append(run_queue_wait_ns() - waited)
            wall.append(end - start)
            cpu.append(used)
            thread.append(own)
            if self.progress is not None:
                self.progress.value = done + 1
        if (after := self.mode.read()) != mode:
            flushes = platform.machine() == "x86_64" and after & ~mode & 0x8040
            raise Refused("changes the floating-point mode" + (": flushes subnormals to zero" if flushes else ""))
        return {"wall": wall, "cpu": cpu, "thread": thread, "wait": wait}


def end_offspring() -> bool:
    """Kill all processes that kernels have started, even those that left the session; was there any?"""
    found = False
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        found = True
        for name in () if ended else filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                if parent == os.getpid():  # what it had started is ours next
                    os.kill(int(name), signal.SIGKILL)
            except (OSError, ValueError, IndexError):
                continue


def die_with_parent(settings: dict) -> None:
    """End when the host does, even by kill -9, even inside a kernel that never returns."""
    if settings["death_signal"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != settings["parent"]:
            os._exit(0)

    def watch() -> None:
        while os.read(settings["life"], 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    settings = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    die_with_parent(settings)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of orphans come to this process
    gc.disable()
    child = Child(settings)
    while (request := read_frame(settings["requests"])) is not None:
        try:
            child.start_pool(request["pool"], request["threads"])
            reply = child.run(request)
        except Unable as error:
            reply = {"failed": str(error)}
        except Refused as error:
            reply = {"refused": str(error)}
        except Exception as error:  # noqa: BLE001  the one place for this: whatever a kernel broke here is news for the host
            reply = {"refused": f"broke the worker: {type(error).__name__}: {error}"}
        if end_offspring():
            reply = {"refused": "started another process"}
        reply["id"] = request["id"]
        try:
            write_frame(settings["replies"], reply)
        except OSError:
            os._exit(LOST_PIPE)


if __name__ == "__main__":
    main()
