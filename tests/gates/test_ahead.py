"""A run whose kernels run in a process that owns the device compiles ahead, and ends as any other."""

from __future__ import annotations

import pytest

import kernsearch as ks
from kernsearch import backends
from kernsearch.gates import device_bench
from kernsearch.model import ceilings
from kernsearch.tune import run

SHAPE = (44, 36, 52)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU as a device whose arrays are not this process's."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    monkeypatch.setattr(type(backends.get("cpu")), "host_memory", False)
    monkeypatch.setitem(device_bench.MACHINES, "cpu", "host_machine:HostMachine")
    monkeypatch.setattr(ceilings, "of", lambda backend, device: ceilings.guess(device))


def test_every_trial_of_a_run_is_tried_and_counted() -> None:
    result = run("gemm", shape=SHAPE, trials=9, jobs=2, timeout=60.0)
    counts = result.counts
    assert counts["measured"] + sum(counts["rejected"].values()) - counts["rejected"]["space"] == 9
    assert result.record.measurement.median_s > 0


def test_a_run_ends_in_its_time_and_leaves_no_trial_running() -> None:
    result = run("gemm", shape=SHAPE, trials=500, jobs=2, timeout=0.01)
    assert result.counts["measured"] == 1
    again = run("gemm", shape=SHAPE, trials=2, jobs=2, timeout=60.0)
    assert again.resumed == 1 and again.counts["measured"] <= 1


def test_a_device_that_cannot_be_used_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_bench.MACHINES, "cpu", "no_such_module:Machine")
    with pytest.raises(ks.KernsearchError, match="cannot be used: ModuleNotFoundError"):
        run("gemm", shape=SHAPE, trials=2, timeout=60.0)
