"""What `kernsearch case` and `kernsearch ladder` print."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ..cases import recordings, wrong
from ..units import duration, interval, rate, spelled
from .tables import filled, table

_COMPILER = {"registers": "registers", "spill_stores": "spilled", "vector_spills": "spilled vectors"}  # evidence
_SAYS = {"loses": "slower", "wins": "faster", "tie": "no different", "refused": "not the same result"}
_PAGE, _NARROWEST = 100, 40  # columns
_IS = {"loses": "loses", "wins": "wins", "tie": "is a tie"}


def print_list(found: Iterable[Any]) -> None:
    """Names and claims of cases, and the devices that a recorded run is shipped of."""
    for case in found:
        where = ", ".join(recordings.shipped(case.name)) or "nowhere yet"
        told = f"{case.name}: {case.op} on {' and '.join(case.backends)}, recorded on {where}"
        click.echo(_fitted(told, after="    "))
        click.echo(_fitted(case.claim, before="  ", after="  "))
        click.echo("")


def _fitted(text: str, before: str = "", after: str = "") -> str:
    """Lines that fit the terminal, or a page where there is none; `before` and `after` begin the first and the next."""
    width = shutil.get_terminal_size((_PAGE, 0)).columns if sys.stdout.isatty() else _PAGE
    return textwrap.fill(text, max(width, _NARROWEST), initial_indent=before, subsequent_indent=after,
                         break_on_hyphens=False, break_long_words=False)  # fmt: skip


def print_case(data: Mapping[str, Any]) -> None:
    """Arms with prediction and measurement, comparisons, and the verdict."""
    device = data["device"]
    click.echo(f"{data['case']} on {device['name']} ({device['key']}), {data['date']}")
    click.echo(f"claim      {data['claim']}")
    click.echo(f"mechanism  {data['mechanism']}\n")
    rows = []
    for arm in data["arms"]:
        compiled = arm.get("evidence", {}).get("compile", [])
        found = [[int(part[key]) for part in compiled if key in part] for key in _COMPILER]
        rows.append((
            arm["label"], duration(arm["predicted_s"]), duration(arm["median_s"]), arm_rate(arm),
            _waves(arm), *(str(max(values)) if values else "" for values in found),
            arm["variant"], spelled(arm["config"]), ", ".join(arm.get("how", ())),
        ))  # fmt: skip
    headers = ("arm", "predicted", "measured", "rate", "waves", *_COMPILER.values(), "variant", "config", "how")
    table(*filled(headers, rows))
    click.echo("")
    for arm in data["arms"]:
        if (refused := arm.get("refused")) is not None:
            click.echo(f"{arm['label']}: refused by gate {refused['gate']}: {refused['reason']}\n")
        if counted := arm.get("turns"):
            told = ", ".join(f"{name} {c['turns']} for {c['accesses']}" for name, c in counted.items())
            click.echo(f"{arm['label']}: turns of shared memory a block: {told} accesses")
    changes = [
        (c["label"], f"{c['predicted']:.3f}", f"{c['measured']:.3f}", interval(*c["ci"]), verdict_said(c))
        for c in data["comparisons"]
    ]
    table(("change", "predicted", "measured", "99 %", "verdict"), changes)
    click.echo(f"\nverdict: {verdict_line(data)}")
    for c in wrong(data):
        note = f": {c['note']}" if c.get("note") else "; no explanation is recorded"
        click.echo(f"wrong prediction: {c['label']}: {c['predicted_verdict']} was said, it {_IS[c['verdict']]}{note}")


def arm_rate(arm: Mapping[str, Any]) -> str:
    """Operations a second of an arm, or useful bytes where the op computes nothing."""
    work, unit = (arm["useful_bytes"], "B") if "useful_bytes" in arm else (arm["flops"], "FLOP")
    return rate(work, unit, arm["median_s"])


def verdict_line(data: Mapping[str, Any]) -> str:
    """The verdict in one line, with its size."""
    verdict = data["verdict"]
    each = " an operation" if data["comparisons"][0]["per"] == "flop" else ""
    said = f"{verdict['size']:.2f} times the time{each}"
    if verdict["verdict"] == "tie":
        said = "within 1 % or within the noise"
    elif verdict["verdict"] == "refused":
        low, high = verdict["ci"]
        said = f"it would take {said}" + (", within the noise" if low <= 1 <= high else "")
    return f"{verdict_said(verdict)} ({verdict['of']}: {_SAYS[verdict['verdict']]}, {said})"


def verdict_said(found: Mapping[str, Any]) -> str:
    """The verdict of a comparison, or of a case, and what it says in the terms of the claim where the word alone would
    mislead."""
    return found["verdict"] + (f": {found['says']}" if "says" in found else "")


def print_ladder(data: Mapping[str, Any]) -> None:
    """A row for each rung, the plainest first."""
    device = data["device"]
    click.echo(f"{data['problem']} on {device['name']} ({device['key']}), {data['date']}")
    click.echo(f"roofline floor {duration(data['floor_s'])}\n")
    found = {**_COMPILER, "shared_bytes": "shared", "occupancy": "blocks"}
    rows: list[tuple[str, ...]] = []
    for row in data["rungs"]:
        if "median_s" not in row:
            rows.append((row["rung"], *[""] * (6 + len(found)), row.get("absent", "")))
            continue
        rows.append((
            row["rung"], duration(row["predicted_s"]), duration(row["median_s"]),
            rate(data["flops"], "FLOP", row["median_s"]), f"{100 * row['of_floor']:.1f} %",
            *(str(row.get(key, "")) for key in found), _waves(row),
            "" if row.get("error") is None else f"{row['error']:.2f}", spelled(row["config"]),
        ))  # fmt: skip
    headers = ("rung", "predicted", "measured", "rate", "of floor", *found.values(), "waves", "error", "config")
    shown, cells = filled(headers, rows)
    table(shown, cells)
    said = {"predicted": "predicted: of the first config that the model proposed, before anything was measured",
            "error": "error: the largest, as a share of what is allowed",
            "blocks": "blocks: resident on one multiprocessor"}  # fmt: skip
    click.echo("\n" + "\n".join(line for heading, line in said.items() if heading in shown))


def _waves(row: Mapping[str, Any]) -> str:
    return "" if row.get("waves") is None else f"{row['waves']:.2f}"
