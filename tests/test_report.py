"""What people read: numbers, steps and records in words."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from kernsearch import backends, registry
from kernsearch.derive import annotation
from kernsearch.records import Measured
from kernsearch.report.record import print_record
from kernsearch.report.tables import filled
from kernsearch.units import duration, operations, rate, size, told_rate


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (2.5, "2.5 s"),
        (1234.0, "1234 s"),
        (0.9996, "1000 ms"),
        (0.2, "200 ms"),
        (999.7e-6, "1000 µs"),
        (1.5e-9, "1.5 ns"),
        (0.0, "0 ns"),
    ],
)
def test_durations_have_three_digits_and_no_exponent(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(("number", "said"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1024 GiB")])
def test_sizes_are_binary(number: float, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(("number", "said"), [(12, "12 FLOP"), (196608, "196.6 kFLOP"), (29.14e9, "29.14 GFLOP")])
def test_operations_have_the_unit_that_fits(number: float, said: str) -> None:
    assert operations(number) == said


@pytest.mark.parametrize(
    ("work", "unit", "said"),
    [(12.34e9, "FLOP", "12.34 GFLOP/s"), (741.26e12, "FLOP", "741.3 TFLOP/s"), (4.2e12, "B", "4.2 TB/s"),
     (999.96e9, "B", "1 TB/s"), (5e6, "B", "5 MB/s")],
)  # fmt: skip
def test_rates_have_four_digits_wherever_they_are_told(work: float, unit: str, said: str) -> None:
    assert rate(2 * work, unit, 2.0) == said
    assert told_rate({"gbytes_s" if unit == "B" else "gflops": work / 1e9}) == said


def test_columns_without_anything_are_left_out() -> None:
    assert filled(("a", "b", "c"), [("1", "", "2"), ("3", "", "")]) == (["a", "c"], [["1", "2"], ["3", ""]])


def test_steps_name_values_and_axes_and_leave_keys_out() -> None:
    assert annotation(("tile", ("m",), "block", "MC"), {}) == "tile m block MC"
    assert annotation(["move", "31fd", "pack"], {"31fd": "A"}) == "move A pack"
    assert annotation(["move", "31fd", "pack"], {}) == "move pack"


def test_a_record_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, device = registry.problem("gemm", (33, 17, 29)), backends.resolve("cpu")[1]
    steps = ({"rule": "fuse_epilogues", "site": {"choice": ""}},
             {"rule": "tile", "site": {"choice": ["tile", ["m"], "block", "MC"]}})  # fmt: skip
    evidence = {"gates": {"workspace_bytes": 2048, "full": True}, "verdict": "beats it", "gflops": 12.34,
                "finalists": {"slow": 2e-3, "quick": 1e-3},
                "compile": [{"warnings": 0}, {"warnings": 1}]}  # fmt: skip
    record = handmade.record(problem, handmade.plan(tmp_path), device, derivation=steps, evidence=evidence,
                             measurement=Measured(1e-3, (9e-4, 2e-3)),
                             default_measurement=Measured(1.5e-3, (1e-3, 2e-3)))  # fmt: skip
    print_record(record, source=False, log=True)
    told = capsys.readouterr().out
    for line in (
        "time      1 ms (900 µs to 2 ms), 12.34 GFLOP/s",
        "default   1.5 ms",
        "play-off  beats it",
        "derived   fuse_epilogues",
        "          tile m block MC",
        "workspace 2 KiB",
        "  compile: warnings 0",
        "  compile: warnings 1",
        "  finalists: 1 ms quick",
    ):
        assert line in told.splitlines()
