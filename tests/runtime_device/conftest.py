"""A home where nothing is known but the defaults of the generic templates; compiled objects are shared by a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import device_defaults
import pytest

from kernsearch import backends, runtime
from kernsearch.device import Device
from kernsearch.records import lookup


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_defaults.write(tmp_path_factory.mktemp("shipped"), backends.get("cuda").device(0))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def home(gpu: Device, shipped: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(cache))
    monkeypatch.setattr(lookup, "shipped_folder", lambda: shipped)
    runtime.forget()
    yield
    for path in (cache / "records").rglob("*.json"):
        path.unlink()
    runtime.forget()


@pytest.fixture
def cp() -> Any:
    return pytest.importorskip("cupy")
