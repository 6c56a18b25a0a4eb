"""A larger tile reads less for each multiply-add; at a short K a block mostly starts and ends."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, N = 4096, 7168
DEPTHS = (256, 2048, 16384)


def _tiles(device: Device) -> tuple[dict[str, int], dict[str, int]]:
    """The smaller and the larger one."""
    if int(device.cc_major) == 9:
        return {"BM": 128, "BN": 160, "CM": 1, "CN": 1}, {"BM": 256, "BN": 128, "CM": 1, "CN": 1}
    return {"BM": 128, "BN": 128}, {"BM": 256, "BN": 128}


def _kernel(device: Device) -> tuple[str, ...]:
    return ("warp_specialized",) if int(device.cc_major) == 9 else ("async_pipeline",)


def _label(tile: dict[str, int], depth: int) -> str:
    return f"{tile['BM']}x{tile['BN']}, K={depth}"


def arms(device: Device) -> tuple[Arm, ...]:
    return tuple(
        Arm(_label(tile, depth), (M, N, depth), _kernel(device), tile) for depth in DEPTHS for tile in _tiles(device)
    )


def comparisons(device: Device) -> tuple[Comparison, ...]:
    small, large = _tiles(device)
    return tuple(
        Comparison(f"{_label(large, depth)} instead of {small['BM']}x{small['BN']}", _label(small, depth),
                   _label(large, depth))
        for depth in DEPTHS
    )  # fmt: skip


CASE = Case(
    name="bigger-tile-short-k",
    op="gemm",
    claim="the largest tile that fits reuses the most of what it reads, so it is the fastest",
    mechanism="a large tile leaves a multiprocessor with one block and the output in fewer, longer waves: at a short K "
    "filling its stages, storing it and the last wave outweigh what it saves",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
