"""What `explain` tells from a record: of this machine, of a device that is elsewhere, and of one that nobody knows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import handmade
import pytest
from click.testing import CliRunner
from command import know_rates
from msgspec.structs import replace

from kernsearch import backends, registry
from kernsearch.cli.looking import explain
from kernsearch.errors import Rejected
from kernsearch.gates import Bench
from kernsearch.model import ceilings
from kernsearch.records import Measured, Record, lookup, read
from kernsearch.records.lookup import shipped_folder
from kernsearch.report import bounds, searched, timed_steps
from kernsearch.report.explain import explained, explanation
from kernsearch.report.explained import RATES, print_explanation
from kernsearch.report.setting import here
from kernsearch.search.tpe import importances
from kernsearch.tune import run

SHIPPED = sorted((shipped_folder() / "cuda-nvidia-h200-sm90a").glob("*.json"))
HOPPER = [path for path in SHIPPED if path.name.startswith("gemm_")]
EACH = list(
    {(path.stem.split("_")[0], read(path).variant): path for path in SHIPPED}.values()
)  # of each op and variant
WINNER = {"KC": 64, "MC": 32}
FINALISTS = {"tiled KC=64 MC=32": 1e-3, "tiled KC=32 MC=32": 1.01e-3, "plain": 2e-3}


def record(tmp_path: Path, tie: bool = False, **evidence: Any) -> Record:
    problem, device = registry.problem("gemm", (33, 17, 29)), backends.resolve("cpu")[1]
    told = {"finalists": FINALISTS, "verdict": "beats it"} | evidence
    made = handmade.record(problem, handmade.plan(tmp_path), device, evidence=told,
                           measurement=Measured(1e-3, (9e-4, 2e-3)))  # fmt: skip
    return replace(made, variant="tiled", config=WINNER, tie=tie)


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_every_shipped_record_of_a_gpu_is_explained_where_there_is_none(path: Path) -> None:
    kept = read(path)
    told = explained(kept)
    assert told["rates"] in ("shipped", "guessed") and told["steps"][0]["rule"] == "textbook"
    first, last = told["steps"][0], told["steps"][-1]
    assert last["candidate"] == kept.variant and last["measured_s"] == kept.measurement.median_s  # type: ignore[union-attr]
    assert first["predicted_s"] > last["predicted_s"] > 0
    rules = [step["rule"] for step in kept.derivation if isinstance(step["site"]["choice"], str)]
    assert [step["rule"] for step in told["steps"][1:-1]] == rules
    assert {"registers", "smem", "waves", "resident_blocks"} <= told["bounds"]["evidence"].keys()
    json.dumps(told)


@pytest.mark.timeout(300)
def test_steps_are_timed_in_turns_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    know_rates(tmp_path)
    said: list[str] = []
    plain = explanation("softmax", shape=(16, 300))
    told = explanation("softmax", shape=(16, 300), measure=2, listener=said.append)
    assert [step["candidate"] for step in told["steps"]] == [step["candidate"] for step in plain["steps"]]
    assert all(step["measured_s"] is None for step in plain["steps"])
    assert all(step["measured_s"] > 0 and step["measured_in"] == "rounds" for step in told["steps"])
    assert told["steps"][-1]["config"] == plain["steps"][-1]["config"]  # the winner is timed as it is
    assert "round 9 of 9" in said and any(text.startswith("gates: ") for text in said)


@pytest.mark.timeout(300)
def test_a_record_keeps_what_the_steps_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    know_rates(tmp_path)
    made = run("softmax", shape=(16, 300), trials=3, timeout=20.0)
    timed = explanation("softmax", shape=(16, 300), measure=1)["steps"]
    for told in (explanation("softmax", shape=(16, 300)), explained(read(made.path))):
        again = [(step["candidate"], step["config"], step["measured_s"], step["measured_in"]) for step in told["steps"]]
        assert again == [(s["candidate"], s["config"], s["measured_s"], "rounds") for s in timed]


def test_a_step_whose_configs_are_refused_says_by_which_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, device = backends.resolve("cpu")
    setting = here(registry.problem("softmax", (16, 300)), backend, device, measure=False)
    rows = [{"rule": "textbook", "candidate": name, "config": None} for name in ("row_online", "row_passes")]
    examine = Bench.examine

    def strict(self: Any, plan: Any, *rest: Any, **how: Any) -> Any:
        if plan.kernels[0].template == "row_online":
            raise Rejected("two runs differ", gate="correctness")
        return examine(self, plan, *rest, **how)

    monkeypatch.setattr(Bench, "examine", strict)
    timed_steps.take(setting, rows, backend, 1, rounds=2)
    assert rows[0]["refused"] == {"gate": "correctness", "reason": "two runs differ"} and "measured_s" not in rows[0]
    assert rows[1]["measured_s"] > 0


def test_it_is_read_by_a_person_and_by_a_program() -> None:
    run = CliRunner()
    text = run.invoke(explain, ["--from", str(HOPPER[0])], catch_exceptions=False).output
    rates = RATES[explained(read(HOPPER[0]))["rates"]]
    for words in (rates, "derivation of", "predicted", "what bounds it", "roofline:"):
        assert words in text
    told = json.loads(run.invoke(explain, ["--from", str(HOPPER[0]), "--json"], catch_exceptions=False).output)
    assert {"steps", "winner", "bounds", "importances", "refused"} <= told.keys()


@pytest.mark.parametrize("arch", ["sm_11", "x86_64-avx512"])
def test_of_a_device_that_nobody_knows_nothing_is_predicted(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No rates and no facts: the derivation and what was measured are told all the same."""
    kept = read(HOPPER[0])
    told = explained(replace(kept, fingerprint=replace(kept.fingerprint, device="elsewhere", arch=arch)))
    assert told["rates"] == "unknown" and all(step["predicted_s"] is None for step in told["steps"])
    assert told["steps"][0]["candidate"] and told["steps"][-1]["measured_s"] > 0 and "least_s" not in told["bounds"]
    print_explanation(told)
    assert "no predictions" in capsys.readouterr().out


