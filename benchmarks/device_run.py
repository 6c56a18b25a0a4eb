"""What the parts of device.py share: time that runs out, processes that end in time, tables, and where results go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CACHE = Path(os.environ.get("DEVICE_CACHE", "build/h200"))  # records, studies and ceilings, carried from call to call
WORK = ("benchmarks/device_work.py",)


class Deadline:
    """Seconds that are left of a command."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


class Done(NamedTuple):
    """A process that has ended. `code` is None when it was stopped at its time limit."""

    code: int | None
    text: str  # both streams
    seconds: float

    @property
    def last(self) -> str:
        lines = [line for line in self.text.strip().splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""


def out() -> Path:
    """Where results go: $OUT, a place of the device machine, else build/out."""
    path = Path(os.environ.get("OUT") or "build/out")
    path.mkdir(parents=True, exist_ok=True)
    return path


def run(command: Sequence[str], timeout_s: float, **variables: str) -> Done:
    """Run a command in a process group of its own, all of which ends when its time is over."""
    started = time.monotonic()
    environment = {**os.environ, "KERNSEARCH_CACHE": str(CACHE.resolve()), "PYTHONUNBUFFERED": "1", **variables}
    try:
        process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        return Done(127, f"{command[0]} is not on PATH", 0.0)
    code: int | None
    try:
        text, _ = process.communicate(timeout=max(1.0, timeout_s))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        code = None
    return Done(code, text, time.monotonic() - started)


def python(arguments: Sequence[str], timeout_s: float, **variables: str) -> Done:
    return run([sys.executable, *arguments], timeout_s, **variables)


def kernsearch(arguments: Sequence[str], timeout_s: float, **variables: str) -> Done:
    return python(["-m", "kernsearch.cli", *arguments], timeout_s, **variables)


SANITIZER_FOUND = 99  # exit status
SANITIZED_AS = {0: "clean", SANITIZER_FOUND: "ERRORS", None: "time over"}  # by exit status


def sanitized(tool: str, arguments: Sequence[str], timeout_s: float) -> Done:
    """A Python program under one tool of Compute Sanitizer."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(SANITIZER_FOUND), "--launch-timeout", "0"]
    return run([*command, "python3", *arguments], timeout_s)


def json_of(text: str) -> str:
    """The part of an output that is one JSON object: from the first line that is a brace to the last."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("{")]
    ends = [i for i, line in enumerate(lines) if line.rstrip() == "}" or (line.startswith("{") and line.endswith("}"))]
    return "\n".join(lines[starts[0] : ends[-1] + 1]) if starts and ends else ""


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    lines = [list(map(str, row)) for row in (headers, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def log(name: str, texts: Mapping[str, str]) -> None:
    """One file of all that the pieces of a part have printed."""
    with (out() / f"{name}.log").open("w") as file:
        for title, text in texts.items():
            file.write(f"==== {title}\n{text.rstrip()}\n")
