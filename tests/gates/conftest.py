"""A bench of the real gemm op, and the CPU backend to compile hand-written kernels for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gate_plans import TUNED

from kernsearch import backends, registry
from kernsearch.gates import Bench
from kernsearch.plan import Plan
from kernsearch.worker import Worker


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Objects go to a folder of this test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.getbasetemp() / "gates_cache"))
        yield


@pytest.fixture(scope="session")
def device():
    return backends.get("cpu").device()


@pytest.fixture(scope="session")
def objects(device) -> Callable[[Plan], list]:
    """Compiles the kernels of a plan; the object cache keeps them."""
    return lambda plan: [backends.get("cpu").compile(kernel, device, timeout_s=60.0) for kernel in plan.kernels]


@pytest.fixture(scope="module")
def worker(device):
    with Worker(device, run_timeout_s=2.0, memory_limit_bytes=100 << 20, threads=2) as worker:
        yield worker


@pytest.fixture(scope="module")
def bench(device, worker) -> Bench:
    op = registry.op("gemm")
    return Bench(op, op.problem(TUNED), device, backends.get("cpu"), worker, threads=2)
