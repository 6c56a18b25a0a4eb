"""What `kernsearch case` and `kernsearch ladder` print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from ..cases import recordings, wrong
from .tables import table
from .units import duration, interval, rate

_SAYS = {"loses": "slower", "wins": "faster", "tie": "no different", "refused": "not the same result"}
_IS = {"loses": "loses", "wins": "wins", "tie": "is a tie"}


def print_list(found: Iterable[Any]) -> None:
    """Names and claims of cases, and the devices that a recorded run is shipped of."""
    rows = [
        (case.name, case.op, ", ".join(case.backends), ", ".join(recordings.shipped(case.name)) or "-", case.claim)
        for case in found
    ]
    table(("case", "op", "on", "recorded", "claim"), rows)


def print_case(data: Mapping[str, Any]) -> None:
    """Arms with prediction and measurement, comparisons, and the verdict."""
    device = data["device"]
    click.echo(f"{data['case']} on {device['name']} ({device['key']}), {data['date']}")
    click.echo(f"claim      {data['claim']}")
    click.echo(f"mechanism  {data['mechanism']}\n")
    rows = []
    for arm in data["arms"]:
        compiled = arm.get("evidence", {}).get("compile", [{}])
        registers = max((int(part.get("registers", 0)) for part in compiled), default=0)
        spills = max((int(part.get("spill_stores", 0)) for part in compiled), default=0)
        waves = "" if arm.get("waves") is None else f"{arm['waves']:.2f}"
        config = " ".join(f"{letter}={value}" for letter, value in arm["config"].items())
        cells = (arm["label"], duration(arm["predicted_s"]), duration(arm["median_s"]))
        speed = f"{arm['flops'] / arm['median_s'] / 1e12:.3g}"
        if "useful_bytes" in arm:
            speed = rate(arm["useful_bytes"], "B", arm["median_s"])
        how = ", ".join(arm.get("how", ()))
        rows.append((*cells, speed, waves, str(registers or ""), str(spills), arm["variant"], config, how))
    headers = ("arm", "predicted", "measured", "TFLOP/s", "waves", "registers", "spilled", "variant", "config", "how")
    table(headers, rows)
    click.echo("")
    for arm in data["arms"]:
        if (refused := arm.get("refused")) is not None:
            click.echo(f"{arm['label']}: refused by gate {refused['gate']}: {refused['reason']}\n")
        if counted := arm.get("turns"):
            told = ", ".join(f"{name} {c['turns']} for {c['accesses']}" for name, c in counted.items())
            click.echo(f"{arm['label']}: turns of shared memory a block: {told} accesses")
    changes = [
        (c["label"], f"{c['predicted']:.3f}", f"{c['measured']:.3f}", interval(*c["ci"]), c["verdict"])
        for c in data["comparisons"]
    ]
    table(("change", "predicted", "measured", "99 %", "verdict"), changes)
    click.echo(f"\nverdict: {verdict_line(data)}")
    for c in wrong(data):
        note = f": {c['note']}" if c.get("note") else ""
        click.echo(f"wrong prediction: {c['label']}: {c['predicted_verdict']} was said, it {_IS[c['verdict']]}{note}")


def verdict_line(data: Mapping[str, Any]) -> str:
    """The verdict in one line, with its size."""
    verdict = data["verdict"]
    each = " an operation" if data["comparisons"][0]["per"] == "flop" else ""
    said = f"{verdict['size']:.2f} times the time{each}"
    if verdict["verdict"] == "tie":
        said = "within 1 % or within the noise"
    elif verdict["verdict"] == "refused":
        said = f"it would take {said}"
    return f"{verdict['verdict']} ({verdict['of']}: {_SAYS[verdict['verdict']]}, {said})"


def print_ladder(data: Mapping[str, Any]) -> None:
    """A row for each rung, the plainest first."""
    device = data["device"]
    click.echo(f"{data['problem']} on {device['name']} ({device['key']}), {data['date']}")
    click.echo(f"roofline floor {duration(data['floor_s'])}\n")
    rows = []
    for row in data["rungs"]:
        if "median_s" not in row:
            rows.append((row["rung"], *[""] * 10, row.get("absent", "")))
            continue
        error = "" if row.get("error") is None else f"{row['error']:.2f}"
        waves = "" if row.get("waves") is None else f"{row['waves']:.2f}"
        rows.append((
            row["rung"], duration(row["predicted_s"]), duration(row["median_s"]),
            f"{data['flops'] / row['median_s'] / 1e12:.3g}", f"{100 * row['of_floor']:.1f} %",
            *(str(row.get(key, "")) for key in ("registers", "shared_bytes", "spill_stores", "occupancy")),
            waves, error, " ".join(f"{letter}={value}" for letter, value in row["config"].items()),
        ))  # fmt: skip
    headers = ("rung", "predicted", "measured", "TFLOP/s", "of floor", "registers", "shared", "spilled", "blocks",
               "waves", "error", "config")  # fmt: skip
    table(headers, rows)
    click.echo("\npredicted: of the first config that the model proposed, before anything was measured")
    click.echo("error: the largest, as a share of what is allowed; blocks: resident on one multiprocessor")
