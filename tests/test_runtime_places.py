"""Where arrays are and where plans run: what needs no GPU to be refused, in one line."""

from __future__ import annotations

from pathlib import Path

import device_defaults
import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends
from kernsearch.device import Device, lacks
from kernsearch.errors import ArrayError, DeviceError
from kernsearch.records.lookup import Hit
from kernsearch.runtime import libraries
from kernsearch.runtime.device import DevicePlan

HOPPER, TURING = (backends.get("cuda").compile_only(arch) for arch in ("sm_90a", "sm_75"))


def plan(device: Device = HOPPER, dtype: str = "float16") -> DevicePlan:
    """A plan for a GPU that is not here."""
    problem = device_defaults.problem("gemm", dtype)
    return DevicePlan(problem, device, Hit("default", device_defaults.record(problem, device), ()))


def test_a_plan_of_a_gpu_takes_no_arrays_of_the_host():
    a = np.zeros((32, 32), np.float16)
    with pytest.raises(ArrayError, match="A is in host memory: want an array on cuda:0"):
        plan()(a, a)
    with pytest.raises(ArrayError, match="A is in host memory"):
        plan()(A=a, b=a)
    with pytest.raises(ArrayError, match="array A is missing"):
        plan()()


def test_a_dtype_that_the_architecture_lacks_is_refused_with_what_it_has():
    assert lacks(HOPPER, "bfloat16") is None and lacks(TURING, "float16") is None
    assert lacks(backends.resolve("cpu")[1], "bfloat16") is None  # no GPU's business
    with pytest.raises(DeviceError, match=r"'bfloat16': .*sm_75.* want float16 or float32"):
        plan(TURING, "bfloat16")


def test_without_a_gpu_a_plan_for_one_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    try:
        backends.get("cuda").device(0)
    except DeviceError:
        with pytest.raises(DeviceError, match="cuda:0") as told:
            ks.load("gemm", shape=(8, 8, 8), device="cuda")
        assert "\n" not in str(told.value)
    else:
        pytest.skip("there is a GPU")


def test_the_default_dtype_is_that_of_the_backend():
    from kernsearch import registry

    for op, shape in device_defaults.SHAPES.items():
        assert registry.problem(op, shape, backend="cpu").dtype == "float32"
        assert registry.problem(op, shape, backend="cuda").dtype == "bfloat16"


HOST = (np.zeros(3), [1.0], 2.0, None, "text", np.float32(1), memoryview(b"x"))


@pytest.mark.parametrize("thing", HOST, ids=lambda thing: type(thing).__name__)
def test_what_lies_in_host_memory_has_no_library(thing):
    assert libraries.of(thing) is None
    assert libraries.whereabouts(thing) == "in host memory"
