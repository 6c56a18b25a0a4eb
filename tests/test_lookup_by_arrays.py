"""A lookup for given arrays takes a plan that can have them as they are, and says what it passed over."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from kernsearch import backends, registry
from kernsearch.errors import CacheError
from kernsearch.launch import ArrayView
from kernsearch.records import Record
from kernsearch.records.lookup import Store
from kernsearch.records.packing import pack

DEVICE = backends.resolve("cpu")[1]
M, N, K = SHAPE = (96, 80, 64)
ALIGNED = ("A.base % 16 == 0",)


def record(folder: Path, shape: tuple[int, ...] = SHAPE, assumes: tuple[str, ...] = (), **more: object) -> Record:
    problem = registry.problem("gemm", shape)
    return handmade.record(problem, handmade.plan(folder, assumes=assumes), DEVICE, **more)


def views(address: int = 0, pitch: int = K) -> dict[str, ArrayView]:
    """A at an address and with a pitch in elements; the others as they come."""
    return {
        "A": ArrayView(address, (M, K), (pitch, 1), 4),
        "B": ArrayView(0, (K, N), (N, 1), 4),
        "D": ArrayView(0, (M, N), (N, 1), 4),
    }


def stores(tmp_path: Path, *defaults: Record) -> Store:
    home = tmp_path / "shipped" / "defaults" / "any"
    home.mkdir(parents=True)
    home.joinpath("gemm.json").write_bytes(pack([made.to_json() for made in defaults]))
    return Store(tmp_path / "user", tmp_path / "shipped")


def test_a_record_whose_assumptions_hold_is_taken(tmp_path):
    store = stores(tmp_path, record(tmp_path, (64, 64, 64)))
    store.write(record(tmp_path, assumes=ALIGNED))
    for address in (0, 16, 240):
        assert store.find(registry.problem("gemm", SHAPE), DEVICE, arrays=views(address)).kind == "exact"


@pytest.mark.parametrize("address", [4, 8, 100])
def test_one_whose_assumptions_fail_is_passed_over_for_the_default(tmp_path, address):
    store = stores(tmp_path, record(tmp_path, (64, 64, 64)))
    path = store.write(record(tmp_path, assumes=ALIGNED))
    problem = registry.problem("gemm", SHAPE)
    assert store.find(problem, DEVICE).kind == "exact"  # who asks for no arrays sees to that himself
    hit = store.find(problem, DEVICE, arrays=views(address))
    assert hit.kind == "default"
    said = f"user record {path.name}: passed over, it assumes A.base % 16 == 0, which these arrays do not give"
    assert said in hit.reasons


def test_a_plan_that_the_compiler_refuses_is_passed_over_wherever_it_is_kept(tmp_path):
    refused, near, default = (
        record(tmp_path, shape, assumes)
        for shape, assumes in ((SHAPE, ALIGNED), ((96, 80, 128), ("A.base % 8 == 0",)), ((64, 64, 64), ()))
    )
    store = stores(tmp_path, default)
    for made in (refused, near):
        store.write(made)
    problem, plans = registry.problem("gemm", SHAPE), []
    for kind, made in (("exact", refused), ("nearest", near), ("default", default)):
        hit = store.find(problem, DEVICE, arrays=views(), refused=plans)
        assert (hit.kind, hit.plan) == (kind, made.plan)
        plans.append(hit.plan)
    assert any("passed over, the compiler refuses it" in reason for reason in hit.reasons)
    with pytest.raises(CacheError, match="the compiler refuses it"):
        store.find(problem, DEVICE, refused=plans)


def test_of_two_places_the_second_serves_when_the_first_cannot(tmp_path):
    store = stores(tmp_path, record(tmp_path, (64, 64, 64)))
    store.write(record(tmp_path, assumes=("A.m % 4 == 0",)))
    Store(store.shipped, store.shipped).write(record(tmp_path))
    problem = registry.problem("gemm", SHAPE)
    assert store.find(problem, DEVICE, arrays=views(pitch=K + 4)).path.is_relative_to(store.user)
    hit = store.find(problem, DEVICE, arrays=views(pitch=K + 1))
    assert (hit.kind, hit.path.is_relative_to(store.shipped)) == ("exact", True)


def test_a_near_record_is_held_against_the_arrays_too(tmp_path):
    store = stores(tmp_path, record(tmp_path, (64, 64, 64)))
    store.write(record(tmp_path, (96, 80, 128), assumes=ALIGNED))
    problem = registry.problem("gemm", SHAPE)
    assert store.find(problem, DEVICE, arrays=views(0)).kind == "nearest"
    assert store.find(problem, DEVICE, arrays=views(4)).kind == "default"


def test_when_nothing_takes_the_arrays_the_assumption_is_named(tmp_path):
    store = stores(tmp_path, record(tmp_path, (64, 64, 64), assumes=ALIGNED))
    with pytest.raises(CacheError, match=r"A\.base % 16 == 0, which these arrays do not give"):
        store.find(registry.problem("gemm", SHAPE), DEVICE, arrays=views(4))
