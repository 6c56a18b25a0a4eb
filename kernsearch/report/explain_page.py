"""`kernsearch explain --html FILE`: what it prints as one page for people, with pictures, that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..errors import FigureError
from ..units import duration, operations, size, spelled
from .explain_plot import pictures
from .explained import RATES, bound_lines, measured_or_dash, runner_up_line, seconds_or_dash, step_notes, time_rows
from .page import html, plain, table

_ALT = {"steps.svg": "time of each step's candidate, predicted and measured",
        "roofline.svg": "the device's roofline, and where the steps stand under it"}  # fmt: skip


def write_page(path: Path, told: Mapping[str, Any]) -> str | None:
    """Write what `explain --json` prints as a page. Returns why there are no pictures in it, or None.

    Raises OutputError when the file cannot be written.
    """
    lacking, drawn = None, {}
    try:
        drawn = pictures(told)
    except FigureError as error:
        lacking = str(error)
    files.hand({path: html(markdown(told, tuple(drawn)), drawn)})
    return lacking


def markdown(told: Mapping[str, Any], figures: Sequence[str]) -> str:
    """The text of the page. `figures` are the files of `explain_plot.pictures`, beside it."""
    return "\n".join(_lines(told, figures)) + "\n"


def _lines(told: Mapping[str, Any], figures: Sequence[str]) -> Iterator[str]:
    winner = told.get("winner")
    yield f"# {plain(told['problem'])}\n"
    yield f"On {plain(told['device'])}{plain(RATES.get(told['rates'], ''))}: {told['programs']} programs derived, " \
          f"{told['variants']} variants, {plain(operations(told['flops']))}.\n"  # fmt: skip
    if winner is None:
        yield "Not measured yet: `kernsearch tune` does that.\n"
    else:
        yield from _measured(winner)
    yield from _derivation(told, figures)
    if "bounds" in told:
        yield "## What bounds it\n"
        yield from (f"- {plain(line)}" for line in bound_lines(told["bounds"]))
        yield ""
        yield from _figure("roofline.svg", figures)
        if "roofline.svg" in figures:
            yield "The dotted line is the least that any program must move: all arrays once each.\n"
    if winner is not None:
        yield from _search(told)
    if told["ranked"]:
        yield "## The model's pick of each variant\n"
        yield from table(
            ("variant", "predicted", "bound by", "config"),
            [(row["variant"], duration(row["seconds"]), row["bound"], spelled(row["config"]))
             for row in told["predicted"]],
        )  # fmt: skip


def _measured(winner: Mapping[str, Any]) -> Iterator[str]:
    yield "## Measured\n"
    yield from table(("", "time", "what"), list(time_rows(dict(winner))))
    if winner["verdict"]:
        yield f"**{plain(winner['verdict'])}**\n"
    if winner["runner_up"] is not None:
        yield f"{plain(runner_up_line(winner['runner_up']))}\n"


def _derivation(told: Mapping[str, Any], figures: Sequence[str]) -> Iterator[str]:
    yield "## Derivation\n"
    if "no_steps" in told:
        yield f"{plain(told['no_steps'])}\n"
    if not (steps := told.get("steps")):
        return
    yield "Each step is shown by its plainest candidate, the last one by the winner: its schedule, all at once.\n"
    for note in step_notes(steps):
        yield f"- {plain(note)}"
    yield ""
    yield from table(
        ("step", "what it does", "memory traffic", "launches"),
        [(row["rule"], row["what"], size(row["bytes"]), str(row["launches"])) for row in steps],
    )
    yield from _figure("steps.svg", figures)
    yield from table(
        ("step", "candidate", "config", "predicted", "bound by", "measured"),
        [(row["rule"], row["candidate"] or "no template fits", spelled(row["config"]) if row["config"] else "",
          seconds_or_dash(row["predicted_s"]), row["bound"] or "",
          measured_or_dash(row)) for row in steps],
    )  # fmt: skip


def _search(told: Mapping[str, Any]) -> Iterator[str]:
    yield "## Parameters by importance\n"
    shares, refused = told["importances"], told["refused"]
    if shares:
        yield from table(("parameter", "share of the variation"), [(k, f"{v:.0%}") for k, v in shares.items()])
    else:
        yield "The record does not say: it was made before records kept them, or too few candidates were measured.\n"
    yield "## Refused, by gate\n"
    if refused["by_gate"]:
        yield from table(("gate", "refused"), [(gate, str(n)) for gate, n in refused["by_gate"].items()])
    rows = sorted(refused["reasons"], key=lambda row: (-row["count"], row["reason"]))
    if rows:
        yield from table(("count", "gate", "reason"), [(str(r["count"]), r["gate"] or "", r["reason"]) for r in rows])
    else:
        yield "None.\n"


def _figure(name: str, figures: Sequence[str]) -> Iterator[str]:
    if name in figures:
        yield f"![{_ALT[name]}]({name})\n"
