"""Pictures of a case: how each change came out beside what was said of it, and the times of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cases.verdict import TIE
from ..units import duration
from . import figures

_COLOURS = {"wins": "#2e7d4f", "loses": "#c0392b", "tie": "#777777", "refused": "#7b3fa0"}
_PREDICTED, _LINE, _BAND, _DOT = "#d07c2a", "#444444", "#eeeeee", "#4878a8"
_WIDE_IN = 8.0


def pictures(data: Mapping[str, Any]) -> dict[str, str]:
    """SVG by file name, of judged data. Raises FigureError without matplotlib."""
    with figures.drawing() as pyplot:
        return {"changes.svg": _changes(pyplot, data), "times.svg": _times(pyplot, data)}


def _changes(pyplot: Any, data: Mapping[str, Any]) -> str:
    """A row for each comparison: the ratio with its interval, and the predicted one; left of 1 is faster."""
    rows = list(data["comparisons"])
    figure, panel = pyplot.subplots(figsize=(_WIDE_IN, 1.2 + 0.45 * len(rows)))
    panel.axvspan(1 - TIE, 1 + TIE, color=_BAND, zorder=0)
    panel.axvline(1.0, color=_LINE, linewidth=1, zorder=1)
    for height, row in enumerate(rows):
        low, high = row["ci"]
        colour = _COLOURS[row["verdict"]]
        panel.plot([low, high], [height, height], color=colour, linewidth=2.5, zorder=2)
        panel.plot([row["measured"]], [height], marker="o", color=colour, markersize=6, zorder=3)
        panel.plot([row["predicted"]], [height], marker="D", color=_PREDICTED, markersize=5, zorder=4,
                   fillstyle="none", markeredgewidth=1.5)  # fmt: skip
        panel.text(1.02, height, f"{row['verdict']} {row['measured']:.2f}", color=colour, va="center", fontsize=8,
                   transform=panel.get_yaxis_transform())  # fmt: skip
    panel.set_xscale("log")
    figures.plain_ticks(panel.xaxis, lambda value: f"{value:g}")
    names = [row["label"] for row in rows]
    panel.set_yticks(range(len(rows)), [_wrapped(name) for name in names], parse_math=False)
    panel.set(xlabel="time after by time before (circle with 99 % interval: measured; diamond: predicted)",
              ylim=(len(rows) - 0.5, -0.5))  # fmt: skip
    return _done(figure, panel, data)


def _times(pyplot: Any, data: Mapping[str, Any]) -> str:
    """A row for each arm: every sample, the median, and the predicted time."""
    rows = list(data["arms"])
    figure, panel = pyplot.subplots(figsize=(_WIDE_IN, 1.2 + 0.42 * len(rows)))
    for height, row in enumerate(rows):
        samples = row["samples_s"]
        panel.plot(samples, [height] * len(samples), linestyle="", marker="o", markersize=4, color=_DOT, alpha=0.45)
        panel.plot([row["median_s"]] * 2, [height - 0.3, height + 0.3], color=_LINE, linewidth=2)
        panel.plot([row["predicted_s"]], [height], marker="D", color=_PREDICTED, markersize=5, fillstyle="none",
                   markeredgewidth=1.5)  # fmt: skip
        panel.text(1.02, height, duration(row["median_s"]), va="center", fontsize=8,
                   transform=panel.get_yaxis_transform())  # fmt: skip
    panel.set_xscale("log")
    figures.plain_ticks(panel.xaxis, duration)
    panel.set_yticks(range(len(rows)), [_wrapped(row["label"]) for row in rows], parse_math=False)
    panel.set(xlabel="time of a call (dots: rounds; line: median; diamond: predicted)", ylim=(len(rows) - 0.5, -0.5))
    return _done(figure, panel, data)


def _wrapped(label: str, width: int = 44) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(label, width))


def _done(figure: Any, panel: Any, data: Mapping[str, Any]) -> str:
    panel.tick_params(axis="y", labelsize=8)
    panel.set_title(f"{data['case']} on {data['device']['name']}, {data['date']}", fontsize=9, parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figures.svg(figure)
