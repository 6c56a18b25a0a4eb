"""What all tests share: those marked `gpu` skip themselves where no GPU can be used, and say why; a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, where there is one."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield found
    found.quit()
