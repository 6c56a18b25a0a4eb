"""Tuning from Python: what is asked, what is returned, what is kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends, records, registry
from kernsearch.candidate import Candidate
from kernsearch.errors import Rejected
from kernsearch.model import ceilings
from kernsearch.tune import Event, Request, parse_fix, run
from kernsearch.tune.compiling import Outcome
from kernsearch.tune.prospects import Prospects
from kernsearch.tune.session import Passed, Session

SHAPE = (44, 36, 52)
QUICK = {"timeout": 15.0, "trials": 6}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    return tmp_path


def prospects(shape: tuple[int, ...], **options: object) -> Prospects:
    backend, device = backends.resolve("cpu")
    problem = registry.problem("gemm", shape, None, backend="cpu")
    return Prospects(registry.op("gemm"), problem, backend, device, ceilings.guess(device), Request(**options))  # type: ignore[arg-type]


def test_a_variant_whose_maps_hold_no_operand_is_absent_and_says_why() -> None:
    backend = backends.get("cuda")
    device = backend.compile_only("sm_90a")  # type: ignore[attr-defined]
    problem = registry.problem("attention", "2x3x64x64x64", "bfloat16", backend="cuda")
    op = registry.op(problem.op)
    found = Prospects(op, problem, backend, device, ceilings.guess(device), Request())
    assert found.why_absent("warp_specialized_direct+reduce#2").endswith("to move it in bulk")


@pytest.mark.parametrize("text", ["MR", "=8", "MR=", "MR=x", "MR=-1", "MR=1.5", ""])
def test_a_fix_that_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ks.KernsearchError, match="LETTER=VALUE"):
        parse_fix([text])


def test_a_letter_is_fixed_once() -> None:
    with pytest.raises(ks.KernsearchError, match="--fix 'MR=6': MR=8 is given too, want each letter once"):
        parse_fix(["MR=8", "NR=48", "MR=6"])


def test_fixes_are_letters_and_whole_numbers() -> None:
    assert parse_fix(["MR=8", " NR = 48 "]) == {"MR": 8, "NR": 48}


def test_the_tuned_record_is_loaded_and_right(home: Path) -> None:
    heard: list[Event] = []
    result = run("gemm", shape=SHAPE, epilogue="bias,relu", listener=heard.append, **QUICK)
    assert result.recorded and result.path.is_file()
    assert {event.kind for event in heard} == {"note", "step"}
    assert result.counts["asked"] == result.counts["measured"] + result.counts["duplicates"] + sum(
        result.counts["rejected"].values()
    )
    plan = ks.load("gemm", shape=SHAPE, epilogue="bias,relu")
    assert plan.hit == "exact"
    assert plan.record.config == result.record.config
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((44, 52), (52, 36), (36,)))
    out = np.empty((44, 36), np.float32)
    plan(a, b, bias, out=out)
    np.testing.assert_allclose(out, np.maximum(a.astype(float) @ b + bias, 0), atol=1e-4)


def test_the_winner_beat_the_default_or_is_the_default(home: Path) -> None:
    result = run("gemm", shape=SHAPE, **QUICK)
    default = result.record.evidence["default"]
    same = default["variant"] == result.record.variant and default["config"] == result.record.config
    assert same == result.default_kept
    if not same:
        assert result.record.evidence["speedup"]["ci"][0] > 1


def test_who_falls_at_the_thorough_gates_is_not_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others play again, until one passes; where none does, the search says what it saw."""
    thoroughly = Session.qualified
    fallen: list[str] = []
    heard: list[Event] = []

    def qualified(session: Session, candidate: Candidate, outcome: Outcome) -> Passed:
        if len(fallen) < 2:
            fallen.append(candidate.name)
            raise Rejected("bits change from run to run", gate="correctness")
        return thoroughly(session, candidate, outcome)

    monkeypatch.setattr(Session, "qualified", qualified)
    result = run("gemm", shape=SHAPE, listener=heard.append, **QUICK)
    assert len(set(fallen)) == 2 and Candidate.of(result.record.variant, result.record.config).name not in fallen
    assert not set(fallen) & set(result.record.evidence["finalists"])
    assert result.refusals["correctness: bits change from run to run"] == 2
    said = [event.text for event in heard if event.kind == "note"]
    assert [f"{name} fell at the end: bits change from run to run" in said for name in fallen] == [True, True]


def test_where_nobody_passes_the_thorough_gates_nothing_is_recorded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def qualified(session: Session, candidate: Candidate, outcome: Outcome) -> Passed:
        raise Rejected("bits change from run to run", gate="correctness")

    monkeypatch.setattr(Session, "qualified", qualified)
    with pytest.raises(ks.KernsearchError, match=r"no candidate passed the gates.*bits change from run to run"):
        run("gemm", shape=SHAPE, timeout=10.0, trials=3)
    assert not list(home.glob("records/*/*.json"))


