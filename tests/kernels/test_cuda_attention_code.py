"""What the compiler makes of attention's kernels for sm_90a: what their loops hold, and which configs it refuses."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kernsearch import backends, registry
from kernsearch.backends import Compiled
from kernsearch.backends.cuda.machine_code import disassembled
from kernsearch.candidate import lower
from kernsearch.derive import Variant, derive
from kernsearch.errors import CompilerError, Rejected
from kernsearch.launch import itemsize
from kernsearch.problem import Problem

BACKEND = backends.get("cuda")
DEVICE = BACKEND.compile_only("sm_90a")
TIMEOUT_S = 120
FLASH = {"STAGES": 2, "OVERLAP": 1, "PINGPONG": 1, "GROUP": 8}
GROUPED = {"kv_heads": 2, "causal": "bottom-right", "lse": "yes"}


@pytest.fixture(autouse=True, scope="module")
def compiler():
    try:
        BACKEND.toolchain(DEVICE)
    except CompilerError as error:
        pytest.skip(str(error))


def problem(depth: int, **options) -> Problem:
    return registry.problem("attention", (4, 8, 2048, 2048, depth), "bfloat16", backend="cuda", **options)


@cache
def variant(of: Problem) -> Variant:
    return derive(of, registry.op(of.op), registry.templates("cuda")).variant("attention_specialized")


def config(words: str) -> dict[str, int]:
    given = {**FLASH, **{letter: int(value) for letter, value in re.findall(r"([A-Z]+)(\d+)", words)}}
    return {**given, "PINGPONG": 0} if given["BM"] == 64 else given


def compiled(of: Problem, words: str) -> Compiled:
    (kernel,) = lower(variant(of), config(words), of, BACKEND, DEVICE).kernels
    return BACKEND.compile(kernel, DEVICE, timeout_s=TIMEOUT_S)


def broken(of: Problem, words: str) -> list[str]:
    """Constraints of the space that a config breaks."""
    sizes = {**registry.op(of.op).sizes(of), "ITEMSIZE": itemsize(of.dtype)}
    return [rule.reason for rule in variant(of).constraints if not rule.holds(config(words), DEVICE, sizes)]


def code(cubin: Path) -> list[str]:
    return [line.strip() for line in disassembled(cubin, "-c").splitlines()]


def innermost(lines: list[str]) -> list[list[str]]:
    """The instructions of each loop that multiplies or copies and holds no other such loop."""
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.startswith(".L_x_")}
    turns = ((at, re.search(r"BRA `\((\.L_x_\d+)", line)) for at, line in enumerate(lines))
    loops = {(labels[found[1]], at) for at, found in turns if found and labels[found[1]] < at}
    busy = [loop for loop in loops if re.search("HGMMA|UTMALDG", " ".join(lines[slice(*loop)]))]
    own = [one for one in busy if not any(one != o and one[0] <= o[0] and o[1] <= one[1] for o in busy)]
    return [lines[slice(*loop)] for loop in own]


@pytest.mark.parametrize(
    "depth, options, words",
    [
        (64, {"causal": "bottom-right"}, "BM128 BK128 BD64 BE64"),
        (128, {}, "BM128 BK176 BD128 BE128"),
        (128, GROUPED, "BM128 BK128 BD128 BE128"),
        (256, {}, "BM128 BK80 BD256 BE256"),
    ],
)
def test_loops_neither_spill_nor_divide(depth, options, words):
    """A division in the producer's loop takes as long as the products of a tile."""
    loops = innermost(code(compiled(problem(depth, **options), words).path))
    copying = [loop for loop in loops if any("UTMALDG" in line for line in loop)]
    multiplying = [loop for loop in loops if any("HGMMA" in line for line in loop)]
    assert copying and len(multiplying) >= 2  # tiles that a mask cuts, and others
    for loop in [*copying, *multiplying]:
        assert not [line for line in loop if re.search(r"LDL|STL|MUFU\.RCP|I2F|CALL", line)]


def test_a_row_is_divided_once_for_eight_columns():
    """64 columns of two rows: an inverse for each store, not a quotient for each element."""
    text = "\n".join(code(compiled(problem(64), "BM128 BK128 BD64 BE64").path))
    assert "FCHK" not in text and len(re.findall(r"MUFU\.RCP", text)) < 24 and "STG.E.128" in text


@pytest.mark.parametrize(
    "depth, words",
    [
        (64, "BM192 BK144 BD64 BE64 OVERLAP0"),
        (128, "BM192 BK96 BD128 BE128"),
        (64, "BM128 BK256 BD64 BE64"),
        (64, "BM64 BK256 BD64 BE64 OVERLAP0"),
    ],
)
def test_what_exceeds_the_registers_is_refused_by_the_compiler_too(depth, words):
    of = problem(depth)
    assert "sums, scores and weights exceed the registers" in broken(of, words)
    with pytest.raises(Rejected, match="insufficient register resources"):
        compiled(of, words)


@pytest.mark.parametrize(
    "depth, words",
    [
        (64, "BM192 BK128 BD64 BE64 OVERLAP0"),
        (64, "BM192 BK128 BD64 BE64"),
        (128, "BM192 BK80 BD128 BE128"),
        (128, "BM128 BK192 BD128 BE128"),
        (128, "BM64 BK192 BD128 BE128 OVERLAP0"),
        (64, "BM64 BK224 BD64 BE64"),
    ],
)
def test_the_largest_that_the_space_holds_compiles(depth, words):
    for of in (problem(depth), problem(depth, **GROUPED)):
        assert not broken(of, words)
        assert compiled(of, words).path.is_file()
