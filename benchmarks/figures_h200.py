"""The H200's figures: which comparisons they take, what is wanted of each, and the table of what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from device_figures import Row, geometric_mean, show_figures
from device_run import table

TWELVE = (
    "2304x1544x4096", "2304x1536x4096", "4096x4096x4096", "8192x8192x8192", "16x4096x4096", "128x4096x4096",
    "1000x1000x1000", "4096x64x4096", "512x512x65536", "1543x2311x4095", "8192x1024x8192", "256x16384x2048",
)  # fmt: skip
UNALIGNED = "1543x2311x4095"
LARGE = ("2304x1544x4096", "2304x1536x4096", "4096x4096x4096", "8192x8192x8192", "8192x1024x8192")
SKINNY = ("16x4096x4096", "128x4096x4096", "4096x64x4096")


class Group(NamedTuple):
    """One comparison: problems as (shape, options), and the libraries; `ours` as `bench_problems` wants it."""

    dtype: str
    shapes: Sequence[str]
    against: Sequence[str] = ("torch",)
    ours: str = "kernsearch"
    options: Mapping[str, str] = {}


GROUPS = {
    "bfloat16": Group("bfloat16", TWELVE),
    "float16": Group("float16", TWELVE),
    "float32": Group("float32", TWELVE[:6]),
    "epilogue": Group("bfloat16", TWELVE[:1], ("torch", "torch-compile"), options={"epilogue": "bias,gelu_tanh"}),
    "linear": Group("bfloat16", TWELVE[:1], ("torch", "torch-compile"),
                    options={"layout": "nt", "epilogue": "bias,gelu_tanh"}),
    "default": Group("bfloat16", TWELVE, ours="default"),
    "host": Group("", ()),
}  # fmt: skip


def rows(found: Mapping[str, Any]) -> list[Row]:
    """The issue's table, of what the groups have found."""
    told: list[Row] = []
    for name in ("bfloat16", "float16"):
        ratios = _ratios(found.get(name, {}), "torch")
        rest = {shape: ratio for shape, ratio in ratios.items() if shape != UNALIGNED}
        told.append(Row(f"{name}: geometric mean of {len(ratios)}", geometric_mean(ratios.values()), 1.05, 1.25))
        told.append(Row(f"{name}: without {UNALIGNED}", geometric_mean(rest.values()), 0.98, 1.15))
        told += [Row(f"{name}: {shape}", ratios.get(shape), 0.92, 1.03) for shape in LARGE]
        told.append(Row(f"{name}: {UNALIGNED}", ratios.get(UNALIGNED), 2.0, 4.0))
        told += [Row(f"{name}: {shape}", ratios.get(shape), 1.0, 1.6) for shape in SKINNY]
    single = _ratios(found.get("float32", {}), "torch")
    told.append(Row(f"float32: geometric mean of {len(single)}", geometric_mean(single.values()), 0.95, 1.05))
    for group, layout in (("epilogue", "nn"), ("linear", "nt")):
        for peer, floor, target in (("torch", 1.1, 1.2), ("torch-compile", 1.0, 1.1)):
            fused = _ratios(found.get(group, {}), peer)
            what = f"bias + gelu at {TWELVE[0]} {layout} against {peer}"
            told.append(Row(what, geometric_mean(fused.values()), floor, target))
    without = _ratios(found.get("default", {}), "torch")
    told.append(Row(f"no record: geometric mean of {len(without)}", geometric_mean(without.values()), 0.6, 0.85))
    host = found.get("host", {})
    told.append(Row("host cost of a plan call, us", host.get("plan_us"), 12.0, 6.0, least=False))
    told.append(Row("host cost of ks.matmul, us", host.get("matmul_us"), 20.0, 10.0, least=False))
    return told


def show(found: Mapping[str, Any]) -> None:
    """Each problem, then each figure with its floor and target."""
    each = []
    for name, group in found.items():
        for row in group.get("results", ()):
            ours = row.get("ours", {})
            ratios = "  ".join(f"{peer} {told['ratio']:.3f}" if "ratio" in told else f"{peer} {told['error'][:60]}"
                               for peer, told in sorted(row.get("peers", {}).items()))  # fmt: skip
            seconds = ours.get("median_s")
            time = f"{seconds * 1e6:.2f} us" if seconds else "-"
            speed = f"{_flops(row['problem']) / seconds / 1e12:.1f}" if seconds else "-"
            how = f"{ours.get('variant', '')} {ours.get('hit', '')}" if ours else row.get("error", "")[:80]
            each.append(
                (
                    name,
                    row["problem"].split(" ", 1)[1].replace(" epilogue=none layout=nn", ""),
                    time,
                    speed,
                    ratios,
                    how,
                )
            )
    table(("group", "problem", "ours", "TFLOP/s", "their time by ours", ""), each)
    show_figures(found, rows(found))


def _flops(key: str) -> float:
    return 2.0 * math.prod(int(size) for size in key.split()[1].split("x"))


def _ratios(group: Mapping[str, Any], peer: str) -> dict[str, float]:
    """Shape to the peer's time by ours, where both were timed."""
    return {row["problem"].split()[1]: row["peers"][peer]["ratio"] for row in group.get("results", ())
            if "ratio" in row.get("peers", {}).get(peer, {})}  # fmt: skip