def test_a_variant_that_is_derived_no_more_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(explained(record(tmp_path)))
    assert "no program of today is tiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tie", "evidence", "significant"),
    [
        (False, {}, True),
        (True, {"verdict": "faster; tied with plain, tiled KC=32 MC=32"}, False),
        (True, {"verdict": "faster; tied with plain"}, True),
        (True, {"verdict": "the default is kept"}, None),
        (True, {"tied": ["tiled KC=32 MC=32"]}, False),
        (False, {"tied": []}, True),
    ],
)
def test_a_runner_up_is_told_from_the_winner_or_not(
    tmp_path: Path, tie: bool, evidence: dict[str, Any], significant: bool | None
) -> None:
    second = searched.runner_up(record(tmp_path, tie, **evidence))
    assert second is not None and second["name"] == "tiled KC=32 MC=32"
    assert second["significant"] is significant and second["ratio"] == pytest.approx(1.01)


def test_what_was_measured_comes_from_the_play_off_before_the_search(tmp_path: Path) -> None:
    kept = record(tmp_path, searched={"variants": {"tiled": 5e-4, "plain": 1e-4, "naive": 7e-3}})
    assert searched.measured(kept, "tiled", WINNER) == {"measured_s": 1e-3, "measured_in": "play-off"}
    assert searched.measured(kept, "plain") == {"measured_s": 2e-3, "measured_in": "play-off"}
    assert searched.measured(kept, "naive") == {"measured_s": 7e-3, "measured_in": "search"}
    assert searched.measured(kept, "other") == {"measured_s": None, "measured_in": None}


def test_refusals_are_counted_by_gate(tmp_path: Path) -> None:
    rows = [{"gate": "compile", "reason": "spills", "count": 2}, {"gate": "compile", "reason": "warns", "count": 1},
            {"gate": "correctness", "reason": "off", "count": 4}]  # fmt: skip
    told = searched.refused(record(tmp_path, searched={"refused": rows}))
    assert told == {"by_gate": {"compile": 3, "correctness": 4}, "reasons": rows}
    older = searched.refused(record(tmp_path, refusals={"off": 4}))
    assert older["reasons"] == [{"gate": None, "reason": "off", "count": 4}]


