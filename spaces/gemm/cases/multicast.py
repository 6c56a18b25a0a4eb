"""A cluster of blocks reads what they share once, and its blocks wait for each other."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPES = ((2304, 1536, 4096), (8192, 8192, 8192))  # one wave, and many
KERNEL = ("warp_specialized",)
TILE = {"BM": 256, "BN": 128}
CLUSTERS = ((1, 1), (2, 1), (1, 2))

FREE = (
    "the model lets traffic of the second level cache add to the tensor cores' time: here it hides behind that, so "
    "nothing is gained by saving it"
)


def _label(shape: tuple[int, ...], cluster: tuple[int, int]) -> str:
    return f"{'x'.join(map(str, shape))}, {f'cluster {cluster[0]}x{cluster[1]}' if cluster != (1, 1) else 'alone'}"


def arms(device: Device) -> tuple[Arm, ...]:
    if int(device.cc_major) != 9:
        return ()
    found = []
    for shape in SHAPES:
        alone = _label(shape, CLUSTERS[0])
        for m, n in CLUSTERS:
            label = _label(shape, (m, n))
            found.append(Arm(label, shape, KERNEL, {**TILE, "CM": m, "CN": n}, like="" if label == alone else alone))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(f"a cluster of {m}x{n} instead of blocks alone, {'x'.join(map(str, shape))}",
                   _label(shape, CLUSTERS[0]), _label(shape, (m, n)), note=FREE, slower=True)
        for shape in SHAPES
        for m, n in CLUSTERS[1:]
    )  # fmt: skip


CASE = Case(
    name="multicast",
    op="gemm",
    claim="blocks of a cluster get the tiles that they share by one read, which saves traffic and so time",
    mechanism="blocks of a cluster wait for each other, and tiles that do not come in pairs are padded; where the "
    "second level cache keeps up, the traffic saved was free",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