def test_a_record_keeps_what_its_search_saw(home: Path) -> None:
    """The best of each variant, importances of letters as far as they can be told, and refusals by gate."""
    result = run("gemm", shape=(90, 80, 70), fix={"MR": 4}, trials=12, timeout=20.0, early_stop=0.0)
    record, seen = result.record, result.record.evidence["searched"]
    assert seen["variants"][record.variant] > 0 and set(seen["variants"]) >= {record.variant}
    assert (
        sum(row["count"] for row in seen["refused"])
        == sum(result.counts["rejected"].values()) - (result.counts["rejected"]["space"])
    )
    assert set(seen["importances"]) <= set(record.config) and sum(seen["importances"].values()) <= 1.01
    assert set(record.evidence.get("tied", [])) < set(record.evidence["finalists"])


def test_letters_fixed_so_that_nothing_is_left_are_refused_in_a_study_that_goes_on_too(home: Path) -> None:
    """Each value is one of its letter's; together they are a tile too small for any CPU."""
    for _ in range(2):
        with pytest.raises(ks.KernsearchError, match=r"gemm.*: no candidate is left to search; register_tiled: \w+"):
            run("gemm", shape=SHAPE, variant="register_tiled", fix={"MR": 4, "NR": 4}, **QUICK)
        run("gemm", shape=SHAPE, variant="register_tiled", **QUICK)


@pytest.mark.parametrize("created", ["meanwhile", "2020-01-01T00:00:00+00:00"])
def test_a_faster_record_stays_if_another_run_made_it_meanwhile(home: Path, created: str) -> None:
    first = run("gemm", shape=SHAPE, **QUICK)
    assert first.record.measurement is not None
    faster = msgspec.structs.replace(first.record.measurement, median_s=1e-9)

    def other(event: Event) -> None:
        when = records.now() if created == "meanwhile" else created
        records.write(msgspec.structs.replace(first.record, measurement=faster, created=when), home / "records")

    second = run("gemm", shape=SHAPE, listener=other, early_stop=0.0, timeout=15.0, trials=8)
    assert second.recorded is (created != "meanwhile")
    assert (records.read(second.path).measurement == faster) is (created == "meanwhile")


def test_looking_at_a_slow_part_on_purpose_does_not_cost_the_faster_record(home: Path) -> None:
    whole = run("gemm", shape=(200, 180, 160), **QUICK)
    part = run("gemm", shape=(200, 180, 160), variant="contraction", timeout=5.0, trials=100)
    assert part.record.variant == "contraction"
    assert not part.recorded and part.path == whole.path
    assert ks.load("gemm", shape=(200, 180, 160)).record.variant == whole.record.variant


def test_a_derivation_of_a_record_leads_to_its_variant(home: Path) -> None:
    from kernsearch.derive import Step, replay

    result = run("gemm", shape=SHAPE, epilogue="gelu", **QUICK)
    root = registry.op("gemm").root(registry.problem("gemm", SHAPE, None, backend="cpu", epilogue="gelu"))
    reached = replay(root, [Step.from_json(step) for step in result.record.derivation])
    found = prospects(SHAPE)
    assert reached.key != root.key
    assert result.record.variant in found.variants


def test_hopeless_predictions_are_left_out_unless_asked_for() -> None:
    found = prospects((2304, 1544, 4096))
    slow = {"ROWS": 1}
    assert found.unwanted("contraction", slow) is None
    best = found.predicted(found.spaces)[0]
    assert best.variant != "contraction"
    assert "times slower" in (found.unwanted("contraction", slow) or "")
    narrowed = prospects((2304, 1544, 4096), variant="contraction")
    narrowed.predicted({"contraction": narrowed.spaces["contraction"]})
    assert narrowed.unwanted("contraction", slow) is None


def test_a_workspace_limit_refuses_with_numbers() -> None:
    found = prospects((512, 512, 512), max_workspace=10)
    config = next(found.spaces["register_tiled"].iterate())
    assert "workspace, allowed 10" in (found.unwanted("register_tiled", config) or "")
    assert found.workspace_bytes(Candidate.of("register_tiled", config)) > 10


def test_a_problem_beyond_memory_is_refused_before_anything_runs() -> None:
    with pytest.raises(ks.DeviceError, match="GiB"):
        prospects((300000, 300000, 300000))


def test_a_refusal_by_a_time_limit_is_forgotten_when_there_is_more_time(home: Path) -> None:
    with pytest.raises(ks.NothingSurvived, match="still running"):
        run("gemm", shape=SHAPE, run_timeout=1e-6, **QUICK)
    assert run("gemm", shape=SHAPE, **QUICK).counts["measured"] >= 1
    assert run("gemm", shape=SHAPE, **QUICK).counts["rejected"]["execution"] == 0


def test_a_folder_that_cannot_take_a_record_is_told_before_the_search(home: Path) -> None:
    (home / "records").write_text("in the way")
    heard: list[Event] = []
    with pytest.raises(ks.CacheError, match="records"):
        run("gemm", shape=SHAPE, listener=heard.append, **QUICK)
    assert heard == []
