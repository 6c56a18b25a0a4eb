"""What a trial shows: the compiler's findings under names for people, and what the launch adds."""

from __future__ import annotations

import pytest

from kernsearch import backends, registry
from kernsearch.candidate import Candidate
from kernsearch.model import ceilings
from kernsearch.model.shown import seen
from kernsearch.tune.prospects import Prospects
from kernsearch.tune.request import Request


@pytest.fixture(scope="module")
def hopper() -> Prospects:
    backend = backends.get("cuda")
    where = backend.compile_only("sm_90a")
    problem = registry.problem("gemm", (2304, 1536, 4096), "bfloat16", backend="cuda")
    return Prospects(registry.op("gemm"), problem, backend, where, ceilings.guess(where), Request())


def test_a_device_shows_registers_spills_shared_memory_and_waves(hopper: Prospects) -> None:
    config = next(c for c in hopper.spaces["warp_specialized"].iterate() if c["BM"] == 128)
    plan = hopper.plan(Candidate.of("warp_specialized", config))
    evidence = {"registers": 168, "spill_stores": 8, "shared_bytes": 1024, "registers.pack": 20, "entries": "run pack"}
    told = seen(plan, [evidence] * len(plan.kernels), hopper.problem, hopper.device)
    assert told["registers"] == 168 and told["spills"] == 8
    assert told["smem"] > 1024 and told["smem"] < 228 * 1024
    tiles = -(-2304 // config["BM"]) * -(-1536 // config["BN"])
    assert told["waves"] == pytest.approx(tiles / hopper.device.facts["sms"])
    assert not {"spill_stores", "shared_bytes", "entries", "registers.pack"} & told.keys()


def test_of_several_kernels_the_largest_numbers_are_shown() -> None:
    backend, where = backends.resolve("cpu")
    problem = registry.problem("gemm", (64, 64, 64), None, backend="cpu")
    found = Prospects(registry.op("gemm"), problem, backend, where, ceilings.guess(where), Request())
    name = next(name for name in found.spaces if "+" in name)
    plan = found.plan(Candidate.of(name, next(found.spaces[name].iterate())))
    told = seen(plan, [{"vector_bytes": 32, "warnings": ""}, {"vector_bytes": 64, "warnings": "C1"}], problem, where)
    assert told == {"vector_bytes": 64, "warnings": "C1"}
