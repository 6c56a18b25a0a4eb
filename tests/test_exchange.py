"""Moving records between caches, and clearing them away."""

from __future__ import annotations

import json
from pathlib import Path

import handmade
import msgspec
import pytest

from kernsearch import backends, records, registry, runtime
from kernsearch.errors import CacheError
from kernsearch.records import Measured, exchange, lookup

DEVICE = backends.resolve("cpu")[1]
SHAPES = ((33, 17, 29), (8, 9, 10))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    go(tmp_path, monkeypatch, "first")
    return tmp_path


def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Use another cache from now on."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / name))
    runtime.forget()
    return tmp_path / name


def made(folder: Path, seconds: float = 1e-3, shape=SHAPES[0], created: str = "2026-01-01", policy="p", **print_):
    problem = registry.problem("gemm", shape)
    measured = Measured(seconds, (seconds, seconds), policy=policy)
    told = handmade.record(problem, handmade.plan(folder), DEVICE, measurement=measured, created=created)
    return msgspec.structs.replace(told, fingerprint=msgspec.structs.replace(told.fingerprint, **print_))


def mine() -> list[records.Record]:
    return [records.read(path) for path in sorted(lookup.store().user.glob("*/*.json"))]


def statuses(rows) -> list[str]:
    return [row["status"] for row in rows]


def test_what_is_exported_is_imported_whole_elsewhere(home, monkeypatch):
    for shape in SHAPES:
        lookup.store().write(made(home, shape=shape))
    told = mine()
    assert statuses(exchange.export_records(home / "all.json")) == ["exported", "exported"]
    go(home, monkeypatch, "second")
    assert statuses(exchange.import_records(home / "all.json")) == ["added", "added"]
    assert mine() == told
    assert statuses(exchange.import_records(home / "all.json")) == ["kept", "kept"]


def test_one_record_can_be_exported_by_its_name(home):
    for shape in SHAPES:
        path = lookup.store().write(made(home, shape=shape))
    name = f"{path.parent.name}/{path.stem}"
    assert [row["record"] for row in exchange.export_records(home / "one.json", [name])] == [name]
    with pytest.raises(CacheError, match="cache list"):
        exchange.export_records(home / "one.json", ["nothing/such"])


@pytest.mark.parametrize(
    ("mine_s", "theirs_s", "policy", "created", "want"),
    [
        (2e-3, 1e-3, "p", "2025-01-01", "replaced"),  # faster, though older
        (1e-3, 2e-3, "p", "2027-01-01", "kept"),  # slower, though newer
        (1e-3, 2e-3, "q", "2027-01-01", "replaced"),  # measured in another way: the newer
        (2e-3, 1e-3, "q", "2025-01-01", "kept"),
    ],
)
def test_of_two_records_of_a_problem_the_better_stays(home, monkeypatch, mine_s, theirs_s, policy, created, want):
    other = go(home, monkeypatch, "other")
    lookup.store().write(made(home, theirs_s, policy=policy, created=created))
    go(home, monkeypatch, "mine")
    lookup.store().write(made(home, mine_s))
    assert statuses(exchange.merge_records(other)) == [want]
    (left,) = mine()
    assert left.measurement.median_s == (theirs_s if want == "replaced" else mine_s)


def test_records_of_other_devices_are_taken_along_and_those_of_other_sources_are_not(home, monkeypatch):
    other = go(home, monkeypatch, "other")
    lookup.store().write(made(home, device="cpu-another-4t", name="another"))
    lookup.store().write(made(home, shape=SHAPES[1], sources={"gemm/c/02_register_tiled.c": "0"}))
    go(home, monkeypatch, "mine")
    rows = {row["status"]: row["reason"] for row in exchange.merge_records(other / "records")}
    assert set(rows) == {"added", "skipped"} and "has changed" in rows["skipped"]
    assert [record.fingerprint.device for record in mine()] == ["cpu-another-4t"]


def test_names_that_lead_out_of_the_store_are_refused(home):
    told = made(home, device="../../elsewhere").to_json()
    (home / "bad.json").write_text(json.dumps({"kernsearch": "records", "schema": 1, "records": [told, {"schema": 1}]}))
    rows = exchange.import_records(home / "bad.json")
    assert statuses(rows) == ["skipped", "skipped"] and "is no name" in rows[0]["reason"]
    assert not (home / "elsewhere").exists() and mine() == []


@pytest.mark.parametrize("text", ["", "[]", '{"records": []}', '{"kernsearch": "records"}'])
def test_a_file_that_nobody_exported_is_told(home, text):
    (home / "odd.json").write_text(text)
    with pytest.raises(CacheError, match="cache export"):
        exchange.import_records(home / "odd.json")


def test_there_must_be_something_to_merge_and_not_into_itself(home):
    (home / "empty").mkdir()
    for place, said in ((home / "empty", "no records"), (home / "none", "cannot be read")):
        with pytest.raises(CacheError, match=said):
            exchange.merge_records(place)
    lookup.store().write(made(home))
    with pytest.raises(CacheError, match="your own"):
        exchange.merge_records(home / "first")


def test_pruning_removes_what_nothing_uses_and_tells_why(home):
    good = lookup.store().write(made(home))
    folder = good.parent
    elsewhere = lookup.store().write(made(home, device="cpu-another-4t", name="another"))
    stale = lookup.store().write(made(home, shape=SHAPES[1], sources={"gemm/c/02_register_tiled.c": "0"}))
    (folder / "gemm_1x1x1_float32_x.json").write_text("{")
    (folder / "gemm_2x2x2_float32_x.json.rejected").write_text("{}")
    double = folder / good.name.replace(".json", ".abc.json")
    double.write_text(json.dumps(made(home, 2e-3).to_json()))
    before = sorted(folder.parent.glob("*/*"))
    with pytest.warns(UserWarning, match="is skipped"):
        planned = exchange.prune_records(dry_run=True)
    assert sorted(folder.parent.glob("*/*")) == before and set(statuses(planned)) == {"would be removed"}
    done = exchange.prune_records()
    assert [row["record"] for row in done] == [row["record"] for row in planned] and len(done) == 4
    assert good.exists() and elsewhere.exists() and not stale.exists() and not double.exists()
    assert exchange.prune_records() == []
