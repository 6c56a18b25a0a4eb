"""Pictures of an explanation: the steps, predicted beside measured, and where they stand under the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from ..units import duration, operations
from . import figures

_MEASURED, _PREDICTED, _LINE = "#4878a8", "#d07c2a", "#444444"
_WIDE_IN = 8.0
_TITLE = 64  # characters of a line of the title, which is above the panel alone
_ROOM = 30.0  # what is shown of the roof to the left and right of the points


def pictures(told: Mapping[str, Any]) -> dict[str, str]:
    """SVG by file name, of what `explain --json` prints: those for which there is data. Raises FigureError without
    matplotlib."""
    steps = [row for row in told.get("steps", ()) if _seconds(row)]
    bounds = told.get("bounds", {})
    with figures.drawing() as pyplot:
        drawn = {"steps.svg": _steps(pyplot, told, steps)} if steps else {}
        if "peak_flops" in bounds:
            drawn["roofline.svg"] = _roofline(pyplot, told, bounds)
        return drawn


def _seconds(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """What was predicted and measured of a step, of both what is known."""
    return [(key, row[f"{key}_s"]) for key in ("predicted", "measured") if row[f"{key}_s"] is not None]


def _steps(pyplot: Any, told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each step, from the textbook down."""
    figure, panel = pyplot.subplots(figsize=(_WIDE_IN, 1.2 + 0.42 * len(rows)))
    for height, row in enumerate(rows):
        known = dict(_seconds(row))
        if len(known) == 2:
            panel.plot(list(known.values()), [height] * 2, color=_LINE, linewidth=1, zorder=1)
        for key, seconds in known.items():
            _mark(panel, seconds, height, key)
        panel.text(1.02, height, " / ".join(duration(known[key]) if key in known else "-"
                                            for key in ("predicted", "measured")),
                   va="center", fontsize=8, transform=panel.get_yaxis_transform())  # fmt: skip
    panel.set_xscale("log")
    figures.plain_ticks(panel.xaxis, duration)
    panel.set_yticks(range(len(rows)), [f"{row['rule']}\n{row['candidate']}" for row in rows], parse_math=False)
    panel.set(xlabel="time of the step's candidate (circle: measured; diamond: predicted)",
              ylim=(len(rows) - 0.5, -0.5))  # fmt: skip
    return _done(figure, panel, told)


def _roofline(pyplot: Any, told: Mapping[str, Any], bounds: Mapping[str, Any]) -> str:
    """Rates over operations a byte; the winner's bytes are those of all arrays, once each."""
    figure, panel = pyplot.subplots(figsize=(_WIDE_IN, 4.2))
    points = list(_points(told, bounds))
    places = [bounds["ridge"], bounds["intensity"], *(x for x, _, _ in points)]
    low, high = min(places) / _ROOM, max(places) * _ROOM
    peak, copy, ridge = bounds["peak_flops"], bounds["copy_bytes_s"], bounds["ridge"]
    panel.plot([low, ridge, high], [low * copy, peak, peak], color=_LINE, linewidth=1.5, zorder=1)
    panel.axvline(bounds["intensity"], color=_LINE, linestyle=":", linewidth=1, zorder=0)
    for x, rate, key in points:
        _mark(panel, x, rate, key)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set(xlim=(low, high), xlabel="FLOP a byte of arrays that the step's program reads and writes",
              ylabel="rate (circle: measured; diamond: predicted)")  # fmt: skip
    figures.plain_ticks(panel.xaxis, lambda value: f"{value:g}")
    figures.plain_ticks(panel.yaxis, lambda rate: f"{operations(rate)}/s")
    return _done(figure, panel, told)


def _points(told: Mapping[str, Any], bounds: Mapping[str, Any]) -> Iterator[tuple[float, float, str]]:
    rows = told.get("steps", ())
    for row in rows:
        x = bounds["intensity"] if row is rows[-1] else told["flops"] / row["bytes"]
        for key, seconds in _seconds(row):
            yield x, told["flops"] / seconds, key
    if not rows and (winner := told.get("winner")) and winner["median_s"]:
        yield bounds["intensity"], told["flops"] / winner["median_s"], "measured"


def _mark(panel: Any, x: float, y: float, key: str) -> None:
    if key == "measured":
        panel.plot([x], [y], marker="o", color=_MEASURED, markersize=7, zorder=3)
    else:
        panel.plot(
            [x], [y], marker="D", color=_PREDICTED, markersize=6, fillstyle="none", markeredgewidth=1.5, zorder=4
        )


def _done(figure: Any, panel: Any, told: Mapping[str, Any]) -> str:
    panel.tick_params(labelsize=8)
    panel.set_title("\n".join([*wrap(told["problem"], _TITLE), told["device"]]), fontsize=9, parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figures.svg(figure)
