"""Our own trials written down, and read again; and the two commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from made import TINY, kernel_tuner

from kernsearch.cli import main
from kernsearch.device import Device
from kernsearch.errors import SpaceError, StorageError
from kernsearch.feasible import FeasibleSpace
from kernsearch.replay import read
from kernsearch.replay.export import text_of, write
from kernsearch.search import SEARCHERS, Search
from kernsearch.search.pool import candidate
from kernsearch.space import Param

SPACES = {
    name: FeasibleSpace([Param(letter, (1, 2, 4), "") for letter in letters], (), Device("cpu", 0, "a", "a", "a"), {})
    for name, letters in {"tile": ("BM", "BN"), "split+combine": ("BM", "SPLIT")}.items()
}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A study of all candidates: those with BM=4 do not compile, and one took 1 ms."""
    where = str(tmp_path_factory.mktemp("study") / "studies.db")
    with Search("toy 8x8 float32 any", SPACES, storage=where, attrs={"problem": "toy 8x8"}) as search:
        while (ask := search.ask()) is not None:
            took = {"compile_s": 0.25, "verify_s": 0.5, "predicted_s": 0.002}
            if ask.config["BM"] == 4:
                search.tell_rejected(ask, "compile", "too big", took)
            else:
                search.tell_measured(ask, 1e-3 * (sum(ask.config.values()) - 1), {**took, "benchmark_s": 0.125})
    with Search("toy 16x16 float32 any", SPACES, storage=where, trials=1) as search:
        search.ask()
    return where


@pytest.mark.parametrize(("form", "ending"), [("t4", "json"), ("jsonl", "jsonl"), ("jsonl", "jsonl.gz")])
def test_what_is_exported_is_read_again(storage: str, tmp_path: Path, form: str, ending: str) -> None:
    path = tmp_path / f"trials.{ending}"
    write(path, text_of("toy 8x8", form, storage))
    found = read(path)
    assert set(found.entries) == {candidate(n, c) for n, space in SPACES.items() for c in space.iterate()}
    best = found.of(candidate("tile", {"BM": 1, "BN": 1}))
    assert found.best_s == best.seconds == pytest.approx(1e-3)
    assert (best.compile_s, best.verify_s, best.benchmark_s) == pytest.approx((0.25, 0.5, 0.125))
    assert best.predicted_s == pytest.approx(0.002) and found.predicted
    refused = found.of(candidate("split+combine", {"BM": 4, "SPLIT": 2}))
    assert refused.seconds is None and refused.gate == "compile"


def test_csv_has_a_column_for_each_letter(storage: str) -> None:
    rows = list(csv.DictReader(io.StringIO(text_of("toy 8x8", "csv", storage))))
    assert len(rows) == 18 and {"variant", "BM", "BN", "SPLIT", "seconds", "gate", "reason"} <= set(rows[0])
    assert {row["SPLIT"] for row in rows if row["variant"] == "tile"} == {""}


@pytest.mark.parametrize(
    ("study", "form", "says"),
    [
        ("toy", "jsonl", "2 studies have it in their names"),
        ("none", "jsonl", "no study of that name"),
        ("toy 16x16", "jsonl", "holds no trial"),
        ("toy 8x8", "xml", "want one of t4, csv, jsonl"),
    ],
)
def test_what_cannot_be_exported_is_one_line(storage: str, study: str, form: str, says: str) -> None:
    with pytest.raises(SpaceError, match=says):
        text_of(study, form, storage)


def test_a_storage_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="want an SQLite file"):
        text_of("toy", "csv", str(tmp_path / "none.db"))
    assert not (tmp_path / "none.db").exists()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(list(arguments))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_json_of_replay_has_the_shape_that_scripts_rely_on(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "replay", str(tiny), "--budget", "6", "--seeds", "2", "--json")
    assert code == 0
    (row,) = json.loads(out)["results"]
    assert row == {
        "file": str(tiny), "searcher": "expected", "budget": 6, "seeds": 2,
        "fraction": {"median": 1.0, "p10": 1.0, "p90": 1.0}, "to_95": row["to_95"], "to_99": row["to_99"],
        "infeasible_asks": 0, "duplicate_evaluations": 0,
    }  # fmt: skip
    assert row["to_95"].keys() == row["to_99"].keys() == {"evaluations", "seconds"}


def test_replay_prints_random_search_beside_and_says_what_is_missing(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, "replay", str(tiny), "--budget", "3", "--seeds", "2", "--searcher", "random")
    assert code == 0
    assert "closed form" in out and "no predictions of our model" in out and "6 configurations, 1 of them failed" in out


def test_a_plot_is_drawn(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "progress.svg"
    code, _, _ = command(capsys, "replay", str(tiny), "--budget", "4", "--seeds", "2", "--plot", str(path))
    assert code == 0 and path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--searcher", "oracle"),
            f"searcher 'oracle': want one of {', '.join(SEARCHERS)}, uniform",
        ),
        (("--budget", "3", "--budget-seconds", "1"), "--budget beside --budget-seconds"),
        (("--seeds", "0"), "want numbers above 0"),
        (("--restrict", "nowhere.txt"), "nowhere.txt: cannot be read"),
        (("--early-stop", "1"), "--early-stop 1.0: want a share of the time"),
        (("--early-stop", "nan"), "--early-stop nan: want a share of the time"),
    ],
)
def test_a_wrong_request_is_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    code, out, err = command(capsys, "replay", str(tiny), *arguments)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("plot", "says"), [("x.tree", "want a name that ends in .svg, .png or .pdf"), ("none/x.svg", "there is no folder")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_searched(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plot: str, says: str
) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = command(capsys, "replay", str(tiny), "--plot", str(tmp_path / plot))
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


def test_a_recording_of_other_variants_teaches_nothing_and_is_refused(
    tiny: Path, storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    write(other, text_of("toy 8x8", "jsonl", storage))
    code, out, err = command(capsys, "replay", str(tiny), "--warm-from", str(other))
    assert code == 2 and out == "" and f"holds no variant of {tiny}, want one of all" in err and err.count("\n") == 1


def test_recordings_of_others_teach_by_name(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = tmp_path / "near.json"
    near.write_text(json.dumps(kernel_tuner({k: 2 * t if isinstance(t, float) else t for k, t in TINY.items()})))
    how = ("--budget", "1", "--seeds", "1", "--json")
    code, out, _ = command(capsys, "replay", str(tiny), "--warm-from", str(near), *how)
    assert code == 0 and json.loads(out)["results"][0]["fraction"]["median"] == 1.0
