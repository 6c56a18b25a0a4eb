"""Reports of cases, of recorded data: what is told in which order, what makes it up, and what a page may hold."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import exit_code
from hypothesis import given
from hypothesis import strategies as st
from page import Page

from kernsearch.cases import cases, judged, recording, recordings, wrong
from kernsearch.errors import CacheError
from kernsearch.report.case_report import write_report
from kernsearch.report.case_text import markdown
from kernsearch.report.cases import print_case
from kernsearch.report.page import html, inlined

pytest.importorskip("matplotlib")
from kernsearch.report.case_plot import pictures

H200 = "cuda-nvidia-h200-sm90a"
SHIPPED = [(name, where) for name in cases() for where in recordings.shipped(name)]
SVG = "{http://www.w3.org/2000/svg}"


def samples(centre: float) -> list[float]:
    return [centre * (1 + 0.002 * math.sin(7 * i + 1e3 * centre)) for i in range(15)]


def arm(label: str, seconds: float, predicted: float, **more: Any) -> dict[str, Any]:
    return {"label": label, "variant": "v", "config": {"BM": 8}, "flops": 1e9, "predicted_s": predicted,
            "samples_s": samples(seconds), **more}  # fmt: skip


def step(label: str, before: str, after: str, **more: Any) -> dict[str, Any]:
    return {"label": label, "before": before, "after": after, "per": "call", **more}


@pytest.fixture
def recorded() -> dict[str, Any]:
    """Three arms: one that the model sees rightly, one that it does not, one that a gate refused."""
    evidence = {"compile": [{"registers": 128, "spill_stores": 64, "warnings": "spilled <much>"}],
                "gates": {"error": 0.25, "workspace_bytes": 2048}}  # fmt: skip
    return {
        "schema": 1, "case": "toy", "claim": "a | claim", "mechanism": "a <b>mechanism</b>", "date": "2026-01-01",
        "policy": "p", "device": {"key": "k", "name": "n"},
        "arms": [arm("plain", 1e-3, 1e-3), arm("slower", 2e-3, 2e-3, evidence=evidence),
                 arm("better", 5e-4, 1e-3, how=["warm caches"]),
                 arm("cheat", 2.5e-4, 1e-3, refused={"gate": "correctness", "reason": "Y[0] is nan"})],
        "comparisons": [step("a change", "plain", "slower"), step("another", "plain", "better", note="why it is off"),
                        step("the trick", "plain", "cheat")],
    }  # fmt: skip


def at(text: str, *words: str) -> list[int]:
    return [text.index(word) for word in words]


def test_claim_and_prediction_come_before_what_was_measured(recorded: dict[str, Any]) -> None:
    text = markdown(judged(recorded), ("changes.svg", "times.svg"))
    order = at(text, "**Claim.**", "## Prediction", "## Measurement", "(changes.svg)", "(times.svg)", "## Evidence",
               "## Verdict", "## Wrong predictions")  # fmt: skip
    assert order == sorted(order)
    before = text[: text.index("## Measurement")]
    assert "| slower |" in before and "2 ms" in before and "loses" in before
    assert "1.000, 1.000" not in before and "[" not in before.replace("\\[", "")


def test_measured_ratios_have_intervals_and_the_evidence_is_told(recorded: dict[str, Any]) -> None:
    text = markdown(judged(recorded), ())
    measured = text[text.index("## Measurement") :]
    assert re.search(r"\| a change \| 2\.000 \| \d\.\d+ \| \\\[1\.9\d+, 2\.0\d+\\\] \| loses \|", measured)
    assert "| slower | 128 | 64 | 2 KiB | 0.25 | passed |" in measured and "spilled \\<much\\>" in measured
    assert "warm caches" in text and "![" not in text


def test_wrong_predictions_are_named_with_what_the_model_leaves_out(recorded: dict[str, Any]) -> None:
    told = judged(recorded)
    assert [c["label"] for c in wrong(told)] == ["another"]
    text = markdown(told, ())
    last = text[text.index("## Wrong predictions") :]
    assert "- another: the model said tie, 1.000 of the time; measured wins, 0.500" in last
    assert "Why: why it is off." in last and "a change" not in last and "the trick" not in last
    recorded["arms"][2]["predicted_s"] = 5e-4
    assert "None: no change went another way" in markdown(judged(recorded), ())


@pytest.mark.parametrize(("slower", "explained"), [(None, True), (False, True), (True, False)])
def test_a_note_explains_only_the_way_that_it_was_written_for(
    recorded: dict[str, Any], slower: bool | None, explained: bool
) -> None:
    """The change took half of what was predicted; a note on why it takes longer is none on that."""
    recorded["comparisons"][1]["slower"] = slower
    told = judged(recorded)
    (found,) = wrong(told)
    assert bool(found["note"]) is explained
    said = "Why: why it is off." if explained else "No explanation is recorded."
    assert said in markdown(told, ())


def test_a_prediction_within_the_interval_is_not_wrong(recorded: dict[str, Any]) -> None:
    recorded["arms"][2]["samples_s"] = [1e-3, 2e-3, 5e-4] * 5
    recorded["arms"][2]["predicted_s"] = 0.98e-3
    told = judged(recorded)
    assert told["comparisons"][1]["predicted_verdict"] == "wins" and told["comparisons"][1]["verdict"] == "tie"
    assert wrong(told) == []


def test_what_a_gate_refused_is_no_win_however_fast_it_is(recorded: dict[str, Any]) -> None:
    told = judged(recorded)
    assert told["comparisons"][2]["verdict"] == "refused" and told["comparisons"][2]["measured"] < 0.3
    text = markdown(told, ())
    assert "cheat is refused by the gate correctness: Y\\[0\\] is nan" in text
    told = copy.deepcopy(recorded)
    told["comparisons"].reverse()
    assert "**refused (the trick: not the same result, it would take 0.25 times the time)**" in markdown(
        judged(told), ()
    )
    del told["arms"][3]["refused"]
    assert judged(told)["verdict"]["verdict"] == "wins"


def test_a_case_about_benchmarks_says_what_its_verdict_means(recorded: dict[str, Any]) -> None:
    means = {"wins": "it flatters by {times} times", "tie": "it is {honest}"}
    recorded["arms"][1]["samples_s"] = samples(8e-4)
    own = {**recorded, "means": means}
    for told in (judged(recorded, means), judged(own), judged(own, {"wins": "of today"})):
        assert told["verdict"]["verdict"] == "wins" and told["verdict"]["says"] == "it flatters by 1.25 times"
        assert "**wins: it flatters by 1.25 times (a change: faster, 0.80 times the time)**" in markdown(told, ())
        assert "| wins: it flatters by 1.25 times |" in markdown(told, ())
    recorded["arms"][1]["samples_s"] = recorded["arms"][0]["samples_s"]
    assert judged(recorded, means)["verdict"]["says"] == "it is {honest}"
    recorded["arms"][1]["samples_s"] = samples(2e-3)
    assert "says" not in judged(recorded, means)["verdict"] and "says" not in judged(recorded)["comparisons"][1]


@pytest.mark.parametrize("where", recordings.shipped("hot-cache"))
def test_recordings_of_the_case_about_benchmarks_say_by_how_much_they_flatter(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("case", "hot-cache", "--from", where, "--out", str(tmp_path)) == 0
    told = json.loads((tmp_path / "data.json").read_text())
    flatters = f"the benchmark flatters by {1 / told['verdict']['size']:.2f} times"
    assert f"verdict: wins: {flatters} (" in capsys.readouterr().out
    assert flatters in (tmp_path / "report.html").read_text()
    assert exit_code("case", "hot-cache", "--from", str(tmp_path / "data.json"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == told


def test_with_swapped_samples_the_reports_say_the_opposite(recorded: dict[str, Any]) -> None:
    swapped = copy.deepcopy(recorded)
    one, other = swapped["arms"][:2]
    one["samples_s"], other["samples_s"] = other["samples_s"], one["samples_s"]
    texts = [markdown(judged(data), ()) for data in (recorded, swapped)]
    assert "**loses (a change: slower, 2.00 times" in texts[0] and "**wins (a change: faster, 0.50 times" in texts[1]
    before = [text[: text.index("## Measurement")] for text in texts]
    assert before[0] == before[1], "what is said before measuring does not hang on samples"


@pytest.mark.parametrize(("name", "where"), SHIPPED)
def test_a_page_of_every_shipped_recording_holds_its_figures_and_loads_nothing(
    name: str, where: str, tmp_path: Path
) -> None:
    told = judged(recording(recordings.read(where, name, "arms"), name))
    assert write_report(tmp_path, told) is None
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags.count("svg") == 2 and page.tags.count("table") >= 5
    assert page.loads_nothing() and "@import" not in text
    assert told["verdict"]["of"] in text
    for figure in ("changes.svg", "times.svg"):
        assert f"]({figure})" in (tmp_path / "report.md").read_text() and (tmp_path / figure).exists()


def test_words_of_a_recording_stay_words(recorded: dict[str, Any]) -> None:
    recorded["claim"] = "<script>alert(1)</script> [a](http://b) | *c*"
    told = judged(recorded)
    page = html(markdown(told, ()), {})
    tags = Page(page).tags
    assert "script" not in tags and "a" not in tags and "em" not in tags and "b" not in tags
    assert "&lt;script&gt;" in page and "| *c*" in page


def test_pictures_show_every_change_and_every_arm(recorded: dict[str, Any]) -> None:
    drawn = pictures(judged(recorded))
    words = {name: " ".join(e.text or "" for e in ET.fromstring(svg).iter(f"{SVG}text")) for name, svg in drawn.items()}
    assert all(step["label"] in words["changes.svg"] for step in recorded["comparisons"])
    assert "refused 0.25" in words["changes.svg"] and "loses 2.00" in words["changes.svg"]
    assert all(a["label"] in words["times.svg"] for a in recorded["arms"]) and "2 ms" in words["times.svg"]
    assert pictures(judged(recorded)) == drawn, "the same data make the same files"


def test_two_pictures_in_a_page_keep_their_names_apart() -> None:
    svg = '<?xml version="1.0"?><svg><metadata>http://x</metadata><g id="a"/><use href="#a" clip-path="url(#b)"/></svg>'
    assert inlined(svg, "one.svg") == (
        '<svg><g id="one-svg-a"/><use href="#one-svg-a" clip-path="url(#one-svg-b)"/></svg>')  # fmt: skip


def test_a_recording_is_reported_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert exit_code("case", "register-spill", "--from", H200, "--out", str(out), "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == json.loads((out / "data.json").read_text())
    assert told.err == f"{out / 'report.html'}\n"
    files = {path.name for path in out.iterdir()}
    assert files == {"data.json", "report.md", "report.html", "changes.svg", "times.svg"}


def test_without_matplotlib_reports_have_tables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert exit_code("case", "register-spill", "--from", H200, "--out", str(tmp_path)) == 0
    assert "have no figures: pictures want matplotlib: pip install 'kernsearch[explore]'" in capsys.readouterr().err
    page = Page((tmp_path / "report.html").read_text())
    assert "svg" not in page.tags and "table" in page.tags


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert exit_code("case", "register-spill", "--from", H200, "--out", str(tmp_path / "file")) == 2
    told = capsys.readouterr()
    assert "is a file, want a folder" in told.err and told.err.count("\n") == 1


def damaged(**changes: Any) -> Any:
    return lambda told: told["arms"][0].update(changes)


def sample(value: Any) -> Any:
    return lambda told: told["arms"][0]["samples_s"].__setitem__(0, value)


def only(rounds: int) -> Any:
    return lambda told: [arm.update(samples_s=arm["samples_s"][:rounds]) for arm in told["arms"]]


DAMAGES = [
    *((sample(value), "arms[0].samples_s[0]: Expected `float`") for value in (math.inf, math.nan, True, "1", 0.0, -1)),
    *((damaged(predicted_s=value), "arms[0].predicted_s: Expected `float`") for value in ("1", math.nan, -1.0, None)),
    (damaged(predicted_s="fast"), "got `str`, given 'fast'"),
    (damaged(refused=True), "arms[0].refused: Expected `object`, got `bool`, given True"),
    (damaged(refused=None), "arms[0].refused: Expected `object`, got `null`"),
    (damaged(flops="many"), "arms[0].flops: Expected `float`, got `str`"),
    (damaged(config=None), "arms[0].config: Expected `object`, got `null`"),
    (damaged(config={"BM": None}), "arms[0].config[...]: Expected `int`, got `null`, given {'BM': None}"),
    (damaged(evidence=None), "arms[0].evidence: Expected `object`, got `null`"),
    (damaged(evidence={"compile": None}), "arms[0].evidence.compile: Expected `array`, got `null`"),
    (damaged(evidence={"compile": [{"registers": None}]}), "evidence.compile[0].registers: Expected `float`"),
    (damaged(how=None), "arms[0].how: Expected `array`, got `null`"),
    (damaged(turns={"A": {"turns": "?", "accesses": 1, "conflicts": 0}}), "arms[0].turns[...].turns: Expected `float`"),
    *((lambda told, value=value: told.update(device=value), "device: Expected `object`") for value in (None, "H200")),
    (lambda told: told["device"].pop("name"), "device: Object missing required field `name`"),
    (lambda told: told.update(means={"wins": 3}), "means[...]: Expected `str`, got `int`"),
    (lambda told: told.update(claim=3), "claim: Expected `str`, got `int`, given 3"),
    (lambda told: told.update(arms=[]), "arms: Expected `array` of length >= 1"),
    (lambda told: told.update(schema=7), "want a recording of schema 1; it has schema 7, this version reads 1"),
    (lambda told: told.update(schema=True), "want a recording of schema 1; it has schema True, this version reads 1"),
    (lambda told: told.pop("schema"), "it has no schema, this version reads 1"),
    (lambda told: told.pop("arms"), "it holds no list of arms"),
    (lambda told: told["arms"][1].update(label=told["arms"][0]["label"]), "two arms have one label"),
    (only(1), "1 samples, want at least 3: with fewer there is no interval"),
    (only(2), "2 samples, want at least 3: with fewer there is no interval"),
    (lambda told: (damaged(flops=0.0)(told), told["comparisons"][0].update(per="flop")), "want arms with flops"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "complaint"), DAMAGES)
def test_a_damaged_recording_is_one_line_with_its_file_and_the_mending_command_and_leaves_nothing(
    spoil: Any, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads(recordings.shipped("split-k")[H200].read_text())
    told["comparisons"].insert(0, step("of the first", told["arms"][0]["label"], told["arms"][1]["label"]))
    spoil(told)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(told))
    assert exit_code("case", "split-k", "--from", str(path), "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.err.startswith(f"kernsearch: {path}: ") and said.err.count("\n") == 1
    assert "`kernsearch case split-k --out DIR` records it again" in said.err and not said.out
    assert not (tmp_path / "out").exists()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of JSON with each of its keys or indices."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@given(
    place=st.integers(0, 10**6),
    value=st.sampled_from([None, True, 0, -1, 3, 1e300, 1e-300, math.inf, math.nan, "", "text", [], [1], {}, {"a": 1}]),
)
def test_whatever_is_damaged_is_refused_or_told(place: int, value: Any) -> None:
    """What passes the check has all that is judged and told, in a form that every step of it takes."""
    told = json.loads(recordings.shipped("split-k")[H200].read_text())
    found = list(places(told))
    container, key = found[place % len(found)]
    container[key] = value
    try:
        read = recording(told, "split-k")
    except CacheError as error:
        assert "\n" not in str(error)
    else:
        print_case(judged(read))
        assert markdown(judged(read), ())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("split-k", "--from", H200, "--device", "cpu"), "--device beside --from: want one or the other"),
        (("list", "--from", H200), "--from beside list: want one or the other"),
        (("split-k", "--from", H200, "--from", H200), "--from is given twice: want each option once"),
        (("split-k", "--from", ""), "'': want a file, or a device with a shipped recording of split-k"),
    ],
)
def test_what_has_no_say_is_refused_in_one_line(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("case", *arguments) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.err.count("\n") == 1 and not said.out
