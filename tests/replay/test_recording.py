"""What is read of recordings, and what is said of those that cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import TINY, kernel_tuner

from kernsearch.errors import RecordingError
from kernsearch.replay import read, restrictions
from kernsearch.replay.restrict import Restriction
from kernsearch.search.pool import candidate


def test_a_cache_of_kernel_tuner_is_read_with_times_in_seconds(tiny: Path) -> None:
    found = read(tiny)
    assert len(found.entries) == 6 and found.best_s == pytest.approx(0.002)
    entry = found.of(candidate("all", {"BM": 1, "BN": 1}))
    assert (entry.seconds, entry.compile_s, entry.verify_s, entry.benchmark_s) == pytest.approx((8e-3, 0.1, 0.02, 0.03))
    failed = found.of(candidate("all", {"BM": 4, "BN": 2}))
    assert failed.seconds is None and failed.gate == "execution"
    assert found.fraction(candidate("all", {"BM": 4, "BN": 1})) == pytest.approx(2 / 3)


def test_a_compressed_recording_is_the_same(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json.gz"
    path.write_bytes(gzip.compress(tiny.read_bytes()))
    assert read(path).entries == read(tiny).entries


def test_a_recording_says_what_it_was_recorded_on(tiny: Path, tmp_path: Path) -> None:
    assert read(tiny).device == "any"
    for first, device in (({"device": "cpu-one-2t"}, "cpu-one-2t"), ({}, ""), ({"device": 7}, "")):
        path = tmp_path / "ours.jsonl"
        row = {"number": 0, "variant": "tile", "config": {"BM": 1}, "seconds": 1.0, "status": "measured"}
        path.write_text(json.dumps({"format": "kernsearch trials 1", **first}) + "\n" + json.dumps(row) + "\n")
        assert read(path).device == device


def test_what_the_model_promised_is_taken_as_tune_takes_it(tmp_path: Path) -> None:
    """Of those of a variant that differ in one letter only the first, or all seeds would say the same."""
    told = [("tile", 1, 1, 1.0), ("tile", 1, 2, 1.1), ("tile", 2, 1, 1.2), ("other", 1, 2, 1.3), ("tile", 4, 4, 1.4),
            ("tile", 2, 2, 1.5), ("tile", 2, 4, 1.6)]  # fmt: skip
    rows = [{"variant": variant, "config": {"BM": bm, "BN": bn}, "seconds": 1.0, "status": "measured",
             "predicted_s": predicted} for variant, bm, bn, predicted in told]  # fmt: skip
    path = tmp_path / "ours.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"format": "kernsearch trials 1"}, *rows])))
    found = read(path)
    best = [("tile", 1, 1), ("other", 1, 2), ("tile", 4, 4), ("tile", 2, 2)]
    assert [(c.variant, *c.config.values()) for c in found.promising(9)] == best
    assert len(found.promising(2)) == 2


def test_points_that_nobody_recorded_are_infeasible(tmp_path: Path) -> None:
    times = {key: time for key, time in TINY.items() if key != (1, 2)} | {(2, 1): "InvalidConfig"}
    path = tmp_path / "holes.json"
    path.write_text(json.dumps(kernel_tuner(times)))
    space = read(path).spaces["all"]
    assert sorted(tuple(c.values()) for c in space.iterate()) == [(1, 1), (2, 2), (4, 1), (4, 2)]
    assert space.contains({"BM": 1, "BN": 2}) == "not in the recording"
    assert space.count() == 4
    assert [c["BM"] for c in space.neighbours({"BM": 4, "BN": 2})] == [2, 4]


def test_restrictions_take_the_place_of_what_is_recorded(tiny: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("BM % BN = 0  # as people write it\nBM·BN <= 4\n")
    found = read(tiny, restrictions(rules))
    assert sorted(tuple(c.values()) for c in found.spaces["all"].iterate()) == [(1, 1), (2, 1), (2, 2), (4, 1)]
    assert len(found.entries) == 4 and found.left_out == 2


def test_values_that_are_no_whole_numbers_are_searched_by_their_place(tmp_path: Path) -> None:
    times = {("row", False): 3.0, ("row", True): 2.0, ("col", True): 1.0}
    path = tmp_path / "words.json"
    path.write_text(json.dumps(kernel_tuner(times, ("ORDER", "PAD"))))
    found = read(path)
    assert found.labels == {"ORDER": ("row", "col"), "PAD": (False, True)}
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(["PAD or ORDER == 'col'"]))
    assert len(read(path, restrictions(rules)).entries) == 2


def test_t4_is_read(tmp_path: Path) -> None:
    def result(bm: int, invalidity: str, value: Any) -> dict[str, Any]:
        return {"configuration": {"BM": bm}, "invalidity": invalidity, "objectives": ["time"],
                "times": {"compilation": 50.0, "validation": 5.0, "benchmark": 10.0, "runtimes": [2000.0, 2002.0]},
                "measurements": [{"name": "time", "value": value, "unit": "s"}]}  # fmt: skip

    results = [result(1, "correct", 2.0), result(2, "compile", "CompilationFailedConfig"), result(4, "constraints", "")]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    found = read(path)
    assert {c.config["BM"]: (e.seconds, e.gate) for c, e in found.entries.items()} == {
        1: (2.0, ""),
        2: (None, "compile"),
    }
    assert found.of(candidate("all", {"BM": 1})).samples == pytest.approx((2.0, 2.002))


WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty, want a recording"),
    "truncated": (json.dumps(kernel_tuner(TINY))[:200], "it is not a recording (truncated:"),
    "cut compression": (gzip.compress(json.dumps(kernel_tuner(TINY)).encode())[:-40], "it is truncated"),
    "unknown": ('{"rows": []}', "want a cache of Kernel Tuner, T4, or what `kernsearch export` writes"),
    "no text": (b"\xff\xfe\x00\x01", "it is not a recording"),
    "no points": (json.dumps(kernel_tuner(TINY) | {"cache": {}}), "holds no configuration"),
    "no time": (json.dumps(kernel_tuner({(1, 1): "CompilationFailedConfig"})), "no configuration with a time"),
    "another objective": (json.dumps(kernel_tuner(TINY, objective="GFLOP/s")), "its objective is 'GFLOP/s', want time"),
    "cut lines": ('{"format": "kernsearch trials 1"}\n{"variant": "a", "conf', "line 2: it is not a trial (truncated:"),
    "lists": (json.dumps(kernel_tuner({(1, 1): 1.0}))[:-1].replace('"BM": 1', '"BM": [1]') + "}", "has the value [1]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_recording_is_one_line(tmp_path: Path, what: str) -> None:
    data, says = WRONG[what]
    path = tmp_path / "wrong.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(RecordingError) as raised:
        read(path)
    assert says in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("BX % BM == 0", "unknown parameter 'BX', want one of BM, BN"),
        ("BM %% BN", "want an expression like"),
        ("__import__('os')", "want comparisons and arithmetic of parameters"),
        ("BM.real > 0", "want comparisons and arithmetic of parameters"),
        ("BM > 99", "no configuration with a time satisfies the restrictions"),
    ],
)
def test_a_wrong_restriction_is_one_line(tiny: Path, tmp_path: Path, text: str, says: str) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text(text)
    with pytest.raises(RecordingError) as raised:
        read(tiny, restrictions(rules))
    assert says in str(raised.value) and "\n" not in str(raised.value)


@given(st.integers(1, 64), st.integers(0, 8), st.integers(1, 64))
def test_restrictions_mean_what_python_means(a: int, b: int, c: int) -> None:
    given_ = {"A": a, "B": b, "C": c}
    assert Restriction.parse("A <= C and not B > 3 or max(A, C) == A*B").holds(given_) == (
        (a <= c and not b > 3) or max(a, c) == a * b
    )
    assert Restriction.parse("A % B == 0").holds(given_) == (b != 0 and a % b == 0)
