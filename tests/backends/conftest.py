import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernsearch.backends.cpu import device
from kernsearch.plan import KernelPlan


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    """Nothing of the developer's environment, and no file outside the test's folders."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(shared_home))
    monkeypatch.delenv("KERNSEARCH_CC", raising=False)
    monkeypatch.delenv("KERNSEARCH_THREADS", raising=False)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of this test alone."""
    folder = tmp_path / "a home" / "of its own"
    monkeypatch.setenv("KERNSEARCH_CACHE", str(folder))
    return folder


@pytest.fixture
def cpu():
    return device.this_device()


@pytest.fixture
def kernel_of(tmp_path: Path) -> Callable[..., KernelPlan]:
    """A plan for C text: kernel_of(text, entry="run", X=3, header="", flags=())."""

    def make(
        text: str, *, entry: str = "run", header: str = "// nothing\n", flags: tuple[str, ...] = (), **defines: int
    ):
        path = tmp_path / "idea.c"
        path.write_text(text)
        return KernelPlan("an idea", str(path), "", entry, header, defines, ("a",), ("M",), (), flags=flags)

    return make


def processes_naming(text: str) -> list[int]:
    """Processes, other than this one, whose command line holds a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(text) in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture
def until() -> Iterator[Callable[..., None]]:
    """Wait for a condition; fails when it does not come true."""

    def wait(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.01)

    yield wait


@pytest.fixture
def compilers_below(tmp_path: Path) -> Callable[[], list[int]]:
    """Processes that have a file below this test's folder on their command line."""
    return lambda: processes_naming(str(tmp_path))
