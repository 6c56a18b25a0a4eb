"""The host's side of the worker: starts the child, waits with a deadline, names what killed it, starts another."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..device import Device
from ..errors import DeviceError, Rejected
from . import child
from .arena import Arena
from .process import KILLED, ChildProcess, Died

RUN_TIMEOUT_S = 10.0
MEMORY_LIMIT_BYTES = 512 << 20  # private memory of the child; arrays, workspace and scratch lie in the arena
MOST_OBJECTS = 200  # loaded objects are never unloaded; a fresh child is cheaper than a risky dlclose


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


class Worker:
    """Runs kernels in a child process that may crash, hang or eat memory. One request at a time; thread-safe.

    The child dies with this process, even by kill -9. Any refusal replaces the child before the next run, so that no
    candidate inherits what another left behind.
    """

    mends = True  # the arena outlives the child, so what a candidate did to it must be undone

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
        self._process: ChildProcess | None = None
        self._objects: dict[str, tuple[int, int]] = {}
        self._streamed = 0  # bytes that the child keeps to stream through the caches: no kernel's memory
        self._lock = threading.RLock()
        self._owner = os.getpid()

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
            self.arena.reset_progress()
            threads = max((launch.threads for launch in launches), default=1)
            request = {
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
            assert self._process is not None
            allowed = timeout_s or self.run_timeout_s
            try:
                self._process.send(request, self.run_timeout_s)
                reply = self._process.receive(
                    lambda: (self.arena.progress(), allowed), poll_s=poll_s, look=lambda: self._check_memory(limit)
                )
            except Died as death:
                self.stop()
                doubtful = str(death) == KILLED
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
            if self._process is not None:
                self._process.end()
            self._process = None
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
        if self._process is not None and (changed or len(self._objects) > MOST_OBJECTS or self._process.gone()):
            self.stop()
        self._objects.update(identities)
        if self._process is not None:
            return
        self._process = ChildProcess(
            [sys.executable, "-I", "-S", "-B", str(Path(child.__file__))],
            {"arena": self.arena.fd, "memory_limit": self.memory_limit_bytes},
            keep=[self.arena.fd],
        )
        self.restarts += 1

    def _pool(self, threads: int) -> dict[str, Any] | None:
        """The pool for runs on several threads; compiled when first needed."""
        if threads < 2 or self.device is None or self.device.backend != "cpu":
            return self.pool if threads > 1 else None
        if self.pool is None or not os.path.exists(self.pool["path"]):
            from ..backends.cpu import pool

            self.pool = pool.for_worker(max(threads, self.threads))
        return self.pool

    def _check_memory(self, limit: int) -> None:
        try:
            with open(f"/proc/{self._process.pid if self._process else 0}/statm", "rb", buffering=0) as file:
                fields = file.read(128).split()
        except OSError:
            return  # it has just ended; the next look at the pidfd says how
        if len(fields) > 2 and (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE > limit:
            raise Died(f"used more than {limit >> 20} MB of memory")


def _seconds(reply: Mapping[str, Any], key: str) -> list[float]:
    return [ns * 1e-9 for ns in reply[key]]
