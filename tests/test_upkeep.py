"""Listing records, and checking compatible ones again."""

from __future__ import annotations

import json
from pathlib import Path

import handmade
import msgspec
import pytest

from kernsearch import backends, records, registry, runtime
from kernsearch.errors import CompilerError
from kernsearch.records import Measured, Record, lookup, upkeep

DEVICE = backends.resolve("cpu")[1]
PROBLEM = registry.problem("gemm", (33, 17, 29))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "home"))
    runtime.forget()
    return tmp_path


def keep(folder: Path, text: str = handmade.MULTIPLY, **changes: object) -> Path:
    folder.joinpath("multiply.c").write_text(text)
    told = handmade.record(PROBLEM, handmade.plan(folder, two=True), DEVICE, measurement=Measured(1e-3, (9e-4, 2e-3)))
    told = msgspec.structs.replace(told, fingerprint=msgspec.structs.replace(told.fingerprint, **changes))
    return lookup.store().write(told)


def mine() -> list[dict]:
    return [row for row in upkeep.list_records() if row["place"] == "user"]


def test_a_row_says_what_a_record_is_and_whether_it_may_be_used(home):
    path = keep(home)
    (row,) = mine()
    assert row["path"] == str(path)
    assert (row["problem"], row["variant"], row["status"], row["median_s"]) == (PROBLEM.key, "handmade", "exact", 1e-3)
    keep(home, compiler="another")
    assert mine()[0]["status"] == "compatible" and "was another" in mine()[0]["reason"]
    keep(home, arch="another")
    assert [row["status"] for row in mine()] == ["conflict", "compatible"]
    path.write_text("{")
    with pytest.warns(UserWarning, match="is skipped"):
        assert sorted(row["status"] for row in mine()) == ["conflict", "skipped"]
    json.dumps(upkeep.list_records())


def test_a_compatible_record_that_passes_the_gates_again_becomes_exact(home):
    path = keep(home, compiler="another", package="0.0.0")
    before = records.read(path)
    (row,) = upkeep.verify_records()
    assert row["status"] == "verified"
    assert mine()[0]["status"] == "exact"
    after = records.read(path)
    assert (after.measurement, after.plan, after.created) == (before.measurement, before.plan, before.created)
    assert after.evidence
    assert upkeep.verify_records() == []


def test_a_compatible_record_that_fails_the_gates_is_told_and_kept_where_nothing_loads_it(home):
    wrong = handmade.MULTIPLY.replace("k < depth", "k < depth - (depth > 20)")
    path = keep(home, wrong, compiler="another")
    before = path.read_bytes()
    (row,) = upkeep.verify_records()
    assert row["status"] == "rejected" and row["reason"].startswith("correctness")
    assert not path.exists() and Path(row["path"]).read_bytes() == before
    assert lookup.store().find(PROBLEM, DEVICE).record.variant != "handmade"
    assert mine() == [] and upkeep.verify_records() == []


def test_conflicts_and_files_that_are_no_records_are_not_verified(home):
    path = keep(home, name="another")
    path.with_name("gemm_1x1x1_float32_x.json").write_text("[]")
    with pytest.warns(UserWarning, match="is skipped"):
        assert upkeep.verify_records() == []


def test_verifying_without_a_compiler_is_an_error(home, monkeypatch):
    keep(home, package="0.0.0")
    monkeypatch.setenv("KERNSEARCH_CC", "/no/compiler")
    with pytest.raises(CompilerError):
        upkeep.verify_records()


def test_examining_a_record_gives_evidence(home):
    told = records.read(keep(home))
    assert isinstance(told, Record)
    assert upkeep.examine(told, DEVICE)
