"""A folder of small C kernels, built once, and a worker to run them in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernsearch.worker import Worker

ROOT = Path(__file__).parents[2]


def compiler() -> list[str]:
    for name in ("gcc", "clang", "cc"):
        if path := shutil.which(name):
            return [path]
    return [sys.executable, "-m", "ziglang", "cc"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared object of tests/worker/kernels.c."""
    path = tmp_path_factory.mktemp("objects") / "kernels.so"
    source = Path(__file__).with_name("kernels.c")
    include = ROOT / "kernels" / "common" / "c"
    subprocess.run([*compiler(), "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def worker():
    with Worker(run_timeout_s=10.0, memory_limit_bytes=100 << 20) as worker:
        yield worker