def test_the_letter_that_matters_is_the_most_important() -> None:
    trials = [({"A": a, "B": b, "C": 1}, 1.0 + a + 0.01 * b) for a in range(6) for b in range(6)]
    told = importances(trials)
    assert list(told) == ["A", "B"] and told["A"] > 0.7 and sum(told.values()) == pytest.approx(1, abs=1e-3)
    assert importances(trials[:5]) == {} and importances([]) == {}


def test_a_measured_time_near_the_roof_is_bound_by_the_roof() -> None:
    kept = read(next(path for path in SHIPPED if path.name.startswith("softmax_4096x65536_bfloat16")))
    told = explained(kept)["bounds"]
    assert told["roof"] == "memory" and told["of_least"] <= bounds.AT_THE_ROOF
    assert told["says"][0].startswith("memory: ")
    assert told["of_least"] * told["of_copy"] == pytest.approx(1) and told["of_peak"] < told["of_copy"]


def test_a_record_is_explained_without_measuring_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine whose rates are not known yet they are guessed, which takes no time."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    device = backends.resolve("cpu")[1]
    assert ceilings.kept(device.key) is None
    assert explained(record(tmp_path))["rates"] == "guessed" and ceilings.kept(device.key) is None


def test_rates_of_a_device_that_is_elsewhere_are_those_shipped_unless_the_user_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates that this CPU was measured to have, as if they were those of the GPU that the record is of."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(lookup, "shipped_folder", lambda: tmp_path / "shipped")
    kept = read(HOPPER[0])
    key, (backend, here_) = kept.fingerprint.device, backends.resolve("cpu")
    guessed = explained(kept)
    assert guessed["rates"] == "guessed"
    measured = ceilings.of(backend, here_, again=True)
    for place, says in (("shipped/recordings/{}/ceilings.json", "shipped"), ("home/ceilings/{}.json", "measured")):
        path = tmp_path / place.format(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(measured)))
        told = explained(kept)
        assert told["rates"] == says and told["bounds"]["copy_bytes_s"] == measured.copy
        assert told["bounds"]["peak_flops"] != guessed["bounds"]["peak_flops"]
    text = CliRunner().invoke(explain, ["--from", str(HOPPER[0])], catch_exceptions=False).output
    assert "guessed" not in text


def test_a_device_that_can_be_measured_is_not_given_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(lookup, "shipped_folder", lambda: tmp_path)
    backend, device = backends.resolve("cpu")
    path = tmp_path / "recordings" / device.key / "ceilings.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**asdict(ceilings.guess(device)), "measured": True, "copy": 123.0}))
    assert explained(record(tmp_path))["rates"] == "shipped"
    assert ceilings.of(backend, device).copy != 123.0
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("KERNSEARCH_CC", str(tmp_path / "no-such-compiler"))
    assert ceilings.of(backend, device).copy == 123.0  # where it cannot be measured they are better than a guess


def test_bad_requests_are_one_line() -> None:
    run = CliRunner()
    for arguments, says in (
        ([], "want an OP and its --shape, or --from RECORD"),
        (["gemm"], "want an OP and its --shape"),
        (["gemm", "--from", str(HOPPER[0])], "OP beside --from: want one or the other"),
        *((["--from", str(HOPPER[0]), *words.split()], f"{words.split()[0]} beside --from: want one or the other")
          for words in ("--shape 8x8x8", "--dtype float32", "--device cpu", "--layout nn", "--epilogue none",
                        "--option result=log", "--rank", "--measure 2")),
    ):  # fmt: skip
        done = run.invoke(explain, arguments)
        assert done.exit_code == 2 and says in done.output


def test_without_a_record_the_models_picks_are_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    monkeypatch.setattr(ceilings, "of", lambda backend, device: ceilings.guess(device))
    told = explanation("gemm", shape=(37, 41, 43), device="cpu")
    assert told["ranked"] and "winner" not in told and len(told["predicted"]) > 5
    assert told["steps"][-1]["measured_s"] is None and told["bounds"]["says"]
