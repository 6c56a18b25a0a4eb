"""The op as it is declared: options, problems, cases, and every command that names a problem."""

from __future__ import annotations

import json
import math

import pytest
from kernsearch.spaces.softmax import PROLOGUES, parse_prologue

from kernsearch import backends, registry
from kernsearch.cases import find
from kernsearch.cases.prepare import all_prepared
from kernsearch.cli import main
from kernsearch.errors import ProblemError
from kernsearch.model import ceilings


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        yield


def said(capsys, *words: str):
    try:
        main([*words])
    except SystemExit as ended:
        assert ended.code in (0, None), capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("text, want", [(None, "none"), ("none", "none"), ("mask, Scale", "scale,mask"),
                                        ("bias,scale,mask", "scale,bias,mask")])  # fmt: skip
def test_a_prologue_is_a_list_in_one_order(text, want):
    assert parse_prologue(text) == want in PROLOGUES


@pytest.mark.parametrize("text", ["", "scale,scale", "none,mask", "relu"])
def test_another_prologue_is_an_error(text):
    with pytest.raises(ProblemError, match="want none, or a comma list of scale, bias, mask"):
        parse_prologue(text)


def test_problems_are_told_apart_by_all_their_options():
    one = registry.problem("softmax", "64x50", result="log", prologue="mask")
    assert one.key == "softmax 64x50 float32 layout=n prologue=mask result=log"
    with pytest.raises(ProblemError, match="result 'x': want one of softmax, log"):
        registry.problem("softmax", "64x50", result="x")


def test_commands_take_the_options_of_the_op(capsys):
    words = ("softmax", "--shape", "64x500", "--device", "cpu", "--option", "result=log", "--option", "prologue=mask")
    told = json.loads(said(capsys, "tune", *words, "--trials", "4", "--timeout", "20", "--json"))
    assert told["problem"] == "softmax 64x500 float32 layout=n prologue=mask result=log"
    assert told["counts"]["measured"] >= 1
    assert "merge_reductions" in said(capsys, "explain", *words)
    assert "row_passes" in said(capsys, "graph", *words, "--format", "dot")
    assert said(capsys, "cache", "why", *words).startswith("exact")
    assert "softmax 64x500" in said(capsys, "cache", "list")


def test_an_option_without_a_value_is_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["explain", "softmax", "--shape", "64x50", "--option", "result"])
    assert ended.value.code == 2 and "want NAME=VALUE" in capsys.readouterr().err


ARMS = [(name, arch) for name in ("online-softmax", "one-block-row") for arch in ("sm_80", "sm_90a")]


@pytest.mark.parametrize("name, arch", [("online-softmax", "cpu"), *ARMS])
def test_arms_of_cases_exist_and_comparisons_are_between_them(name, arch):
    backend = backends.get("cpu" if arch == "cpu" else "cuda")
    device = backend.device() if arch == "cpu" else backend.compile_only(arch)
    case = find(name)
    arms = all_prepared(case.arms(device), case.op, backend, device, ceilings.guess(device))
    labels = {one.arm.label for one in arms}
    comparisons = case.comparisons(device)
    assert {c.before for c in comparisons} | {c.after for c in comparisons} <= labels
    assert all(one.prediction.seconds > 0 and math.isfinite(one.prediction.seconds) for one in arms)
