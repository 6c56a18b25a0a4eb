"""Processes that compile: started when wanted, kept for the next request, killed when they hang, gone at exit."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CompilerError

START_S = 60.0  # what importing cuda.bindings and loading NVRTC may take on a busy machine
USES = 500  # requests that a process serves, so that what the compiler leaks stays small
_SCRIPT = Path(__file__).with_name("compile_child.py")


@dataclass(frozen=True)
class Answer:
    """How a request ended. `status` is 0, an error of NVRTC, or a negative signal that ended the process."""

    status: int
    log: str
    seconds: float
    code: bytes = b""
    timed_out: bool = False


class Cancelled(Exception):
    """The batch was given up while this request ran."""


class Batch:
    """Requests that are given up together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: set[_Child] = set()
        self.cancelled = False

    def cancel(self) -> None:
        """Kill the processes at work for this batch; later requests do not start."""
        with self._lock:
            self.cancelled = True
            for child in self._children:
                child.kill()

    def add(self, child: _Child) -> None:
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self._children.add(child)

    def drop(self, child: _Child) -> None:
        with self._lock:
            self._children.discard(child)


def ask(request: Mapping[str, Any], *, timeout_s: float, batch: Batch | None = None) -> Answer:
    """Have a process answer a request (see `compile_child`).

    A process that dies is replaced once: whoever killed it, it need not be the source's doing. Raises Cancelled when
    the batch is given up, CompilerError when NVRTC cannot be loaded.
    """
    answer = None
    for _ in range(2):
        child = _take()
        try:
            if batch is not None:
                batch.add(child)
            answer = child.ask(request, timeout_s)
        finally:
            if batch is not None:
                batch.drop(child)
            _give(child)
        if batch is not None and batch.cancelled:
            raise Cancelled
        if answer.status >= 0:
            return answer
    assert answer is not None
    return answer


def about() -> dict[str, Any]:
    """What NVRTC says of itself: {"version": [major, minor], "archs": [...], "library": path or None}."""
    child = _take()
    _give(child)
    return child.about


def close() -> None:
    """End all processes. They start again when they are wanted."""
    with _lock:
        children = list(_all)
        _idle.clear()
        _all.clear()
    for child in children:
        child.kill()
    for child in children:
        child.end()


class _Child:
    def __init__(self) -> None:
        self.uses = 0
        self.busy = False
        # Its own session, so that Ctrl-C reaches this process alone. -P: the folder of the script is not on its path.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._unread = b""
        self.about: dict[str, Any] = {}

    def start(self) -> None:
        """Wait until it can compile. Raises CompilerError when it cannot."""
        line = self._read_line(time.monotonic() + START_S)
        self.about = json.loads(line) if line else {"error": "its process does not start"}
        if "error" in self.about:
            self.kill()
            raise CompilerError(f"NVRTC cannot be used: {self.about['error']}")

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        begin = time.monotonic()
        deadline = begin + timeout_s
        self.uses += 1
        self.busy = True
        try:
            return self._ask(request, begin, deadline)
        finally:
            self.busy = False

    def _ask(self, request: Mapping[str, Any], begin: float, deadline: float) -> Answer:
        line = None
        with contextlib.suppress(BrokenPipeError, ValueError):
            assert self.process.stdin is not None
            data = memoryview(json.dumps(request).encode() + b"\n")
            while data:
                data = data[self.process.stdin.write(data) :]
            line = self._read_line(deadline)
        if line:
            told = json.loads(line)
            code = self._read(told.pop("bytes"), time.monotonic() + START_S)
            if code is not None:
                return Answer(**told, code=code)
        late = time.monotonic() >= deadline
        self.kill()
        returned = self.process.wait()
        seconds = time.monotonic() - begin
        if late:
            return Answer(0, "", seconds, timed_out=True)
        return Answer(returned if returned < 0 else -abs(returned) or -1, "", seconds)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def end(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def forget(self) -> None:
        """After a fork: it is the parent's."""
        self.process.returncode = 0
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _read_line(self, deadline: float) -> bytes | None:
        """A line, without its end; None when none comes in time, or ever."""
        while b"\n" not in self._unread:
            if not self._more(deadline):
                return None
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _read(self, size: int, deadline: float) -> bytes | None:
        while len(self._unread) < size:
            if not self._more(deadline):
                return None
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def _more(self, deadline: float) -> bool:
        assert self.process.stdout is not None
        waiting = select.poll()  # select() itself fails where a process has many files open
        waiting.register(self.process.stdout, select.POLLIN)
        ready = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
        data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
        self._unread += data
        return bool(data)


_lock = threading.Lock()
_idle: list[_Child] = []
_all: set[_Child] = set()


def _take() -> _Child:
    """A process that can compile, and that nobody else uses."""
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.alive and child.uses < USES:
                return child
            _retire(child)
        child = _Child()
        _all.add(child)
    try:
        child.start()
    except CompilerError:
        _give(child)
        raise
    return child


def _give(child: _Child) -> None:
    with _lock:
        if child in _all and child.alive:
            _idle.append(child)
        else:
            _retire(child)


def _retire(child: _Child) -> None:
    child.kill()
    child.end()
    _all.discard(child)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for child in _all:
        child.forget()
    _idle.clear()
    _all.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)
