"""Pictures of recorded data: what is drawn, what is marked, and what is said where none can be drawn."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from command import exit_code

pytest.importorskip("matplotlib")
from kernsearch.report import figures
from kernsearch.report.ladder_plot import plot_ladder

H200 = "cuda-nvidia-h200-sm90a"


def test_a_recorded_ladder_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ladder.svg"
    assert exit_code("ladder", "gemm", "--from", H200, "--plot", str(path)) == 0
    assert "warp_specialized" in capsys.readouterr().out
    svg = path.read_text()
    words = [text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"naive", "shared_tile", "warp_specialized", "no program of this problem fits its templates"} <= set(words)
    assert any("TFLOP/s" in word for word in words) and sum("% of the roofline" in word for word in words) == 7


def test_bars_are_as_long_as_the_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"problem": "toy", "device": {"name": "toy"}, "date": "2026-01-01", "flops": 4e9, "floor_s": 1e-3,
            "rungs": [{"rung": "slow", "predicted_s": 4e-3, "median_s": 8e-3, "of_floor": 0.125},
                      {"rung": "absent", "absent": "not here"},
                      {"rung": "fast", "predicted_s": 2e-3, "median_s": 2e-3, "of_floor": 0.5}]}  # fmt: skip
    drawn: list[Any] = []
    monkeypatch.setattr(
        figures, "save", lambda figure, path: drawn.append([p.get_width() for p in figure.axes[0].patches])
    )
    plot_ladder(tmp_path / "x.svg", data)
    assert drawn == [[pytest.approx(0.5), pytest.approx(2.0)]]


@pytest.mark.parametrize("name, says", [("ladder.nonsense", "nonsense"), ("nowhere/ladder.svg", "nowhere")])
def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert exit_code("ladder", "gemm", "--from", H200, "--plot", str(tmp_path / name)) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


def test_a_missing_library_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert exit_code("ladder", "gemm", "--from", H200, "--plot", str(tmp_path / "ladder.svg")) == 2
    told = capsys.readouterr()
    assert "pip install 'kernsearch[explore]'" in told.err and told.err.count("\n") == 1 and not told.out
