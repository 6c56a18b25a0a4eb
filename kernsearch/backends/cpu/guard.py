"""Runs compilers behind a guard process, so that none outlives its time, its batch or this process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import CacheError

MEMORY_BYTES = 4 << 30
FILE_BYTES = 512 << 20
ROOM_BYTES = 1 << 20  # what a compile may leave behind; with less, a failure may be for want of it
_SCRIPT = Path(__file__).with_name("compile_child.py")


@dataclass(frozen=True)
class Report:
    """How a compile ended. `returncode` is negative for a signal; `stderr` holds the first messages."""

    returncode: int
    stderr: str
    seconds: float
    timed_out: bool = False


class Batch:
    """Compiles that are given up together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: set[subprocess.Popen[bytes]] = set()
        self.cancelled = False

    def cancel(self) -> None:
        """Kill all compilers of this batch; later ones do not start."""
        with self._lock:
            self.cancelled = True
            for guard in self._guards:
                _hang_up(guard)

    def add(self, guard: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._guards.add(guard)
            if self.cancelled:
                _hang_up(guard)

    def drop(self, guard: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._guards.discard(guard)


class Cancelled(Exception):
    """The batch was given up while this compile ran."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A private folder for one compile. Raises CacheError when there is nowhere to write."""
    try:
        folder = tempfile.mkdtemp(prefix="kernsearch-cc-")
    except OSError as error:
        raise CacheError(f"temporary folder: want one that can be written ({error.strerror})") from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    commands: Sequence[Sequence[str]],
    folder: Path,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    batch: Batch | None = None,
) -> Report:
    """Run commands one after the other in `folder` (a scratch folder, temporary files go there too) until one fails.

    Raises Cancelled when the batch is given up, CacheError when they fail and the folder cannot hold more files.
    """
    report = _guarded(commands, folder, timeout_s, environment, batch)
    if report is None:  # whoever killed the guard, it was not the source's fault
        report = _guarded(commands, folder, timeout_s, environment, batch)
    if report is None:
        return Report(-signal.SIGKILL, "the process that guards the compiler was killed", 0.0)
    if report.returncode != 0 and not report.timed_out:
        _can_hold(folder, ROOM_BYTES)
    return report


def _guarded(
    commands: Sequence[Sequence[str]],
    folder: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None,
    batch: Batch | None,
) -> Report | None:
    """What the guard reports, None when it was killed."""
    request = {
        "commands": [list(command) for command in commands],
        "environment": {"LC_ALL": "C", "TMPDIR": str(folder), **(environment or {})},
        "timeout_s": timeout_s,
        "memory_bytes": MEMORY_BYTES,
        "file_bytes": FILE_BYTES,
    }
    # Its own session, so that Ctrl-C reaches this process alone, which then gives up its batch.
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SCRIPT), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(json.dumps(request).encode() + b"\n")
            guard.stdin.flush()
        if batch is not None:
            batch.add(guard)
        answer = guard.stdout.read()
    finally:
        if batch is not None:
            batch.drop(guard)
        _hang_up(guard)
        guard.wait()
        guard.stdout.close()
    if batch is not None and batch.cancelled:
        raise Cancelled
    if not answer:
        return None
    return Report(**json.loads(answer))


def _can_hold(folder: Path, size: int) -> None:
    """Raise CacheError when a folder has no room for so many bytes."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise CacheError(f"temporary folder {str(folder.parent)!r}: cannot be written ({error.strerror})") from error


def _hang_up(guard: subprocess.Popen[bytes]) -> None:
    """Close the guard's standard input: it kills its compiler and ends."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        guard.stdin.close()  # type: ignore[union-attr]
