"""A little more work, a lot more time: one column of tiles too many starts another wave."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

M, K = 2304, 4096
BM, BN = 256, 128
KERNELS = ("warp_specialized", "async_pipeline")
_TILE = {"BM": BM, "BN": BN, "CM": 1, "CN": 1}


def boundary(sms: int) -> int:
    """The largest N whose tiles fill one wave of one block a multiprocessor: N + 8 needs a second one."""
    rows = -(-M // BM)
    return max(1, sms // rows) * BN


def _fix(device: Device) -> dict[str, int]:
    """The tile; without clusters where the kernel has them."""
    return _TILE if device.facts.get("cc_major") == 9 else {"BM": BM, "BN": BN}


def arms(device: Device) -> tuple[Arm, ...]:
    edge, fix = boundary(int(device.sms)), _fix(device)
    first = f"N={edge}"
    found = [Arm(first, (M, edge, K), KERNELS, fix), Arm(f"N={edge + 8}", (M, edge + 8, K), KERNELS, fix, like=first)]
    for n in (1536, 1544):
        if n not in (edge, edge + 8):
            found.append(Arm(f"N={n}", (M, n, K), KERNELS, fix, like=first))
    cure = {letter: value for letter, value in fix.items() if letter.startswith("C")}
    found.append(Arm(f"N={edge + 8}, any tile", (M, edge + 8, K), KERNELS, cure))
    found.append(Arm(f"N={edge + 8}, any tile and cluster", (M, edge + 8, K), KERNELS))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    edge = boundary(int(device.sms))
    return (
        Comparison("one more column of tiles, a second wave: each operation", f"N={edge}", f"N={edge + 8}", "flop"),
        Comparison("N=1544 after N=1536: each operation", "N=1536", "N=1544", "flop"),
        Comparison("the cure: another tile", f"N={edge + 8}", f"N={edge + 8}, any tile"),
        Comparison("the cure: another tile and a cluster", f"N={edge + 8}", f"N={edge + 8}, any tile and cluster"),
    )


CASE = Case(
    name="wave-quantization",
    op="gemm",
    claim="256x128 tiles reuse the most of what they read, so a few columns more cost a few columns more",
    mechanism="tiles that do not fit the multiprocessors at once wait for a second wave, as long as the first",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
