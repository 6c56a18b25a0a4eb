"""What all tests share: those marked `gpu` skip themselves where no GPU can be used, and say why."""

from __future__ import annotations

import pytest

from kernsearch import backends
from kernsearch.device import Device
from kernsearch.errors import DeviceError


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        usable_gpu()


@pytest.fixture
def gpu() -> Device:
    """The first GPU. A test that asks for it skips itself where there is none; mark it `gpu` as well."""
    return usable_gpu()


def usable_gpu() -> Device:
    try:
        return backends.get("cuda").device(0)
    except DeviceError as error:
        pytest.skip(str(error))
