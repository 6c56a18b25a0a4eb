"""One reader of JSON for all files that others write: a value, or one line that says what is wrong."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernsearch import json_text
from kernsearch.backends import objects
from kernsearch.cases import recordings
from kernsearch.errors import KernsearchError
from kernsearch.model import ceilings
from kernsearch.peers import then
from kernsearch.records import exchange
from kernsearch.records import record as records
from kernsearch.records.packing import Packed
from kernsearch.replay import formats, restrict

ROOT = Path(__file__).parent.parent
DEEP = "[" * 100_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("schema", "kernsearch", "records", "problem", "results", "arms", "cache", "tune_params", "format", "flops",
        "lines", "shared", "index", "schema_version", "sha256", "evidence", "seconds")  # fmt: skip
NEARLY = st.dictionaries(st.sampled_from(KEYS), VALUES | st.just(1) | st.just("records"), max_size=6)


def raised(read: Any) -> str:
    """The one line that a reader ends with; "" when it takes the file."""
    try:
        read()
    except (ValueError, KernsearchError) as error:
        assert "\n" not in str(error)
        return str(error) or "nothing"
    return ""


@given(st.binary(max_size=30))
@example(DEEP.encode())
@example(b"\xff")
@example(b"")
def test_any_bytes_are_a_value_or_one_line(data: bytes) -> None:
    for nan in (False, True):
        told = raised(lambda nan=nan: json_text.parse(data, str, "a thing", nan=nan))
        assert not told or told.startswith("it is not a thing (")


@given(VALUES)
def test_what_was_written_is_read(value: Any) -> None:
    text = json.dumps(value)
    assert repr(json_text.parse(text, lambda data: data, "a thing", nan=True)) == repr(value)


def test_numbers_that_are_none_are_read_where_they_may_be() -> None:
    assert math.isnan(json_text.parse("[NaN]", lambda data: data[0], "a thing", nan=True))
    assert "not JSON" in raised(lambda: json_text.parse("[NaN]", str, "a thing"))


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "truncated"), ('{"a": "b', "truncated"), ("{} x", "not JSON"), (DEEP, "nested too deep"),
     (b"\xc3\x28", "not text"), ('{"b": 1}', "KeyError: 'a'"), ("[]", "TypeError"), ("3", "TypeError")],
)  # fmt: skip
def test_the_line_says_what_is_wrong(text: str | bytes, says: str) -> None:
    assert f"it is not a thing ({says}" in raised(lambda: json_text.parse(text, lambda d: d["a"], "a thing", nan=True))


def test_bugs_of_whoever_makes_something_of_it_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        json_text.parse("0", lambda data: 1 / data, "a thing")


READERS = {
    "record": records.read,
    "export": lambda path: list(exchange._from_file(path)),
    "packed records": lambda path: Packed(path.read_bytes()),
    "case": lambda path: recordings.read(str(path), "waves", "arms"),
    "bench": lambda path: then.read(str(path)),
    "recording": formats.read,
    "restrictions": restrict.read,
}
MISSES = {"rates": ceilings._read, "object": lambda path: objects.cached(path, "run")}  # what is damaged is made anew


@pytest.mark.parametrize("reader", READERS)
@given(data=st.binary(max_size=20) | VALUES.map(json.dumps).map(str.encode) | NEARLY.map(json.dumps).map(str.encode))
@example(data=DEEP.encode())
def test_every_reader_takes_a_file_or_says_why_not(reader: str, data: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / f"{reader}.json"
    path.write_bytes(data)
    raised(lambda: READERS[reader](path))


@pytest.mark.parametrize("reader", MISSES)
@given(data=st.binary(max_size=20) | VALUES.map(json.dumps).map(str.encode) | NEARLY.map(json.dumps).map(str.encode))
@example(data=DEEP.encode())
def test_what_is_damaged_in_the_cache_is_passed_over(reader: str, data: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / f"{reader}.json"
    path.write_bytes(data)
    assert MISSES[reader](path) is None


def test_nobody_else_reads_json_of_files() -> None:
    """Others read lines of processes that we have started, and values that a database holds."""
    own = {"worker/process", "worker/child", "peers/host", "peers/child", "gates/device_bench",
           "backends/cuda/compile_child", "backends/cuda/children", "backends/cpu/compile_child", "backends/cpu/guard",
           "search/storage", "json_text"}  # fmt: skip
    found = set()
    for path in sorted((ROOT / "kernsearch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load",
                                                                         "msgspec.json.decode"):  # fmt: skip
                found.add(path.relative_to(ROOT / "kernsearch").with_suffix("").as_posix())
    assert found <= own
