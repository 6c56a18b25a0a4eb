"""The model of devices with many multiprocessors: occupancy by hand, and what no prediction may do."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest

from kernsearch import backends, model, registry
from kernsearch.derive import Variant, derive
from kernsearch.device import Device
from kernsearch.feasible import FeasibleSpace
from kernsearch.launch import itemsize
from kernsearch.model import Prediction, ceilings
from kernsearch.model.blocks import BLOCK_S, occupancy

KIB = 1024
H200 = backends.get("cuda").compile_only("sm_90a")
L40S = backends.get("cuda").compile_only("sm_89")
SHAPES = ((2304, 1544, 4096), (128, 4096, 4096), (17, 33, 9000), (1, 1, 1))
PARTS = {"compute", "l2", "memory", "waiting", "packing", "start"}


@cache
def variants(dtype: str, epilogue: str = "none") -> Mapping[str, Variant]:
    op = registry.op("gemm")
    problem = op.problem(SHAPES[0], dtype, backend="cuda", epilogue=epilogue)
    return {variant.name: variant for variant in derive(problem, op, registry.templates("cuda")).variants}


NAMES = [
    *(("bfloat16", name) for name in ("naive", "shared_tile", "tensor_core", "async_pipeline", "warp_specialized")),
    *(("bfloat16", name) for name in ("warp_specialized_packed", "cluster_split", "contraction")),
    ("bfloat16", "async_split_k+combine"),
    ("float16", "async_atomic+map"),
    *(("float32", name) for name in ("register_tile", "vectorized", "simt_pipeline", "simt_split_k+combine")),
]


def sizes(shape: Sequence[int], dtype: str, device: Device) -> dict[str, int]:
    return {**dict(zip("MNK", shape, strict=True)), "ITEMSIZE": itemsize(dtype), "THREADS": device.sms}


def configs(name: str, dtype: str, device: Device = H200, count: int = 12) -> list[dict[str, int]]:
    """Some feasible configs, always the same."""
    variant = variants(dtype)[name]
    space = FeasibleSpace(variant.params, variant.constraints, device, sizes(SHAPES[0], dtype, device))
    rng = random.Random(name)
    return [found for _ in range(count) if (found := space.sample(rng)) is not None]


def predicted(name: str, dtype: str, config: dict[str, int], shape: Sequence[int], device: Device = H200) -> Prediction:
    roof = ceilings.guess(device)
    return model.predict(variants(dtype)[name], config, device, sizes(shape, dtype, device), roof)


def with_sms(device: Device, factor: int) -> Device:
    sms = device.sms * factor
    return replace(device, facts={**device.facts, "sms": sms, "threads": sms})


# occupancy


@pytest.mark.parametrize(
    "device, registers, threads, shared, blocks",
    [
        (H200, 168, 384, 200 * KIB, 1),  # 384 * 168 = 64512 of 65536 registers; 201 of 228 KiB
        (H200, 128, 128, 48 * KIB, 4),  # registers 4; shared 228 // 49 = 4
        (H200, 128, 128, 56 * KIB, 4),  # 228 // 57 = 4, exactly
        (H200, 128, 128, 57 * KIB, 3),  # 228 // 58 = 3
        (H200, 32, 1024, 0, 2),  # 2048 threads
        (H200, 32, 32, 0, 32),  # 32 blocks; threads and registers would allow 64
        (H200, 33, 256, 0, 6),  # 33 count as 40: 65536 // (40 * 256) = 6
        (H200, 255, 256, 0, 1),  # 255 count as 256: one block takes them all
        (L40S, 32, 512, 0, 3),  # 1536 threads
        (L40S, 32, 33, 0, 24),  # 33 threads are two warps: 1536 // 64 = 24, and 24 blocks at most
        (L40S, 32, 128, 99 * KIB, 1),  # 100 of 100 KiB
        (L40S, 32, 128, 100 * KIB, 0),  # a block that does not fit
    ],
)
def test_occupancy_agrees_with_hand_counts(
    device: Device, registers: int, threads: int, shared: int, blocks: int
) -> None:
    assert occupancy(device, registers=registers, threads=threads, shared=shared) == blocks


def test_more_of_anything_never_lets_more_blocks_in() -> None:
    rng = random.Random(0)
    for _ in range(300):
        wanted = {
            "registers": rng.randint(1, 255),
            "threads": rng.randint(1, 1024),
            "shared": rng.randint(0, 227) * KIB,
        }
        blocks = occupancy(H200, **wanted)
        for name, more in (("registers", 8), ("threads", 32), ("shared", KIB)):
            assert occupancy(H200, **{**wanted, name: wanted[name] + more}) <= blocks


# predictions


@pytest.mark.parametrize("dtype, name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_are_finite_and_positive_and_their_parts_have_names(
    dtype: str, name: str, shape: Sequence[int]
) -> None:
    for config in configs(name, dtype):
        found = predicted(name, dtype, config, shape)
        assert math.isfinite(found.seconds) and found.seconds >= BLOCK_S / 2
        assert set(found.parts) <= PARTS and found.bound in found.parts
        assert all(math.isfinite(part) and part >= 0 for part in found.parts.values())
        assert found.seconds >= max(part for name, part in found.parts.items() if name not in ("packing", "start")) / 2
        assert found.flops >= 2 * math.prod(shape) and found.bytes > 0


@pytest.mark.parametrize("dtype, name", NAMES)
def test_a_kernel_takes_at_least_what_the_peak_takes(dtype: str, name: str) -> None:
    roof = ceilings.guess(H200)
    for config in configs(name, dtype):
        found = predicted(name, dtype, config, SHAPES[0])
        assert found.seconds > 0.999 * found.flops / max(roof.flops.values())


@pytest.mark.parametrize("dtype, name", NAMES)
def test_twice_as_deep_is_never_faster(dtype: str, name: str) -> None:
    for m, n, k in SHAPES[:3]:
        for config in configs(name, dtype):
            short, long = (predicted(name, dtype, config, (m, n, depth)).seconds for depth in (k, 2 * k))
            assert long >= short


@pytest.mark.parametrize("dtype, name", NAMES)
def test_twice_the_multiprocessors_are_never_slower(dtype: str, name: str) -> None:
    """Their memory and second-level cache are twice as fast as well."""
    for shape in SHAPES[:3]:
        for config in configs(name, dtype):
            few, many = (predicted(name, dtype, config, shape, with_sms(H200, factor)).seconds for factor in (1, 2))
            assert many <= 1.001 * few


def test_one_column_of_tiles_more_than_a_wave_costs_a_wave() -> None:
    config = configs("warp_specialized", "bfloat16", count=1)[0]
    tile = {**config, "BM": 256, "BN": 128, "BK": 64, "CONSUMERS": 2, "PINGPONG": 0, "STAGES": 4, "CM": 1, "CN": 1}
    full, more = (predicted("warp_specialized", "bfloat16", tile, (2304, n, 4096)).seconds for n in (1792, 1800))
    assert 1.5 < more / full < 2.2


def test_many_configs_at_once_are_predicted_as_one_by_one() -> None:
    for dtype, name in NAMES:
        chosen, roof = configs(name, dtype), ceilings.guess(H200)
        at = sizes(SHAPES[0], dtype, H200)
        together = model.predict_all(variants(dtype)[name], chosen, H200, at, roof)
        alone = [model.predict(variants(dtype)[name], config, H200, at, roof) for config in chosen]
        assert [p.seconds for p in together] == pytest.approx([p.seconds for p in alone])
        assert [p.bound for p in together] == [p.bound for p in alone]
