"""The H200's figures of attention: which comparisons they take, what is wanted of each, and the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from device_figures import Row, by_ours, geometric_mean, show_figures
from device_run import table

CUDNN, FLASH = "torch-cudnn", "torch-flash"


class Workload(NamedTuple):
    """A problem, and TFLOP/s that cuDNN, FlashAttention 3 and FlashAttention 4 reached side by side on such a device;
    without them it is a decode of one query."""

    shape: str
    options: Mapping[str, Any] = {}
    peers: tuple[float, float, float] | None = None

    @property
    def lead(self) -> float:
        """How much faster than cuDNN the best of the three was."""
        return max(self.peers) / self.peers[0] if self.peers else 1.0


CAUSAL = {"causal": "bottom-right"}
WORKLOADS = (
    Workload("4x16x8448x8448x128", {}, (620, 697, 677)),
    Workload("4x16x8192x8192x128", CAUSAL, (553, 634, 612)),
    Workload("1x16x16384x16384x128", CAUSAL, (560, 661, 634)),
    Workload("8x16x2048x2048x64", CAUSAL, (369, 311, 377)),
    Workload("8x16x2048x2048x64", {}, (450, 461, 476)),
    Workload("2x32x1000x1000x128", CAUSAL, (309, 59, 82)),
    Workload("1x16x4096x4096x256", {}, (665, 763, 714)),
    Workload("4x32x4096x4096x128", {**CAUSAL, "kv_heads": 8}, (533, 636, 581)),
)
MEMORY_BOUND = (Workload("16x32x1x8192x128", {"kv_heads": 8}),)
SHORT = tuple(Workload(f"1x32x1x{keys}x128", {"kv_heads": 4}) for keys in (1024, 4096, 16384))
GROUPS: dict[str, tuple[Workload, ...]] = {"long": WORKLOADS, "decode": (*MEMORY_BOUND, *SHORT), "host": ()}


def rows(found: Mapping[str, Any]) -> list[Row]:
    """The issue's table, of what the groups have found: peers' time by ours."""
    long = list(zip(WORKLOADS, found.get("long", {}).get("results", ()), strict=False))
    cudnn = [(workload, ratio) for workload, row in long if (ratio := by_ours(row, CUDNN))]
    flash = [ratio for _, row in long if (ratio := by_ours(row, FLASH))]
    decode = [_better(row) for row in found.get("decode", {}).get("results", ())]
    told = [
        Row(f"against cuDNN, geometric mean of {len(cudnn)}", geometric_mean(r for _, r in cudnn), 0.85, 1.12),
        Row(
            "against the best of cuDNN, FlashAttention 3 and 4",
            geometric_mean(r / w.lead for w, r in cudnn),
            0.75,
            1.02,
        ),
        Row(f"against torch's Flash, least of {len(flash)}", min(flash, default=None), 1.3, 1.6),
    ]
    for number, workload in enumerate(GROUPS["decode"]):
        floor, target = (0.97, 1.02) if workload in MEMORY_BOUND else (1.2, 2.0)
        value = decode[number] if number < len(decode) else None
        told.append(Row(f"{workload.shape} against the better of both", value, floor, target))
    told.append(Row("host cost of a call, us", found.get("host", {}).get("attention_us"), 20.0, 10.0, least=False))
    return told


def show(found: Mapping[str, Any]) -> None:
    """Each problem, then each figure with its floor and target."""
    each = []
    for name, group in found.items():
        for row in group.get("results", ()):
            ours = row.get("ours", {})
            seconds = ours.get("median_s")
            ratios = [f"{ratio:.3f}" if (ratio := by_ours(row, peer)) else "-" for peer in (CUDNN, FLASH)]
            said = "; ".join(told.get("error", "")[:80] for told in row.get("peers", {}).values() if "error" in told)
            how = f"{ours.get('variant', '')} {ours.get('hit', '')}" if ours else row.get("error", "")[:80]
            each.append((name, row["problem"], f"{seconds * 1e6:.2f} us" if seconds else "-", *ratios, how, said or ""))
    table(("group", "problem", "ours", "cuDNN by ours", "Flash by ours", "", ""), each)
    show_figures(found, rows(found))


def _better(row: Mapping[str, Any]) -> float | None:
    """The faster peer's time by ours."""
    return min((ratio for peer in (CUDNN, FLASH) if (ratio := by_ours(row, peer))), default=None)
