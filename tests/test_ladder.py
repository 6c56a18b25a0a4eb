"""The ladder: every rung beside its prediction, recordings that are printed again, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import exit_code, know_rates
from kernsearch.spaces.gemm.ladder import RUNGS

from kernsearch import backends, registry
from kernsearch.cases import climbed as climbed_before
from kernsearch.cases import ladder, recordings
from kernsearch.errors import CacheError, ProblemError
from kernsearch.model import ceilings
from kernsearch.report.cases import print_ladder
from kernsearch.tune.prospects import Prospects
from kernsearch.tune.request import Request

SHAPE = "96x80x64"
H200 = "cuda-nvidia-h200-sm90a"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A home of its own, where the CPU's rates are known already."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(folder))
        know_rates(folder)
        yield folder


@pytest.fixture(scope="module")
def climbed(home: Path) -> dict[str, Any]:
    """A ladder of a small product on the CPU, as it is kept."""
    path = home / "ladder.json"
    main_arguments = ("ladder", "gemm", "--shape", SHAPE, "--device", "cpu", "--tried", "2", "--out", str(path))
    assert exit_code(*main_arguments) == 0
    return json.loads(path.read_text())


def test_every_rung_is_predicted_and_measured(climbed: dict[str, Any]) -> None:
    assert [row["rung"] for row in climbed["rungs"]] == list(RUNGS["cpu"])
    for row in climbed["rungs"]:
        assert row["predicted_s"] > 0 and row["median_s"] > 0 and len(row["samples_s"]) == ladder.ROUNDS
        assert 0 < row["error"] <= 1 and row["config"]
        assert row["of_floor"] == pytest.approx(climbed["floor_s"] / row["median_s"])


def test_a_recording_is_printed_again_as_it_was(
    climbed: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("ladder", "gemm", "--from", str(home / "ladder.json")) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in RUNGS["cpu"]) and climbed["problem"] in told
    assert exit_code("ladder", "gemm", "--from", str(home / "ladder.json"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == climbed


def test_predictions_are_kept_before_anything_is_measured(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ladder.run("gemm", shape=(33, 17, 29), device="cpu", out=path, listener=stop)
    told = json.loads(path.read_text())
    assert all(row["predicted_s"] > 0 for row in told["rungs"]) and "samples_s" not in path.read_text()


def test_a_rung_that_the_problem_cannot_have_says_why() -> None:
    backend = backends.get("cuda")
    where = backend.compile_only("sm_80")
    problem = registry.problem("gemm", (2304, 1536, 4096), "bfloat16", backend="cuda")
    found = Prospects(registry.op("gemm"), problem, backend, where, ceilings.guess(where), Request())
    missing = {name: found.why_absent(name) for name in ladder.rungs("gemm", "cuda") if name not in found.spaces}
    assert missing == {
        "simt_pipeline": "no program of this problem fits its templates",
        "warp_specialized": "wgmma is Hopper's (sm_90a)",
    }


@pytest.mark.parametrize("backend", sorted(RUNGS))
def test_rungs_are_templates_of_their_backend(backend: str) -> None:
    assert set(RUNGS[backend]) <= {template.name for template in registry.templates(backend)}


def test_an_op_without_a_ladder_says_so() -> None:
    with pytest.raises(ProblemError, match=r"bmm has no ladder on cpu$"):
        ladder.rungs("bmm", "cpu")


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda told: told.update(schema=2), "want a recording of schema 1"),
        (lambda told: told.pop("floor_s"), "missing required field `floor_s`"),
        (lambda told: told["rungs"][1].pop("config"), "rung 2 of the ladder: 'config' is missing"),
        (lambda told: told["rungs"].append(3), "Expected `object`, got `int`, given 3"),
    ],
)
def test_a_recording_that_cannot_be_printed_is_refused_in_one_line(
    climbed: dict[str, Any], spoil: Any, complaint: str
) -> None:
    told = json.loads(json.dumps(climbed))
    spoil(told)
    with pytest.raises(CacheError) as error:
        climbed_before.recording(told)
    assert complaint in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda told: told["rungs"][0].update(predicted_s="fast"), "rungs[0].predicted_s: Expected `float`, got `str`"),
        (lambda told: told["rungs"][0].update(predicted_s=math.nan), "rungs[0].predicted_s: Expected `float` >="),
        (lambda told: told["rungs"][1]["samples_s"].__setitem__(2, math.nan), "rungs[1].samples_s[2]: Expected"),
        (lambda told: told.update(device=None), "device: Expected `object`, got `null`, given None"),
        (lambda told: told.update(rungs=[]), "rungs: Expected `array` of length >= 1, given []"),
        (lambda told: told.update(problem="softmax 64x64 float32"), "want a ladder of gemm, this is one of 'softmax'"),
        (lambda told: told.update(schema=7), "want a recording of schema 1; it has schema 7, this version reads 1"),
        (lambda told: told.pop("rungs"), "it holds no list of rungs"),
    ],
)
def test_a_damaged_ladder_is_one_line_with_its_file_and_the_command_that_mends_it(
    spoil: Any, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads(recordings.shipped("ladder-gemm")[H200].read_text())
    spoil(told)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(told))
    assert exit_code("ladder", "gemm", "--from", str(path)) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.err.startswith(f"kernsearch: {path}: ") and said.err.count("\n") == 1
    assert "`kernsearch ladder gemm --shape SIZES --out FILE` records it again" in said.err and not said.out


def test_a_ladder_of_another_op_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    path = recordings.shipped("ladder-gemm")[H200]
    assert exit_code("ladder", "softmax", "--from", str(path)) == 2
    said = capsys.readouterr()
    assert "want a ladder of softmax, this is one of 'gemm'" in said.err and not said.out
    assert exit_code("ladder", "--from", str(path)) == 0


def test_a_ladder_of_a_cpu_has_no_columns_of_a_gpu(climbed, capsys) -> None:
    print_ladder(climbed)
    told = capsys.readouterr().out
    headings = next(line for line in told.splitlines() if line.startswith("rung")).split("  ")
    assert {"predicted", "measured", "rate", "config"} <= {word.strip() for word in headings}
    assert "waves" not in told and "blocks" not in told and "shared" not in told


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (("gemm",), "want an OP and its --shape, or --from FILE"),
        (("gemm", "--shape", "0x1x1"), "shape"),
        (("gemm", "--shape", SHAPE, "--tried", "0", "--device", "cpu"), "--tried 0: want at least 1"),
        (("gemm", "--from", "missing.json"), "missing.json: cannot be read"),
        (("gemm", "--from", ""), "'': want a file, or a device"),
        *(
            (("gemm", "--from", H200, name, value), f"{name} beside --from: want one or the other")
            for name, value in {
                "--out": "ladder.json",
                "--shape": SHAPE,
                "--dtype": "float32",
                "--device": "cpu",
                "--layout": "nt",
                "--epilogue": "bias",
                "--option": "layout=nt",
                "--tried": "2",
                "--space": "own.py",
            }.items()
        ),
        (("gemm", "--shape", SHAPE, "--shape", "1x1x1"), "--shape is given twice: want each option once"),
        (("nothing", "--shape", SHAPE), "op 'nothing': want one of"),
    ],
)
def test_bad_requests_are_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    assert exit_code("ladder", *arguments) == 2
    told = capsys.readouterr()
    assert complaint in told.err and told.err.count("\n") == 1 and not told.out
