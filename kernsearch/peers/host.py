"""The host's side of a library's process: starts it, hands it the token, waits for the answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ..errors import PeerError
from ..measure.samples import WAKE_S, Sample
from ..problem import Problem

PREPARE_S = 300.0  # loading a library, compiling our kernels, the first call
TURN_S = 120.0
START = """
import json, os, sys
settings = json.loads(sys.argv[1])
for name, value in settings["environment"].items():  # before anything is loaded that might load the library
    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
sys.path[:] = settings["path"]
from kernsearch.peers.child import main
main(settings)
"""


class Child:
    """One library in a fresh process. A context manager; leaving it ends the process.

    environment   variables set before the library is loaded, None takes one away
    index         of the device, for a process that works on one: see `device_child`
    """

    def __init__(
        self,
        name: str,
        problem: Problem | None,
        environment: Mapping[str, str | None],
        threads: int,
        seed: int,
        index: int | None = None,
    ) -> None:
        self.name = name
        self._settings = {
            "name": name,
            "problem": None if problem is None else problem.to_json(),
            "index": index,
            "environment": dict(environment),
            "threads": threads,
            "seed": seed,
            "path": sys.path,
        }
        self._buffer = b""

    def __enter__(self) -> Self:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        settings = {**self._settings, "commands": commands, "replies": replies}
        self._said = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[commands, replies],
                start_new_session=True,
            )
        finally:
            os.close(commands)
            os.close(replies)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._commands)  # the child ends at the end of its commands
        try:
            self._process.wait(2.0 if kind is None else 0.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._replies)
        self._said.close()

    def prepare(self) -> dict[str, Any]:
        """Load the library and call it once: {"check": projection of the result, "library", "details"}."""
        return self.ask({"do": "prepare"})

    def turn(self, repeat: int, inner: int, flush_bytes: int) -> tuple[list[Sample], float]:
        """`repeat` samples of `inner` calls each, per call, and the seconds that the turn took in all."""
        started = time.monotonic()
        message = {"do": "turn", "repeat": repeat, "inner": inner, "flush_bytes": flush_bytes}
        samples = [
            Sample(seconds, cpu, wait, WAKE_S / inner)
            for seconds, cpu, wait in self.ask(message, TURN_S * repeat)["samples"]
        ]
        if not samples or any(not s.seconds > 0 for s in samples):
            raise PeerError(f"{self.name} was timed at {[s.seconds for s in samples]} s: want positive times")
        return samples, time.monotonic() - started

    def ask(self, message: dict[str, Any], timeout_s: float = PREPARE_S) -> dict[str, Any]:
        """What the process answers. Raises PeerError when it says why it cannot, takes too long or is no more."""
        self.tell(message)
        return self.answer(timeout_s)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message whose `answer` is wanted later."""
        try:
            os.write(self._commands, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise PeerError(self._cause()) from None

    def answer(self, timeout_s: float = PREPARE_S) -> dict[str, Any]:
        """The answer to the oldest message that has none."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise PeerError(f"{self.name} took more than {timeout_s:g} s")
            part = os.read(self._replies, 1 << 16)
            if not part:
                raise PeerError(self._cause())
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(f"{self.name} cannot be timed: {reply['error']}")
        return reply

    def _cause(self) -> str:
        """Why the process is no more, with the last line that it wrote."""
        code = self._process.wait(5.0)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines() or [""]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}" + (f": {lines[-1]}" if lines[-1] else "")
