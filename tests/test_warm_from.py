"""`--warm-from`: measurements of near shapes and of other devices that a search begins with."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import handmade
import pytest

from kernsearch import backends, registry
from kernsearch.cli import main
from kernsearch.device import Device
from kernsearch.errors import SpaceError, StorageError
from kernsearch.feasible import FeasibleSpace
from kernsearch.problem import Problem
from kernsearch.records import Measured, Record
from kernsearch.records.lookup import Store
from kernsearch.replay.export import text_of
from kernsearch.search import Search, transfer
from kernsearch.search.study import Studies
from kernsearch.space import Param
from kernsearch.tune import Request, run, sources

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # what is said of a bad file is said once

DEVICE = backends.resolve("cpu")[1]
OTHER = replace(DEVICE, key="cpu-another-2t", arch="another")
SHAPE = (44, 36, 52)
LETTERS = {"MR": (4, 8), "NR": (8, 16, 24), "KC": (128, 256)}
SPACES = {"tiled": FeasibleSpace([Param(x, v, x) for x, v in LETTERS.items()], (), DEVICE, {})}
FAST = {"MR": 8, "NR": 16, "KC": 256}


def problem(*shape: int, **options: str) -> Problem:
    return registry.problem("gemm", shape or SHAPE, **options)


def seconds(config: dict[str, int]) -> float:
    return 1e-3 * (1 + sum(config[name] != value for name, value in FAST.items()))


def study(storage: Path, what: Problem, device: Device = DEVICE, trials: int = 12) -> None:
    """A study of all candidates of the made-up space, FAST the fastest."""
    with Search(f"{what.key} {device.key}", SPACES, storage=str(storage), searcher="exhaustive",
                trials=trials) as search:  # fmt: skip
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, seconds(ask.config))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "user", tmp_path / "shipped")


def kept(folder: Path, what: Problem, device: Device = DEVICE) -> Record:
    measured = Measured(1e-3, (0.9e-3, 1.1e-3), samples=(1e-3,), policy="p")
    plan = handmade.plan(folder, what.dtype)
    return handmade.record(what, plan, device, variant="tiled", config=FAST, measurement=measured)


def of(where: Path | str, store: Store) -> list[transfer.Source]:
    return sources.within(sources.named(problem(), store, [str(where)]), problem(), SPACES)


# What there is to learn from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "t4"])
def test_an_exported_study_proposes_its_fastest_first(tmp_path: Path, store: Store, form: str) -> None:
    study(tmp_path / "s.db", problem(40, 40, 40))
    file = tmp_path / f"trials.{form}"
    file.write_text(text_of("gemm", form, str(tmp_path / "s.db")))
    (source,) = of(file, store)
    assert len(source.rows) == 12
    assert next(transfer.seeds([source])) == ("tiled", FAST)


def test_a_storage_gives_its_three_nearest_shapes_on_whatever_device(tmp_path: Path, store: Store) -> None:
    where = tmp_path / "colleague.db"
    for size, device in ((500, DEVICE), (48, OTHER), (100, OTHER), (40, DEVICE), (2000, DEVICE)):
        study(where, problem(size, size, size), device)
    study(where, problem(dtype="float64"), OTHER)
    study(where, problem(epilogue="bias"), OTHER)
    names = [source.name.split()[1] for source in of(where, store)]
    assert sorted(names[:2]) == ["40x40x40", "48x48x48"] and names[2:] == ["100x100x100"]


def test_a_study_of_few_trials_teaches_nothing(tmp_path: Path, store: Store) -> None:
    study(tmp_path / "s.db", problem(40, 40, 40), trials=sources.LEAST - 1)
    with pytest.raises(SpaceError, match="holds a variant of gemm float32"):
        of(tmp_path / "s.db", store)


def test_records_of_another_device_come_nearest_first(tmp_path: Path, store: Store) -> None:
    for what in (problem(900, 900, 900), problem(48, 40, 56), problem(dtype="float64")):
        store.write(kept(tmp_path, what, OTHER))
    assert [source.name.split()[1] for source in of(OTHER.key, store)] == ["48x40x56", "900x900x900"]


def test_one_record_is_a_source(tmp_path: Path, store: Store) -> None:
    (source,) = of(store.write(kept(tmp_path, problem(48, 40, 56), OTHER)), store)
    assert source.rows == [("tiled", FAST, 1e-3)]


def test_studies_of_near_shapes_are_found_without_being_named(tmp_path: Path) -> None:
    where = tmp_path / "s.db"
    for what, device in ((problem(40, 40, 40), DEVICE), (problem(40, 40, 40), OTHER), (problem(), DEVICE)):
        study(where, what, device)
    (found,) = sources.found(problem(), DEVICE, str(where))  # not the other device, and not the study itself
    assert found.name.startswith("gemm 40x40x40") and DEVICE.key in found.name
    assert sources.found(problem(), DEVICE, str(tmp_path / "none.db")) == []


def test_sources_take_turns(tmp_path: Path) -> None:
    slow = transfer.Source("slow", [("tiled", {**FAST, "MR": 4}, 9.0), ("tiled", FAST, 10.0)])
    fast = transfer.Source("fast", [("tiled", {**FAST, "NR": 8}, 1e-3), ("tiled", {**FAST, "NR": 24}, 2e-3)])
    told = [config for _, config in transfer.seeds([slow, fast])]
    assert told == [{**FAST, "MR": 4}, {**FAST, "NR": 8}, FAST, {**FAST, "NR": 24}]


# What is no source ----------------------------------------------------------------------------------------------------


def test_what_is_nothing_is_refused(store: Store) -> None:
    with pytest.raises(SpaceError, match="--warm-from 'nowhere': want a recording, a record, a storage, or the key"):
        of("nowhere", store)


def test_a_storage_that_is_not_there_is_refused_and_not_made(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StorageError, match="want an SQLite file"):
        of(tmp_path / "none.db", store)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"{}", "want a cache of Kernel Tuner"),
        (b'{"format": "kernsearch trials 1"}\n{"number": 0, "var', "truncated"),
        (gzip.compress(b"{}" * 1000, mtime=0)[:20], "truncated"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, store: Store, data: bytes, says: str) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_bytes(data)
    with pytest.raises(SpaceError, match=f"--warm-from .*{says}") as refusal:
        of(file, store)
    assert "\n" not in str(refusal.value)


def test_a_recording_of_something_else_is_refused(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "other.jsonl"
    row = {"number": 0, "variant": "rows", "config": {"VEC": 4}, "seconds": 1e-3, "status": "measured"}
    file.write_text('{"format": "kernsearch trials 1"}\n' + json.dumps(row) + "\n")
    with pytest.raises(SpaceError, match="holds a variant of gemm float32"):
        of(file, store)


@pytest.mark.parametrize("where", ["nowhere", "none.db", "cpu-no-such-device"])
def test_the_command_says_so_in_one_line(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        main(["tune", "gemm", "--shape", "48x40x56", "--warm-from", where])
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == "" and told.err.count("\n") == 1 and where in told.err


def test_what_is_named_is_looked_at_before_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    with pytest.raises(SpaceError, match="nowhere"):  # and not that its arrays do not fit into memory
        run("gemm", shape=(300000, 300000, 300000), warm_from=("nowhere",))


# What a search does with them -----------------------------------------------------------------------------------------


def test_a_run_tries_what_a_near_shape_has_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    how = {"timeout": 300.0, "warm_start": False, "variant": "contraction"}
    rows = [("contraction", {"ROWS": n}, 1e-3 * n) for n in (16, 4)]
    file = tmp_path / "near.jsonl"
    lines = [{"number": i, "variant": v, "config": c, "seconds": s, "status": "measured"}
             for i, (v, c, s) in enumerate(rows)]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, [{"format": "kernsearch trials 1"}, *lines])) + "\n")
    run("gemm", shape=SHAPE, trials=3, warm_from=(str(file),), **how)
    studies = Studies(str(tmp_path / "studies.db"))
    trials = [t for t in studies.trials(studies.names[0]) if t.state == "measured"]
    learned = [t.config["ROWS"] for t in trials if t.attrs["origin"] == "learned"]
    default = next(t.config["ROWS"] for t in trials if t.attrs["origin"] == "default")
    assert learned == [n for n in (4, 16) if n != default]


def test_a_misleading_source_does_not_keep_a_search_from_the_best() -> None:
    rows = [("tiled", dict(config), 1.0 / seconds(config)) for config in SPACES["tiled"].iterate()]
    advice = transfer.advice([transfer.Source("wrong", rows)], SPACES)
    assert len(advice) == 1
    with Search("toy", SPACES, searcher="expected", trials=12, advice=advice) as search:
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, seconds(ask.config))
        best = search.best()
    assert best is not None and best.config == FAST


def test_early_stop_must_be_a_share() -> None:
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(SpaceError, match="--early-stop"):
            Request(early_stop=share).check()
