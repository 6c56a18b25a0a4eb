"""kill -9, again and again: nothing that was told is lost, nothing stays running, no child survives."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 20
TUNE = ("tune", "gemm", "--shape", "40x48x56", "--timeout", "200", "--json", "--searcher", "random")


def start(home: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kernsearch.cli", *TUNE, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=home,
        env={**os.environ, "KERNSEARCH_CACHE": str(home)},
    )


def states(home: Path) -> dict[str, int]:
    """Trials in the database by state; empty while there is no database."""
    try:
        with sqlite3.connect(f"file:{home / 'studies.db'}?mode=ro", uri=True, timeout=10) as database:
            return dict(database.execute("select state, count(*) from trials group by state"))
    except sqlite3.OperationalError:
        return {}


def finished(home: Path) -> int:
    found = states(home)
    return found.get("COMPLETE", 0) + found.get("PRUNED", 0)


def descendants(pid: int) -> set[int]:
    """Processes below one, found by their parents in /proc."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) in "ZX"
    except OSError:
        return True


def until(true: object, seconds: float = 60.0) -> bool:
    """Wait for a condition that must come; False when it has not."""
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.timeout(900)
def test_a_killed_search_loses_nothing_and_leaves_nobody(tmp_path: Path) -> None:
    rng = random.Random(20)
    known = 0
    for kill in range(KILLS):
        process = start(tmp_path, "--trials", "100000", "--seed", str(kill))
        wanted = known + rng.randrange(3)  # 0: while it starts
        pause = rng.random()
        assert until(lambda: finished(tmp_path) >= wanted or process.poll() is not None)  # noqa: B023
        aim = time.monotonic() + pause
        until(lambda: time.monotonic() >= aim or process.poll() is not None)  # noqa: B023
        family = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert until(lambda: all(map(gone, family))), "a child outlived its parent"  # noqa: B023
        known = finished(tmp_path)
    assert known > 0
    done = start(tmp_path, "--trials", "1")
    told = json.loads(done.communicate(timeout=300)[0])
    assert done.returncode == 0
    assert told["resumed"] == known
    counts = told["counts"]
    assert counts["asked"] == counts["measured"] + counts["duplicates"] + sum(counts["rejected"].values())
    assert states(tmp_path).get("RUNNING", 0) == 0
    assert finished(tmp_path) == known + counts["asked"]


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    process = start(tmp_path, "--trials", "100000")
    assert until(lambda: finished(tmp_path) >= 2)
    process.send_signal(signal.SIGINT)
    told = json.loads(process.communicate(timeout=120)[0])
    assert process.returncode == 130
    assert told["interrupted"] and Path(told["record"]).is_file()
    assert told["counts"]["measured"] >= 2
    assert states(tmp_path).get("RUNNING", 0) == 0


def test_a_second_ctrl_c_leaves_at_once_and_says_what_is_kept(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kernsearch.cli", *TUNE, "--trials", "100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "KERNSEARCH_CACHE": str(tmp_path)},
    )
    assert process.stderr is not None
    assert until(lambda: finished(tmp_path) >= 1)
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert any("press Ctrl-C again" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == (
        "kernsearch: interrupted; no record was changed, and trials of `tune` that had ended are kept"
    )
    assert until(lambda: all(map(gone, family)))
    assert finished(tmp_path) >= 1 and not list(tmp_path.glob("records/*/*.json"))
    assert states(tmp_path).get("RUNNING", 0) == 0
