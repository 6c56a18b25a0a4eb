"""Slabs of K give idle cores work, and a pass over partial sums that somebody has to add up."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

LONG, SHORT = (64, 64, 16384), (768, 768, 256)
ON_CUDA_LONG, ON_CUDA_SHORT = (512, 512, 16384), (4096, 4096, 1024)
SPLITS = {"cpu": (2, 4), "cuda": (2, 4, 8)}
SETS = (
    "a slab has all rows of A, which lie 64 KB apart and share few sets of a core's cache, where half of the rows just "
    "fits; the model knows no sets here, and of 16448 elements a row it is nearly right (1.04)"
)
TILE = {"BM": 128, "BN": 128, "BK": 32, "BLOCKS": 1}
KERNELS = {  # by backend, for a long and a short K: whole, in slabs
    "cpu": (("unpacked", "unpacked_k+combine"), ("register_tiled", "split_k+combine")),
    "cuda": (("async_pipeline", "async_split_k+combine"),) * 2,
}


def _shapes(device: Device) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (LONG, SHORT) if device.backend == "cpu" else (ON_CUDA_LONG, ON_CUDA_SHORT)


def _label(shape: tuple[int, ...], slabs: int) -> str:
    return f"{'x'.join(map(str, shape))}, {f'{slabs} slabs' if slabs > 1 else 'K whole'}"


def arms(device: Device) -> tuple[Arm, ...]:
    fix, found = ({} if device.backend == "cpu" else TILE), []
    for shape, (whole, slabs) in zip(_shapes(device), KERNELS[device.backend], strict=True):
        first = _label(shape, 1)
        found.append(Arm(first, shape, (whole,), fix))
        found += [Arm(_label(shape, n), shape, (slabs,), {"SPLIT": n}, like=first) for n in SPLITS[device.backend]]
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    long, short = _shapes(device)
    few, *more = SPLITS[device.backend]
    steps = [(long, 1, more[-1]), (short, 1, few)]  # how it wins, and how it loses
    steps += [(short, 1, n) for n in more] + [(long, 1, n) for n in (few, *more[:-1])] + [(long, few, more[-1])]
    return tuple(
        Comparison(
            f"{after} slabs instead of {'K whole' if before == 1 else f'{before} slabs'}, {'x'.join(map(str, shape))}",
            _label(shape, before), _label(shape, after),
            note=SETS if device.backend == "cpu" and shape == long and before == 1 else "",
            slower=True,
        )
        for shape, before, after in steps
    )  # fmt: skip


CASE = Case(
    name="split-k",
    op="gemm",
    claim="a product with too few tiles for all cores is cut along K, so that every core has a slab to work on",
    mechanism="each slab leaves an output of its own, which a second kernel reads and adds up: short slabs of a large "
    "output cost more than they give",
    backends=("cpu", "cuda"),
    arms=arms,
    comparisons=comparisons,
)
