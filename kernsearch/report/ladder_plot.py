"""The ladder as a picture: a bar for each rung, prediction and roofline beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

from . import figures

_BAR, _PREDICTED, _LINE = "#4878a8", "#d07c2a", "#444444"
_LEAST_FIVE = 5  # samples of which quartiles say something


def plot_ladder(path: Path, data: Mapping[str, Any]) -> None:
    """Draw what `ladder --json` prints: operations a second, measured with quartiles and predicted, for each rung from
    the bottom up; a rung that the problem cannot have says why. Raises FigureError, OutputError."""
    rows = list(data["rungs"])
    with figures.drawing() as pyplot:
        figure, panel = pyplot.subplots(figsize=(8.0, 1.3 + 0.42 * len(rows)))
        unit, word = _unit(data["flops"] / data["floor_s"])
        roof = data["flops"] / data["floor_s"] / unit
        for height, row in enumerate(rows):
            if "median_s" not in row:
                panel.text(0.01 * roof, height, row.get("absent", "not measured"), va="center", color=_LINE,
                           style="italic", fontsize=8, parse_math=False)  # fmt: skip
                continue
            rate = data["flops"] / row["median_s"] / unit
            panel.barh(height, rate, height=0.62, color=_BAR, xerr=_quartiles(row, data["flops"], unit),
                       error_kw={"elinewidth": 1, "capsize": 2})  # fmt: skip
            predicted = data["flops"] / row["predicted_s"] / unit
            panel.plot([predicted], [height], marker="D", color=_PREDICTED, markersize=5, zorder=4)
            at = max(rate, predicted) + 0.015 * roof
            panel.text(at, height, f"{rate:.3g}, {100 * row['of_floor']:.0f} % of the roofline", va="center",
                       fontsize=8)  # fmt: skip
        panel.axvline(roof, color=_LINE, linestyle="--", linewidth=1)
        panel.set_yticks(range(len(rows)), [row["rung"] for row in rows])
        panel.set(xlabel=f"{word} (bar: measured; diamond: predicted; dashed: roofline)", xlim=(0, 1.3 * roof),
                  ylim=(-0.6, len(rows) - 0.4))  # fmt: skip
        panel.set_title(f"{data['problem']}\n{data['device']['name']}, {data['date']}", fontsize=9, parse_math=False)
        panel.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        figures.save(figure, path)


def _unit(rate: float) -> tuple[float, str]:
    return (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")


def _quartiles(row: Mapping[str, Any], flops: float, unit: float) -> list[list[float]] | None:
    samples = row.get("samples_s", ())
    if len(samples) < _LEAST_FIVE:
        return None
    rate = flops / row["median_s"] / unit
    first, _, third = quantiles(samples, n=4)
    return [[max(0.0, rate - flops / third / unit)], [max(0.0, flops / first / unit - rate)]]
