"""Workload files: what they say, what is wrong with them, and the commands that take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernsearch import workload
from kernsearch.errors import ProblemError

SHIPPED = Path(__file__).parent.parent / "benchmarks" / "gemm-h200.toml"
SMALL = """
[[problem]]
op = "gemm"
shape = "48x40x56"

[[problem]]
op = "gemm"
shape = [24, 32, 16]
dtype = "float64"
layout = "nt"
epilogue = "relu,bias"
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "list.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_gives_its_problems_in_order_with_defaults_filled_in(tmp_path: Path) -> None:
    first, second = workload.read(written(tmp_path, SMALL), "cpu")
    assert first.key == "gemm 48x40x56 float32 epilogue=none layout=nn"
    assert second.key == "gemm 24x32x16 float64 epilogue=bias,relu layout=nt"


def test_what_is_shipped_for_the_h200_can_be_read() -> None:
    problems = workload.read(SHIPPED, "cuda")
    assert {p.dtype for p in problems} == {"bfloat16", "float16", "float32"}
    assert {p.option("layout") for p in problems} == {"nn", "nt", "tn", "tt"}
    assert {p.op for p in problems} == {"gemm", "bmm"}
    assert any(1 in p.shape for p in problems)
    plain = {(p.shape, p.dtype) for p in problems if p.op == "gemm" and p.option("epilogue") == "none"}
    for dtype in ("bfloat16", "float16"):
        assert ((1543, 2311, 4095), dtype) in plain


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "no problem; want [[problem]] tables"),
        ("problem = 3", "no problem"),
        ("problem = [3]", "problem 1: 3: want [[problem]] tables"),
        ("[[problem]\n", "not TOML: "),
        (b"\xff\xfe", "not UTF-8 text"),
        ("[[problems]]\nop = 'gemm'\n", "'problems' is unknown"),
        ("[[problem]]\nop = 'gemm'\n", "problem 1: shape is missing"),
        ("[[problem]]\nshape = '8x8x8'\n", "problem 1: op is missing"),
        ("[[problem]]\nop = 7\nshape = '8x8x8'\n", "problem 1: op 7: want a name"),
        ("[[problem]]\nop = 'gem'\nshape = '8x8x8'\n", "problem 1: op 'gem': want one of"),
        ("[[problem]]\nop = 'gemm'\nshape = '8x8'\n", "problem 1: gemm shape 8x8: want 3 sizes"),
        ("[[problem]]\nop = 'gemm'\nshape = [8, 8.5, 8]\n", "problem 1: shape [8, 8.5, 8]: want sizes"),
        ("[[problem]]\nop = 'gemm'\nshape = [8, true, 8]\n", "problem 1: shape [8, True, 8]: want sizes"),
        ("[[problem]]\nop = 'gemm'\nshape = '8x8x8'\ndtype = 'int8'\n", "problem 1: dtype 'int8': gemm on cpu takes"),
        ("[[problem]]\nop = 'gemm'\nshape = '8x8x8'\nlayout = 'nq'\n", "problem 1: layout 'nq'"),
        ("[[problem]]\nop = 'gemm'\nshape = '8x8x8'\nwarmth = 1.5\n", "problem 1: warmth 1.5: want text"),
        ("[[problem]]\nop = 'gemm'\nshape = '8x8x8'\nbeta = 2\n", "problem 1: option 'beta'"),
        (SMALL + "[[problem]]\nop = 'gemm'\nshape = '48x40x56'\n", "problem 3: it is problem 1 again"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path: Path, text: str | bytes, wanted: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ProblemError) as caught:
        workload.read(path, "cpu")
    said = str(caught.value)
    assert said.startswith(f"workload {str(path)!r}") and wanted in said and "\n" not in said


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"nowhere.toml': No such file"):
        workload.read(tmp_path / "nowhere.toml", "cpu")


# the command line


def kernsearch(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernsearch.cli", *arguments],
        capture_output=True, text=True, cwd=home, env={**os.environ, "KERNSEARCH_CACHE": str(home / "cache")},
        timeout=240,
    )  # fmt: skip


def test_tune_and_bench_go_through_a_list(tmp_path: Path) -> None:
    path = str(written(tmp_path, SMALL))
    how = ("--workload", path, "--device", "cpu", "--json")
    tuned = kernsearch("tune", *how, "--trials", "3", "--timeout", "20", home=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    told = json.loads(tuned.stdout)
    assert [result["problem"].split()[1] for result in told["results"]] == ["48x40x56", "24x32x16"]
    assert told["failed"] == 0 and told["problems"] == 2
    assert "[1/2] " in tuned.stderr and "[2/2] " in tuned.stderr
    timed = kernsearch("bench", *how, "--rounds", "3", home=tmp_path)
    assert timed.returncode == 0, timed.stderr
    found = json.loads(timed.stdout)
    assert [row["ours"]["hit"] for row in found["results"]] == ["exact", "exact"]
    shown = kernsearch("bench", *how[:-1], "--rounds", "3", home=tmp_path).stdout
    assert "geometric mean of 2: numpy takes" in shown


def test_a_problem_that_cannot_be_tuned_does_not_end_the_list(tmp_path: Path) -> None:
    text = SMALL + '[[problem]]\nop = "gemm"\nshape = "90000000x90000000x8"\n'
    done = kernsearch(
        "tune", "--workload", str(written(tmp_path, text)), "--device", "cpu", "--json", "--trials", "2",
        "--timeout", "10", home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["failed"] == 1 and "GiB" in told["results"][2]["error"] and "variant" in told["results"][0]


@pytest.mark.parametrize("command", ["tune", "bench"])
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("gemm", "--workload", "x.toml"), "OP beside --workload"),
        (("--workload", "x.toml", "--layout", "nt"), "--layout beside --workload"),
        (("--workload", "x.toml", "--device", "cpu"), "x.toml"),
        ((), "Missing argument 'OP'"),
        (("gemm",), "Missing option '--shape'"),
    ],
)
def test_a_list_stands_for_the_problem_and_nothing_else(
    tmp_path: Path, command: str, arguments: tuple[str, ...], wanted: str
) -> None:
    done = kernsearch(command, *arguments, home=tmp_path)
    assert done.returncode == 2 and wanted in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and done.stdout == ""
