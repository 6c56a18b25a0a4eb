"""`explain --html`: the page holds what `--json` prints, with pictures, and loads nothing."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from command import exit_code, know_rates
from page import Page

from kernsearch.records import read
from kernsearch.records.lookup import shipped_folder
from kernsearch.report.explain import explained
from kernsearch.report.explain_page import markdown, write_page
from kernsearch.units import duration

pytest.importorskip("matplotlib")
from kernsearch.report.explain_plot import pictures

HOPPER = shipped_folder() / "cuda-nvidia-h200-sm90a"
GEMM = "gemm_2304x1544x4096_bfloat16_epilogue=bias,gelu_tanh_layout=nn"
ONE_OF_EACH = [GEMM, "softmax_4096x4096_bfloat16_layout=n_prologue=none_result=softmax",
               "softmax_backward_4096x4096_bfloat16_layout=n"]  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def gemm() -> dict[str, Any]:
    return explained(read(HOPPER / f"{GEMM}.json"))


def told(gemm: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(gemm)), **changed}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_page_of_a_record_holds_what_is_known_and_loads_nothing(name: str, tmp_path: Path) -> None:
    known = explained(read(HOPPER / f"{name}.json"))
    assert write_page(tmp_path / "page.html", known) is None
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.tags.count("svg") == 2 and page.loads_nothing() and "@import" not in text
    for step in known["steps"]:
        assert step["rule"] in text and step["candidate"] in text and duration(step["predicted_s"]) in text
    winner = known["winner"]
    for words in (duration(winner["median_s"]), winner["runner_up"]["name"], winner["verdict"],
                  *known["bounds"]["says"], "What bounds it", "Refused, by gate"):  # fmt: skip
        assert words in text


def test_predicted_stands_beside_measured_for_every_step(gemm: dict[str, Any]) -> None:
    known = told(gemm)
    known["steps"][0] |= {"predicted_s": 21.8e-3, "measured_s": 1.25e-3, "measured_in": "search"}
    known["steps"][1] |= {"predicted_s": 21.8e-3, "measured_s": None}
    rows = [line for line in markdown(known, ()).splitlines() if line.startswith("| textbook | contraction")]
    assert len(rows) == 1 and rows[0].endswith("| 21.8 ms | compute | 1.25 ms (a look) |")
    words = [e.text or "" for e in ET.fromstring(pictures(known)["steps.svg"]).iter(f"{SVG}text")]
    assert "21.8 ms / 1.25 ms" in words and "21.8 ms / -" in words


def test_importances_and_refusals_are_told(gemm: dict[str, Any]) -> None:
    rows = [
        {"gate": "compile", "reason": "spills <b>", "count": 2},
        {"gate": "correctness", "reason": "off", "count": 4},
    ]
    refused = {"by_gate": {"compile": 2, "correctness": 4}, "reasons": rows}
    text = markdown(told(gemm, importances={"BM": 0.75, "BN": 0.25}, refused=refused), ())
    assert "| BM | 75% |" in text and "| compile | 2 |" in text
    assert text.index("| 4 | correctness | off |") < text.index("| 2 | compile | spills \\<b\\> |")
    bare = markdown(told(gemm, importances={}, refused={"by_gate": {}, "reasons": []}), ())
    assert "The record does not say" in bare and bare.endswith("\nNone.\n\n")


def test_of_a_device_that_nobody_knows_there_is_no_roof(gemm: dict[str, Any]) -> None:
    known = told(gemm, rates="unknown", bounds={"intensity": 3.0, "moved_bytes": 1, "says": []})
    for step in known["steps"]:
        step |= {"predicted_s": None, "bound": None}
    drawn = pictures(known)
    assert list(drawn) == ["steps.svg"] and "roofline.svg" not in markdown(known, tuple(drawn))
    assert list(pictures(told(known, steps=[], no_steps="no program of today"))) == []


def test_the_same_data_make_the_same_page(gemm: dict[str, Any], tmp_path: Path) -> None:
    for name in ("one.html", "other.html"):
        write_page(tmp_path / name, gemm)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_the_command_writes_the_page_and_prints_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("explain", "--from", GEMM, "--json") == 0
    plain = capsys.readouterr().out
    assert exit_code("explain", "--from", GEMM, "--json", "--html", str(tmp_path / "page.html")) == 0
    assert capsys.readouterr() == (plain, "") and Page((tmp_path / "page.html").read_text()).tags.count("svg") == 2


def test_what_was_never_measured_has_a_page_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    know_rates(tmp_path)
    path = tmp_path / "page.html"
    assert exit_code("explain", "gemm", "--shape", "37x41x43", "--device", "cpu", "--html", str(path)) == 0
    text = path.read_text()
    assert "Not measured yet" in text and "pick of each variant" in text and "Refused" not in text
    assert Page(text).loads_nothing()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = f"there is no folder {str(tmp_path / 'no')!r}"
    for path, why in ((tmp_path / "no" / "page.html", missing), (tmp_path, "is a folder, want a file")):
        assert exit_code("explain", "--from", GEMM, "--html", str(path)) == 2
        said = capsys.readouterr()
        assert said.err == f"kernsearch: --html {str(path)!r}: {why}\n" and said.out == ""


def test_without_matplotlib_the_page_has_tables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert exit_code("explain", "--from", GEMM, "--html", str(tmp_path / "page.html")) == 0
    assert "has no pictures: pictures want matplotlib: pip install 'kernsearch[explore]'" in capsys.readouterr().err
    page = Page((tmp_path / "page.html").read_text())
    assert "svg" not in page.tags and page.tags.count("table") >= 3
