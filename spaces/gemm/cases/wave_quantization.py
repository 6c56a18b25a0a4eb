"""A little more work, a lot more time: one column of tiles too many starts another wave."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, K = 2304, 4096
BM, BN = 256, 128
KERNELS = ("warp_specialized", "async_pipeline")
SIZES = (1536, 1544)  # looked at on every device


def boundary(sms: int) -> int:
    """The largest N whose tiles fill one wave of one block a multiprocessor: N + 8 needs a second one. 0 where even
    one column of tiles needs more."""
    return sms // -(-M // BM) * BN


def _clusters(device: Device) -> bool:
    return int(device.cc_major) == 9


def _fix(device: Device) -> dict[str, int]:
    """The tile; without clusters where the kernel has them."""
    return {"BM": BM, "BN": BN, **(dict.fromkeys(("CM", "CN"), 1) if _clusters(device) else {})}


def arms(device: Device) -> tuple[Arm, ...]:
    edge, fix = boundary(int(device.sms)), _fix(device)
    if not edge:
        return ()
    first, more = f"N={edge}", f"N={edge + 8}"
    found = [Arm(first, (M, edge, K), KERNELS, fix), Arm(more, (M, edge + 8, K), KERNELS, fix, like=first)]
    if edge != SIZES[0]:
        found += [Arm(f"N={n}", (M, n, K), KERNELS, fix, like=first) for n in SIZES]
    alone = {letter: value for letter, value in fix.items() if letter.startswith("C")}
    found.append(Arm(f"{more}, any tile", (M, edge + 8, K), KERNELS, alone))
    if _clusters(device):
        found.append(Arm(f"{more}, any tile and cluster", (M, edge + 8, K), KERNELS))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    edge = boundary(int(device.sms))
    first, more = f"N={edge}", f"N={edge + 8}"
    found = [Comparison("one more column of tiles, a second wave: each operation", first, more, "flop")]
    if edge != SIZES[0]:
        few, many = (f"N={n}" for n in SIZES)
        found.append(Comparison(f"{many} after {few}: each operation", few, many, "flop"))
    found.append(Comparison("the cure: another tile", more, f"{more}, any tile"))
    if _clusters(device):
        found.append(Comparison("the cure: another tile and a cluster", more, f"{more}, any tile and cluster"))
    return tuple(found)


CASE = Case(
    name="wave-quantization",
    op="gemm",
    claim="256x128 tiles reuse the most of what they read, so a few columns more cost a few columns more",
    mechanism="tiles that do not fit the multiprocessors at once wait for a second wave, as long as the first",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
