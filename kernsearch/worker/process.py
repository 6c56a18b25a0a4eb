"""A child process that may crash, hang or go away: pipes to it, deadlines, and words for what ended it.

Frames on the two pipes are those of `child`. The child dies with this process, even by kill -9: it holds the reading
end of a pipe that only this process holds open, and may ask for a signal when its parent ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import child
from .arena import apart

LARGEST_REPLY_BYTES = 64 << 20
KILLED = "killed, perhaps for want of memory"
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort()",
    signal.SIGFPE: "arithmetic fault, such as a whole number divided by zero",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: KILLED,
}


class Died(Exception):
    """The child is gone or must go; the text says why. `limit_s` is the time limit that it overran."""

    def __init__(self, cause: str, limit_s: float | None = None):
        super().__init__(cause)
        self.limit_s = limit_s


class ChildProcess:
    """One child, from its start to its end.

    command   what to run; settings as JSON are its last argument, with "requests", "replies", "life", "parent" and
              "death_signal" added
    keep      descriptors that the child inherits under the same numbers
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any], keep: Sequence[int] = ()) -> None:
        self._owner = os.getpid()
        self._next_id = 0
        requests_read, self._requests = map(apart, os.pipe())
        self._replies, replies_write = map(apart, os.pipe())
        life_read, life = map(apart, os.pipe())
        theirs = [requests_read, replies_write, life_read]
        ours = [self._requests, self._replies, life]
        told = {
            **settings,
            "requests": requests_read,
            "replies": replies_write,
            "life": life_read,
            "parent": os.getpid(),
            # The signal comes when the *thread* that started the child ends, so only the main thread may ask for it.
            "death_signal": threading.current_thread() is threading.main_thread(),
        }
        try:
            self.process = subprocess.Popen(
                [*command, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[*theirs, *keep],
                start_new_session=True,
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        try:
            self._pidfd = os.pidfd_open(self.process.pid)
            ours.append(self._pidfd)
        except OSError:  # a sandbox may lack it: then the end of the replies tells that the child is gone
            self._pidfd = -1
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._finalizer = weakref.finalize(self, _end, self.process, ours, self._owner)

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """Kill the child's whole session. In a fork of the owner only the descriptors are closed."""
        self._finalizer()

    def gone(self) -> bool:
        if self._pidfd < 0:
            return self.process.poll() is not None
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def send(self, request: Mapping[str, Any], timeout_s: float) -> None:
        """Write a request, with an id. Raises Died."""
        self._next_id += 1
        body = json.dumps({**request, "id": self._next_id}).encode()
        data = memoryview(struct.pack("<4sI", child.MAGIC, len(body)) + body)
        deadline = time.monotonic() + timeout_s
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                select.select([self._pidfd] if self._pidfd >= 0 else [], [self._requests], [], 0.05)
                if self.gone():
                    raise Died(self.cause()) from None
                if time.monotonic() > deadline:
                    raise Died("the worker takes no more requests") from None
            except BrokenPipeError:
                raise Died(self.cause()) from None

    def receive(
        self,
        limit: Callable[[], tuple[int, float]],
        *,
        poll_s: float = 0.02,
        look: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The reply to the last request.

        `limit()` is (how far the child has come, seconds it may take from there); the deadline is renewed whenever it
        has come farther. `look` is called at least every `poll_s` and may raise Died. Raises Died.
        """
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        data = b""
        done, seconds = limit()
        deadline = time.monotonic() + seconds
        while True:
            events = dict(poll.poll(max(0.0, min(poll_s, deadline - time.monotonic())) * 1000))
            if self._replies in events:
                try:
                    part = os.read(self._replies, 1 << 16)
                except BlockingIOError:
                    part = None
                if part == b"":
                    raise Died(self.cause(closed=True))
                data += part or b""
                if (reply := self._decode(data)) is not None:
                    look()
                    return reply
            elif self._pidfd in events:
                raise Died(self.cause())
            look()
            now, allowed = limit()
            if now > done:
                done, seconds, deadline = now, allowed, time.monotonic() + allowed
            elif time.monotonic() >= deadline:
                raise Died(f"still running after {seconds:g} s", limit_s=seconds)

    def _decode(self, data: bytes) -> dict[str, Any] | None:
        """A whole reply, None when more must come; anything that the child would not write is a crash."""
        if not data.startswith(child.MAGIC[: len(data)]):
            raise Died("wrote into the worker's pipe")
        if len(data) < 8:
            return None
        length = struct.unpack("<I", data[4:8])[0]
        if length > LARGEST_REPLY_BYTES or len(data) > 8 + length:
            raise Died("wrote into the worker's pipe")
        if len(data) < 8 + length:
            return None
        try:
            reply = json.loads(data[8:])
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or reply.get("id") != self._next_id:
            raise Died("wrote into the worker's pipe")
        return reply

    def cause(self, closed: bool = False) -> str:
        """Why the child is no more."""
        try:
            code = self.process.wait(0.2 if closed else 1.0)
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


def _end(process: subprocess.Popen[bytes], fds: Sequence[int], owner: int) -> None:
    if os.getpid() == owner:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.wait()
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
