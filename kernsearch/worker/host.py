"""The host's side of the worker: starts the child, waits with a deadline, names what killed it, starts another."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..device import Device
from ..errors import DeviceError, Rejected
from . import child
from .arena import Arena, apart

RUN_TIMEOUT_S = 10.0
MEMORY_LIMIT_BYTES = 512 << 20  # private memory of the child; arrays, workspace and scratch lie in the arena
MOST_OBJECTS = 200  # loaded objects are never unloaded; a fresh child is cheaper than a risky dlclose
LARGEST_REPLY_BYTES = 64 << 20
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort()",
    signal.SIGFPE: "arithmetic fault, such as a whole number divided by zero",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed, perhaps for want of memory",
}


@dataclass(frozen=True)
class Launch:
    """One kernel call. `buffers` are byte offsets in the arena, -1 for NULL; `sizes` and `scalars` as in ks_call."""

    object_path: str
    entry: str
    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    scalars: tuple[float, ...]
    threads: int = 1


@dataclass(frozen=True)
class Timing:
    """One entry per repeat, in seconds: wall clock, CPU time of the process and of the calling thread, and the time
    that all threads of the process waited for a core while they could have run."""

    seconds: list[float]
    cpu_seconds: list[float]
    thread_seconds: list[float]
    wait_seconds: list[float]


class _Died(Exception):
    """The child is gone or must go; the text says why."""

    def __init__(self, cause: str, limit_s: float | None = None):
        super().__init__(cause)
        self.limit_s = limit_s


class Worker:
    """Runs kernels in a child process that may crash, hang or eat memory. One request at a time; thread-safe.

    The child dies with this process, even by kill -9. Any refusal replaces the child before the next run, so that no
    candidate inherits what another left behind.
    """

    def __init__(
        self,
        device: Device | None = None,
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
        memory_limit_bytes: int | None = None,
        threads: int | None = None,
        pool: Mapping[str, Any] | None = None,
    ) -> None:
        """`threads` is what runs should use, by default what the device has. `pool` says where the compiled thread
        pool is, as backends.cpu.pool.for_worker does, by default the CPU backend's own."""
        self.device = device
        self.run_timeout_s = run_timeout_s
        self.memory_limit_bytes = MEMORY_LIMIT_BYTES if memory_limit_bytes is None else memory_limit_bytes
        self.threads = threads or (device.facts.get("threads", 1) if device is not None else 1)
        self.pool = dict(pool) if pool else None
        self.arena = Arena()
        self.restarts = -1  # the first start is not one
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = self._life = self._pidfd = -1
        self._objects: dict[str, tuple[int, int]] = {}
        self._streamed = 0  # bytes that the child keeps to stream through the caches: no kernel's memory
        self._next_id = 0
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._finalizer: weakref.finalize | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the living child, if there is one."""
        return self._process.pid if self._process else None

    def attach(self, arena: Arena) -> None:
        """Use another arena from the next run on; the child is replaced, as it maps one arena only."""
        with self._lock:
            if arena is not self.arena:
                self.stop()
                self.arena = arena

    def run(
        self,
        launches: Sequence[Launch],
        *,
        repeat: int = 1,
        flush_bytes: int = 0,
        timeout_s: float | None = None,
        poll_s: float = 0.02,
        touch: Sequence[tuple[int, int]] = (),
    ) -> Timing:
        """Run all launches in order, `repeat` times, each repeat timed as a whole.

        `flush_bytes` of private memory are streamed through the caches before each repeat. `timeout_s` is for one
        repeat. `touch` are parts of the arena, (offset, bytes), that a new child reads first, so that no timed run
        pays for mapping their pages. Raises Rejected(gate="execution") with the cause in words, DeviceError when
        no kernel can be run, whichever it is.
        """
        with self._lock:
            self._start(launches)
            self._next_id += 1
            self.arena.reset_progress()
            threads = max((launch.threads for launch in launches), default=1)
            request = {
                "id": self._next_id,
                "arena_bytes": self.arena.size,
                "repeat": repeat,
                "flush_bytes": flush_bytes,
                "threads": threads,
                "pool": self._pool(threads),
                "touch": touch,
                "launches": [
                    {
                        "object": launch.object_path,
                        "entry": launch.entry,
                        "buffers": launch.buffers,
                        "sizes": launch.sizes,
                        "scalars": launch.scalars,
                        "threads": launch.threads,
                    }
                    for launch in launches
                ],
            }
            self._streamed = max(self._streamed, flush_bytes)
            limit = self.memory_limit_bytes + self._streamed
            try:
                self._send(request)
                reply = self._receive(timeout_s or self.run_timeout_s, limit, poll_s)
            except _Died as death:
                self.stop()
                doubtful = str(death) == _SIGNALS[signal.SIGKILL]
                raise Rejected(str(death), gate="execution", limit_s=death.limit_s, doubtful=doubtful) from None
            except BaseException:
                self.stop()  # interrupted: the child may be in the middle of a kernel
                raise
            if "failed" in reply:  # no fault of the candidate's
                self.stop()
                raise DeviceError(f"kernels cannot be run here: {reply['failed']}")
            if "refused" in reply:
                self.stop()
                raise Rejected(str(reply["refused"]), gate="execution")
            return Timing(*(_seconds(reply, key) for key in ("wall", "cpu", "thread", "wait")))

    def stop(self) -> None:
        """Kill the child; the next run starts another."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
                self._finalizer = None
            self._process = None
            self._requests = self._replies = self._life = self._pidfd = -1
            self._objects = {}
            self._streamed = 0

    def close(self) -> None:
        with self._lock:
            self.stop()
            self.arena.close()

    def _start(self, launches: Sequence[Launch]) -> None:
        """See to it that a child runs, and that it has no older object under one of these paths."""
        if os.getpid() != self._owner:
            raise RuntimeError("this worker belongs to the process that made it, not to a fork of it")
        identities = {}
        for path in {launch.object_path for launch in launches}:
            try:
                stat = os.stat(path)
            except OSError as error:
                raise Rejected(f"cannot be loaded: {error.strerror}", gate="execution") from None
            identities[path] = (stat.st_ino, stat.st_mtime_ns)
        changed = any(self._objects.get(path, identity) != identity for path, identity in identities.items())
        if self._process is not None and (changed or len(self._objects) > MOST_OBJECTS or self._gone()):
            self.stop()
        self._objects.update(identities)
        if self._process is not None:
            return
        requests_read, self._requests = map(apart, os.pipe())
        self._replies, replies_write = map(apart, os.pipe())
        life_read, self._life = map(apart, os.pipe())
        settings = {
            "requests": requests_read,
            "replies": replies_write,
            "life": life_read,
            "arena": self.arena.fd,
            "parent": os.getpid(),
            # The signal comes when the *thread* that started the child ends, so only the main thread may ask for it.
            "death_signal": threading.current_thread() is threading.main_thread(),
            "memory_limit": self.memory_limit_bytes,
        }
        ours = [self._requests, self._replies, self._life]
        theirs = [requests_read, replies_write, life_read]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(Path(child.__file__)), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[*theirs, self.arena.fd],
                start_new_session=True,
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._pidfd = os.pidfd_open(self._process.pid)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._finalizer = weakref.finalize(self, _end, self._process, [*ours, self._pidfd], self._owner)
        self.restarts += 1

    def _pool(self, threads: int) -> dict[str, Any] | None:
        """The pool for runs on several threads; compiled when first needed."""
        if threads < 2 or self.device is None or self.device.backend != "cpu":
            return self.pool if threads > 1 else None
        if self.pool is None or not os.path.exists(self.pool["path"]):
            from ..backends.cpu import pool

            self.pool = pool.for_worker(max(threads, self.threads))
        return self.pool

    def _gone(self) -> bool:
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def _send(self, request: dict[str, Any]) -> None:
        body = json.dumps(request).encode()
        data = memoryview(struct.pack("<4sI", child.MAGIC, len(body)) + body)
        deadline = time.monotonic() + self.run_timeout_s
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                select.select([self._pidfd], [self._requests], [], 0.05)
                if self._gone():
                    raise _Died(self._cause()) from None
                if time.monotonic() > deadline:
                    raise _Died("the worker takes no more requests") from None
            except BrokenPipeError:
                raise _Died(self._cause()) from None

    def _receive(self, timeout_s: float, limit: int, poll_s: float) -> dict[str, Any]:
        """The reply to the last request. The deadline is renewed whenever another repeat is done."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        data = b""
        done = 0
        deadline = time.monotonic() + timeout_s
        while True:
            events = dict(poll.poll(max(0.0, min(poll_s, deadline - time.monotonic())) * 1000))
            if self._replies in events:
                try:
                    part = os.read(self._replies, 1 << 16)
                except BlockingIOError:
                    part = None
                if part == b"":
                    raise _Died(self._cause(closed=True))
                data += part or b""
                if (reply := self._decode(data)) is not None:
                    self._check_memory(limit)
                    return reply
            elif self._pidfd in events:
                raise _Died(self._cause())
            self._check_memory(limit)
            if time.monotonic() >= deadline:
                if (now := self.arena.progress()) <= done:
                    raise _Died(f"still running after {timeout_s:g} s", limit_s=timeout_s)
                done, deadline = now, time.monotonic() + timeout_s

    def _decode(self, data: bytes) -> dict[str, Any] | None:
        """A whole reply, None when more must come; anything that the child would not write is a crash."""
        if not data.startswith(child.MAGIC[: len(data)]):
            raise _Died("wrote into the worker's pipe")
        if len(data) < 8:
            return None
        length = struct.unpack("<I", data[4:8])[0]
        if length > LARGEST_REPLY_BYTES or len(data) > 8 + length:
            raise _Died("wrote into the worker's pipe")
        if len(data) < 8 + length:
            return None
        try:
            reply = json.loads(data[8:])
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or reply.get("id") != self._next_id:
            raise _Died("wrote into the worker's pipe")
        return reply

    def _check_memory(self, limit: int) -> None:
        try:
            with open(f"/proc/{self._process.pid if self._process else 0}/statm", "rb", buffering=0) as file:
                fields = file.read(128).split()
        except OSError:
            return  # it has just ended; the next look at the pidfd says how
        if len(fields) > 2 and (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE > limit:
            raise _Died(f"used more than {limit >> 20} MB of memory")

    def _cause(self, closed: bool = False) -> str:
        """Why the child is no more."""
        assert self._process is not None
        try:
            code = self._process.wait(0.2 if closed else 1.0)
        except subprocess.TimeoutExpired:
            return "closed file descriptors that are not its own"
        if code < 0:
            try:
                known = signal.Signals(-code)
            except ValueError:
                return f"killed by signal {-code}"
            return _SIGNALS.get(known, f"killed by {known.name}")
        if code == child.LOST_PIPE:
            return "closed file descriptors that are not its own"
        return f"ended the process: exit({code})"


def _seconds(reply: Mapping[str, Any], key: str) -> list[float]:
    return [ns * 1e-9 for ns in reply[key]]


def _end(process: subprocess.Popen[bytes], fds: Sequence[int], owner: int) -> None:
    """Kill the child's whole session, close our ends. In a fork of the owner only the descriptors are closed."""
    if os.getpid() == owner:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.wait()
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
