"""Pictures of recorded data: what is drawn, what is marked, and what is said where none can be drawn."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import exit_code

pytest.importorskip("matplotlib")
from kernsearch.report import figures, graph_svg
from kernsearch.report.ladder_plot import plot_ladder

H200 = "cuda-nvidia-h200-sm90a"
RED, GREY = graph_svg._WINS, graph_svg._GREY


def node(key: str, phase: str, *kernels: tuple[str, list[str]], root: bool = False) -> dict[str, Any]:
    found = [{"key": c, "computes": [c], "writes": [c], "reads": [], "templates": fits} for c, fits in kernels]
    return {"key": key, "root": root, "phase": phase, "runnable": all(k["templates"] for k in found),
            "kernels": found, "variants": []}  # fmt: skip


def edge(a: str, b: str, rule: str) -> dict[str, Any]:
    return {"from": a, "to": b, "rule": rule, "site": {}}


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A graph of six programs: two steps of fusion, one split, one program that cannot run."""
    return {
        "problem": "toy 4x4 float32",
        "nodes": [
            node("aa", "algebra", ("x", ["plain"]), ("y", ["map"]), root=True),
            node("ab", "algebra", ("z", []), ("y$1", ["map"])),
            node("ba", "fusion", ("xy", ["fused", "packed"])),
            node("bb", "fusion", ("xyz", ["all"])),
            node("ca", "split", ("part", ["slabs"]), ("sum", ["combine"])),
            node("cb", "split", ("x_part", ["slabs"]), ("s", ["combine"]), ("y", ["map"])),
        ],
        "edges": [edge("aa", "ab", "merge"), edge("aa", "ba", "fuse_maps"), edge("ba", "bb", "fuse_more"),
                  edge("bb", "ca", "split_reduction"), edge("aa", "cb", "split_reduction")],
        "winner": {"variant": "packed", "from": "tuned", "path": ["aa", "ba"], "templates": ["packed"]},
    }  # fmt: skip


def boxes(svg: str) -> dict[str, str]:
    """The style of each program's box."""
    found = {}
    for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        if (name := group.get("id", "")).startswith("program-"):
            found[name.removeprefix("program-")] = group[0].get("style", "")
    return found


def test_phases_are_layers_from_left_to_right(recorded: dict[str, Any]) -> None:
    columns, phases = graph_svg.layers(recorded)
    assert phases == [("algebra", 2), ("fusion", 2), ("split", 1)]
    assert columns == [["aa"], ["ab"], ["ba"], ["bb"], ["ca", "cb"]]


def test_boxes_of_a_column_do_not_overlap(recorded: dict[str, Any]) -> None:
    columns, _ = graph_svg.layers(recorded)
    placed = graph_svg.placed(recorded, columns)
    assert placed.keys() == {n["key"] for n in recorded["nodes"]}
    for keys in columns:
        spans = sorted((placed[k].middle - placed[k].height / 2, placed[k].middle + placed[k].height / 2) for k in keys)
        assert all(above[1] < below[0] for above, below in pairwise(spans))


def test_the_winners_way_is_marked_and_what_cannot_run_is_grey(recorded: dict[str, Any]) -> None:
    drawn = boxes(graph_svg.picture(recorded))
    assert {key for key, style in drawn.items() if RED in style} == {"aa", "ba"}
    assert {key for key, style in drawn.items() if GREY in style} == {"ab"}
    assert drawn.keys() == {n["key"] for n in recorded["nodes"]}


def test_words_stay_words_and_the_winner_names_its_template(recorded: dict[str, Any]) -> None:
    svg = graph_svg.picture(recorded)
    words = [
        re.sub(r"\s+", " ", text.text or "") for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "packed and 1 more" in words and "no template" in words and "split_reduction" in words and "2 y$1" in words
    assert any("the way to packed, tuned" in word for word in words)


def test_the_same_data_make_the_same_picture(recorded: dict[str, Any]) -> None:
    assert graph_svg.picture(recorded) == graph_svg.picture(json.loads(json.dumps(recorded)))


def test_a_graph_without_a_winner_marks_nothing(recorded: dict[str, Any]) -> None:
    del recorded["winner"]
    assert RED not in graph_svg.picture(recorded)


def test_the_command_draws_what_it_derives(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("graph", "softmax", "--shape", "128x256", "--device", "cpu", "--format")
    assert exit_code(*arguments, "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert exit_code(*arguments, "svg") == 0
    drawn = boxes(capsys.readouterr().out)
    assert drawn.keys() == {n["key"] for n in told["nodes"]}
    assert {key for key, style in drawn.items() if RED in style} == set(told["winner"]["path"])
    assert told["nodes"][0]["key"] == told["winner"]["path"][0]


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


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert exit_code("graph", "gemm", "--shape", "64x64x64", "--device", "cpu", "--format", "svg") == 2
    told = capsys.readouterr()
    assert "pip install 'kernsearch[explore]'" in told.err and told.err.count("\n") == 1 and not told.out
