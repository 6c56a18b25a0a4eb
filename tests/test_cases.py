"""Case studies: what is written before measuring, what the verdict is made of, and how recordings are read."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import exit_code, know_rates

from kernsearch import backends, registry
from kernsearch.cases import cases, find, judged, recording, recordings, run
from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.cases.prepare import Prepared, all_prepared
from kernsearch.cases.verdict import TIE, ratio, word
from kernsearch.device import Device
from kernsearch.errors import CacheError, NothingSurvived, ProblemError, SpaceError
from kernsearch.model import ceilings
from kernsearch.records import classes

SHAPE = (40, 48, 56)
CPU = backends.get("cpu")
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")
FILE = f'''
"""A case of one's own."""
from kernsearch.cases.case import Arm, Case, Comparison

def arms(device):
    return (Arm("plain", {SHAPE}, ("contraction",)), Arm("tiled", {SHAPE}, ("unpacked",)))

CASES = (
    Case("tiles", "gemm", "tiles are faster", "small products end soon", ("cpu",), arms,
         lambda device: (Comparison("tiles instead of none", "plain", "tiled"),)),
)
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where the CPU's rates are known already."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "home"))
    know_rates(tmp_path / "home")
    return tmp_path


@pytest.fixture
def own_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that declares a case; it is forgotten after the test."""
    monkeypatch.setattr(registry, "_extra", [])
    path = tmp_path / "own_case.py"
    path.write_text(FILE)
    yield path


def data(before: list[float], after: list[float], **changes: Any) -> dict[str, Any]:
    """A recording of two arms."""
    arms = [
        {"label": label, "variant": "v", "config": {"BM": 8}, "flops": 100.0, "predicted_s": 1e-3, "samples_s": samples}
        for label, samples in (("one", before), ("other", after))
    ]
    return {
        "schema": 1, "case": "tiles", "claim": "c", "mechanism": "m", "date": "2026-01-01", "policy": "p",
        "device": {"key": "k", "name": "n"}, "arms": arms,
        "comparisons": [{"label": "a change", "before": "one", "after": "other", "per": "call"}], **changes,
    }  # fmt: skip


def wavering(centre: float) -> list[float]:
    return [centre * (1 + 0.002 * math.sin(7 * i)) for i in range(15)]


# verdicts


@pytest.mark.parametrize("before, after, said", [(1.0, 1.5, "loses"), (1.5, 1.0, "wins"), (1.0, 1.0, "tie")])
def test_the_verdict_follows_from_samples(before: float, after: float, said: str) -> None:
    told = judged(data(wavering(before), wavering(after)))
    assert told["verdict"]["verdict"] == said == told["comparisons"][0]["verdict"]
    assert told["verdict"]["size"] == pytest.approx(after / before, rel=0.01)


def test_swapping_the_samples_of_two_arms_turns_the_verdict() -> None:
    found = judged(data(wavering(1.0), wavering(2.0)))
    swapped = copy.deepcopy(found)
    swapped["arms"][0]["samples_s"], swapped["arms"][1]["samples_s"] = (
        found["arms"][1]["samples_s"], found["arms"][0]["samples_s"])  # fmt: skip
    again = judged(swapped)
    assert (found["verdict"]["verdict"], again["verdict"]["verdict"]) == ("loses", "wins")
    assert again["verdict"]["size"] == pytest.approx(1 / found["verdict"]["size"])
    assert [arm["median_s"] for arm in again["arms"]] == [arm["median_s"] for arm in found["arms"]][::-1]


def test_what_a_recording_says_of_verdicts_counts_for_nothing() -> None:
    lied = data(wavering(1.0), wavering(2.0), verdict={"verdict": "wins"})
    lied["arms"][0]["median_s"] = 9.0
    lied["comparisons"][0] |= {"measured": 0.5, "ci": [0.4, 0.6], "verdict": "wins"}
    assert judged(lied) == judged(data(wavering(1.0), wavering(2.0)))
    assert judged(judged(lied)) == judged(lied)


def test_a_small_or_an_uncertain_difference_is_a_tie() -> None:
    nearly = 1 + TIE / 2
    assert judged(data(wavering(1.0), [nearly * s for s in wavering(1.0)]))["verdict"]["verdict"] == "tie"
    noisy = judged(data([1.0, 2.0, 1.0, 2.0] * 4, [2.0, 1.1, 2.0, 1.1] * 4))["verdict"]
    assert noisy["ci"][0] < 1 < noisy["ci"][1] and noisy["verdict"] == "tie"


def test_words_need_the_interval_and_the_size() -> None:
    assert word(1.2, 1.1, 1.3) == "loses" and word(0.8, 0.7, 0.9) == "wins"
    assert word(1.2, 0.9, 1.4) == word(0.8, 0.6, 1.1) == word(1 + TIE / 2, 1.001, 1.009) == "tie"


def test_drift_that_all_share_does_not_count() -> None:
    slower = [1.0 + 0.1 * i for i in range(15)]
    value, low, high = ratio(slower, [1.2 * s for s in slower])
    assert value == pytest.approx(1.2) and low == pytest.approx(1.2) and high == pytest.approx(1.2)


def test_per_operation_a_larger_problem_may_take_longer() -> None:
    told = data(wavering(1.0), wavering(1.5))
    told["comparisons"][0]["per"] = "flop"
    told["arms"][1]["flops"] = 200.0
    assert judged(told)["verdict"]["verdict"] == "wins"
    assert judged(told)["comparisons"][0]["predicted"] == pytest.approx(0.5)


# recordings


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda d: d.update(case="waves"), "want a recording of case 'tiles', this is one of 'waves'"),
        (lambda d: d.update(schema=99), "want a recording of schema 1"),
        (lambda d: d.pop("device"), "missing required field `device`"),
        (lambda d: d["arms"][1].pop("samples_s"), "a prediction without a measurement has no verdict"),
        (lambda d: d["arms"].append("arm"), "arms[2]: Expected `object`, got `str`"),
        (lambda d: d["arms"][1]["samples_s"].append(-1.0), "arms[1].samples_s[15]: Expected `float` >="),
        (lambda d: d["arms"][1]["samples_s"].append(1.0), "want as many samples of each arm"),
        (lambda d: d["arms"][0].pop("predicted_s"), "arms[0]: Object missing required field `predicted_s`"),
        (lambda d: d["comparisons"][0].update(after="nobody"), "want two of the arms"),
        (lambda d: d["comparisons"].clear(), "comparisons: Expected `array` of length >= 1"),
    ],
)
def test_a_recording_that_cannot_be_judged_is_refused_in_one_line(spoil: Any, complaint: str) -> None:
    told = data(wavering(1.0), wavering(2.0))
    spoil(told)
    with pytest.raises(CacheError) as error:
        recording(told, "tiles")
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_recorded_data_is_judged_and_printed_without_a_device(
    home: Path, own_case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / "data.json"
    path.write_text(json.dumps(data(wavering(1.0), wavering(2.0))))
    assert exit_code("case", "tiles", "--space", str(own_case), "--from", str(path)) == 0
    told = capsys.readouterr().out
    assert "verdict: loses (a change: slower, 2.00 times the time)" in told and "BM=8" in told
    assert exit_code("case", "tiles", "--from", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["verdict"] == "loses"


# running


def test_a_case_of_ones_own_is_predicted_measured_and_judged(
    home: Path, own_case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = home / "out"
    assert exit_code("case", "tiles", "--space", str(own_case), "--device", "cpu", "--out", str(out)) == 0
    assert "verdict: " in capsys.readouterr().out
    predicted, found = (json.loads((out / name).read_text()) for name in ("prediction.json", "data.json"))
    assert all("samples_s" not in arm and arm["predicted_s"] > 0 for arm in predicted["arms"])
    assert "verdict" not in predicted
    for before, after in zip(predicted["arms"], found["arms"], strict=True):
        assert {key: after[key] for key in before} == before
        assert len(after["samples_s"]) == 15 and after["evidence"]["compile"]
    assert judged(recording(found, "tiles")) == found


def test_predictions_are_kept_when_the_measurement_fails(home: Path) -> None:
    def arms(device: Device) -> tuple[Arm, ...]:
        return (Arm("plain", SHAPE, ("contraction",)), Arm("other", SHAPE, ("unpacked",)))

    def stop(text: str) -> None:
        if text.startswith("gates"):
            raise KeyboardInterrupt

    case = Case("broken", "gemm", "", "", ("cpu",), arms, lambda device: (Comparison("c", "plain", "other"),))
    with pytest.raises(KeyboardInterrupt):
        run(case, device="cpu", out=home / "out", listener=stop)
    told = json.loads((home / "out" / "prediction.json").read_text())
    assert [arm["label"] for arm in told["arms"]] == ["plain", "other"]
    assert "samples_s" not in json.dumps(told) and [p.name for p in (home / "out").iterdir()] == ["prediction.json"]


def test_an_arm_that_does_not_compile_ends_the_case_with_its_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_extra", [])
    (home / "broken.c").write_text("#error this does not compile\n")
    (home / "space.py").write_text(
        "from dataclasses import replace\nfrom pathlib import Path\n"
        "from kernsearch.spaces.generic.templates.cpu import templates as own\n"
        "def templates():\n"
        "    plain = next(t for t in own() if t.name == 'contraction')\n"
        f"    return (replace(plain, name='broken', source={str(home / 'broken.c')!r}),)\n"
    )
    registry.use_file(home / "space.py")
    arm = Arm("the broken one", SHAPE, ("broken",))
    case = Case("broken", "gemm", "", "", ("cpu",), lambda device: (arm,), lambda device: ())
    with pytest.raises(NothingSurvived, match=r"the broken one is refused by gate compile: .*this does not compile"):
        run(case, device="cpu", out=home / "out")
    assert (home / "out" / "prediction.json").exists() and not (home / "out" / "data.json").exists()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (
            ("nope",),
            "case 'nope': want one of bigger-tile-short-k, fast-math, fusion, hot-cache, multicast, occupancy, "
            "one-block-row, online-softmax, overlap-ablation, packing, padding-or-swizzle, pipeline-stages, "
            "register-spill, split-k, threads, wave-quantization",
        ),
        (("wave-quantization", "--device", "cpu"), "--from cuda-nvidia-h200-sm90a shows what was recorded there"),
        (("wave-quantization", "--from", "missing.json"), "missing.json: cannot be read"),
        (("list", "--space", "missing.py"), "want a readable Python file"),
    ],
)
def test_bad_requests_are_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], complaint: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(registry, "_extra", [])
    assert exit_code("case", *arguments) == 2
    told = capsys.readouterr()
    assert complaint in told.err and told.err.count("\n") == 1 and not told.out


def test_cases_are_listed(home: Path, own_case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("case", "list", "--space", str(own_case)) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("pipeline-stages", "register-spill", "wave-quantization", "tiles"))
    listed = " ".join(told.split())
    for name, case in cases().items():
        assert f"{name}: {case.op} on {' and '.join(case.backends)}, recorded on " in listed and case.claim in listed
        assert all(where in listed for where in recordings.shipped(name))
    assert "recorded on nowhere yet" in listed  # the case of the space file
    assert max(map(len, told.splitlines())) <= 100
    assert exit_code("case", "list", "--json") == 0
    assert [case["name"] for case in json.loads(capsys.readouterr().out)["cases"]] == sorted(cases())


def test_two_cases_of_one_name_are_refused(own_case: Path) -> None:
    registry.use_file(own_case)
    registry.use_file(own_case)
    with pytest.raises(SpaceError, match="case 'tiles' is declared twice"):
        cases()


def test_a_case_that_says_nothing_about_a_device_says_so(home: Path) -> None:
    case = Case("empty", "gemm", "", "", ("cpu",), lambda device: (), lambda device: ())
    with pytest.raises(ProblemError, match="case 'empty' says nothing about cpu-"):
        run(case, device="cpu")


# the cases of gemm


def arms_of(name: str, arch: str, **facts: int) -> tuple[Device, dict[str, Prepared]]:
    backend = backends.get("cuda")
    device = backend.compile_only(arch)
    device = replace(device, facts={**device.facts, **facts})
    case = find(name)
    prepared = all_prepared(case.arms(device), case.op, backend, device, ceilings.guess(device))
    return device, {one.arm.label: one for one in prepared}


@pytest.mark.parametrize("name", ["pipeline-stages", "register-spill", "wave-quantization"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_arms_exist_on_every_architecture_and_comparisons_are_between_them(name: str, arch: str) -> None:
    device, arms = arms_of(name, arch)
    comparisons = find(name).comparisons(device)
    assert {c.before for c in comparisons} | {c.after for c in comparisons} <= set(arms)
    assert len({c.label for c in comparisons}) == len(comparisons) > 1
    assert all(one.prediction.seconds > 0 and math.isfinite(one.prediction.seconds) for one in arms.values())


@pytest.mark.parametrize(
    "arch, sms", [("sm_90a", 132), ("sm_90a", 114), ("sm_90a", 78), ("sm_80", 108), ("sm_89", 142)]
)
def test_the_wave_ends_where_the_multiprocessors_do(arch: str, sms: int) -> None:
    device, arms = arms_of("wave-quantization", arch, sms=sms, threads=sms)
    first = find("wave-quantization").comparisons(device)[0]
    before, after = arms[first.before], arms[first.after]
    assert before.waves is not None and after.waves is not None
    assert before.waves <= 1 < after.waves
    assert before.waves > 1 - 9 / sms, "one more column of 9 tiles did not fit"
    assert before.candidate.config == after.candidate.config
    assert after.problem.shape[1] == before.problem.shape[1] + 8


def test_a_device_of_few_multiprocessors_has_no_wave_to_fill() -> None:
    _, arms = arms_of("wave-quantization", "sm_80", sms=8, threads=8)
    assert arms == {}


@pytest.mark.parametrize("name, letters", [("register-spill", {"TM", "TN"}), ("pipeline-stages", {"STAGES"})])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_arms_differ_in_what_the_case_is_about_and_in_nothing_else(name: str, letters: set[str], arch: str) -> None:
    _, arms = arms_of(name, arch)
    rest = {tuple((k, v) for k, v in one.candidate.config if k not in letters) for one in arms.values()}
    assert len(rest) == 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_compiler_spills_sums_that_exceed_the_registers_and_no_others(arch: str) -> None:
    device, arms = arms_of("register-spill", arch)
    spilled = {}
    for label in ("8x8 sums", "16x16 sums"):
        compiled = backends.get("cuda").compile(arms[label].plan.kernels[0], device, timeout_s=120)
        spilled[label] = compiled.evidence["spill_stores"]
    assert spilled["8x8 sums"] == 0 < spilled["16x16 sums"]


@pytest.mark.parametrize("arch", ["x86_64-avx2", "x86_64-avx512", "aarch64-neon"])
@pytest.mark.parametrize("name", ["packing", "register-spill", "threads"])
def test_the_cases_of_cpus_have_arms_on_every_class(name: str, arch: str) -> None:
    device, case = classes.of("cpu", arch).device(), find(name)
    arms = case.arms(device)
    prepared = {arm.arm.label: arm for arm in all_prepared(arms, "gemm", CPU, device, ceilings.guess(device))}
    for comparison in case.comparisons(device):
        assert prepared[comparison.before].plan != prepared[comparison.after].plan or name == "threads"
    if name == "register-spill":
        first = case.comparisons(device)[0]
        before, after = (dict(prepared[label].candidate.config) for label in (first.before, first.after))
        assert {letter for letter in before if before[letter] != after[letter]} in ({"MR"}, {"NR"})
        assert _registers(before, device) <= device.vector_registers < _registers(after, device)


def _registers(config: dict[str, int], device: Device) -> int:
    across = config["NR"] * 4 // device.vector_bytes
    return config["MR"] * across + across + 1


def test_an_arm_may_use_fewer_threads_than_there_are() -> None:
    device = classes.of("cpu", "x86_64-avx2").device()
    arm = Arm("alone", (512, 512, 512), ("unpacked",), threads=1)
    assert arm.on(device).threads == 1 and device.threads == 4
    assert Arm("all", (512, 512, 512), ("unpacked",)).on(device) is device
    alone, every = all_prepared(
        [arm, replace(arm, label="all", threads=None)], "gemm", CPU, device, ceilings.guess(device)
    )
    assert alone.prediction.seconds > 2 * every.prediction.seconds
