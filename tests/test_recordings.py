"""Shipped recordings of cases and ladders: each is whole, and its verdict is made of its samples."""

from __future__ import annotations

import json

import pytest

from kernsearch.cases import cases, climbed, judged, recording, recordings, wrong
from kernsearch.cli import main
from kernsearch.errors import CacheError

SHIPPED = [(name, where) for name in cases() for where in recordings.shipped(name)]


@pytest.mark.parametrize(("name", "where"), SHIPPED)
def test_a_recorded_case_is_judged_by_its_samples(name, where):
    data = recording(recordings.read(where, name, "arms"), name)
    told = judged(data)
    assert told["device"]["key"] == where
    first = told["comparisons"][0]
    assert told["verdict"]["verdict"] == first["verdict"]
    arms = {arm["label"]: arm for arm in data["arms"]}
    before, after = arms[first["before"]], arms[first["after"]]
    before["samples_s"], after["samples_s"] = after["samples_s"], before["samples_s"]
    for arm in (before, after):
        arm["flops"] = 1.0
    swapped = judged(data)["comparisons"][0]
    assert swapped["measured"] != pytest.approx(first["measured"])
    if first["per"] == "call" and first["verdict"] in ("wins", "loses"):
        assert {first["verdict"], swapped["verdict"]} == {"wins", "loses"}


@pytest.mark.parametrize(("name", "where"), SHIPPED)
def test_every_wrong_prediction_of_a_recording_is_explained(name, where):
    told = judged(recording(recordings.read(where, name, "arms"), name))
    assert [c["label"] for c in wrong(told) if not c["note"]] == []


def test_the_ladder_of_gemm_is_shipped_from_a_gpu():
    assert "cuda-nvidia-h200-sm90a" in recordings.shipped("ladder-gemm")
    for where in recordings.shipped("ladder-gemm"):
        told = climbed.recording(recordings.read(where, "ladder-gemm", "rungs"))
        assert any("median_s" in row for row in told["rungs"])


@pytest.mark.parametrize("name", [name for name, case in cases().items() if "cuda" in case.backends])
def test_every_case_of_gpus_has_a_recording_from_one(name):
    assert "cuda-nvidia-h200-sm90a" in recordings.shipped(name)


@pytest.mark.parametrize("name", [name for name, case in cases().items() if "cpu" in case.backends])
def test_every_case_of_cpus_has_a_recording_from_one(name):
    assert any(where.startswith("cpu-") for where in recordings.shipped(name))


def test_recordings_are_taken_by_device_or_by_file(tmp_path, capsys):
    path = recordings.shipped("register-spill")["cuda-nvidia-h200-sm90a"]
    main(["case", "register-spill", "--from", "cuda-nvidia-h200-sm90a", "--json"])
    by_device = json.loads(capsys.readouterr().out)
    main(["case", "register-spill", "--from", str(path), "--json"])
    assert json.loads(capsys.readouterr().out) == by_device
    main(["case", "list", "--json"])
    listed = {case["name"]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert "cuda-nvidia-h200-sm90a" in listed["register-spill"]["recorded"]


def test_a_device_without_a_recording_is_named_with_those_that_have_one():
    with pytest.raises(CacheError, match=r"nowhere: want a file, or a device with .* \(.*cuda-nvidia-h200-sm90a"):
        recordings.read("nowhere", "register-spill", "arms")
