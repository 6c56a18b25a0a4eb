"""What `explain` prints, from its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ..units import duration, interval, operations, size, spelled, three
from .tables import table

_RANKED = 12  # variants listed
_REASONS = 12  # of refusals
RATES = {"guessed": ", whose rates are guessed from its architecture",
         "shipped": ", by rates that were measured on such a device and are shipped",
          "unknown": ", of which nothing is known here: no predictions"}  # fmt: skip
_SOURCES = {"search": " (a look)"}
_TOLD_APART = {True: "significant", False: "not significant: the play-off could not tell them apart",
               None: "the record does not say whether that is significant"}  # fmt: skip


def print_explanation(told: dict[str, Any]) -> None:
    click.echo(f"{told['problem']} on {told['device']}{RATES.get(told['rates'], '')}")
    click.echo(f"{told['programs']} programs derived, {told['variants']} variants, {operations(told['flops'])}\n")
    winner = told.get("winner")
    if told["ranked"]:
        _ranked(told["predicted"])
    if winner is not None or told["predicted"]:
        click.echo(f"derivation of {winner['variant'] if winner else told['predicted'][0]['variant']}")
        _steps(told)
    if winner is not None:
        click.echo("\nmeasured")
        table(("", "time", ""), list(time_rows(winner)))
        click.echo(winner["verdict"] or "")
        if winner["runner_up"] is not None:
            click.echo(runner_up_line(winner["runner_up"]))
    if "bounds" in told:
        click.echo("\nwhat bounds it")
        for line in bound_lines(told["bounds"]):
            click.echo(f"  {line}")
    if shares := told.get("importances"):
        click.echo("\nparameters by importance")
        click.echo("  " + ", ".join(f"{letter} {share:.0%}" for letter, share in shares.items()))
    if told.get("refused"):
        _refused(told["refused"])
    if winner is None:
        click.echo("\nnot measured yet: `kernsearch tune` does that")


def _ranked(rows: list[dict[str, Any]]) -> None:
    click.echo("the model's pick of each variant")
    cells = [(row["variant"], duration(row["seconds"]), row["bound"], spelled(row["config"])) for row in rows]
    table(("variant", "predicted", "bound by", "config"), cells[:_RANKED])
    click.echo("")


def _steps(told: dict[str, Any]) -> None:
    if "no_steps" in told:
        click.echo(f"  {told['no_steps']}")
        return
    cells = [
        (row["rule"], size(row["bytes"]), str(row["launches"]), row["candidate"] or "no template fits",
         seconds_or_dash(row["predicted_s"]), measured_or_dash(row), row["what"])
        for row in told["steps"]
    ]  # fmt: skip
    table(("step", "memory traffic", "launches", "candidate", "predicted", "measured", "what"), cells)
    for line in step_notes(told["steps"]):
        click.echo(f"  {line}")


def step_notes(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a reader of the table of steps has to know."""
    if steps and steps[-1]["rule"] == "schedule":
        yield "traffic: what kernels want of arrays, each element once; of the schedule what its tiles read, caches too"
    if all(row["measured_in"] != "rounds" for row in steps):
        yield "measured: what the search has timed; `--measure 2` times all steps side by side, and the record keeps it"


def seconds_or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def measured_or_dash(step: dict[str, Any]) -> str:
    """The measured time of a step, and where it was taken unless in the play-off."""
    return seconds_or_dash(step["measured_s"]) + _SOURCES.get(step["measured_in"], "")


def time_rows(winner: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Winner, prediction, default and runner-up: a name, a time, and what ran."""
    between = f" ({duration(winner['ci_s'][0])} to {duration(winner['ci_s'][1])})" if winner["ci_s"] else ""
    yield "winner", seconds_or_dash(winner["median_s"]), f"{winner['variant']} {spelled(winner['config'])}{between}"
    if winner.get("predicted_s"):
        yield "predicted", duration(winner["predicted_s"]), f"bound by {winner['bound']}"
    if winner["default_median_s"] and winner["default"]:
        gain = winner["speedup"]
        says = f", the winner is {gain['value']:.3f} {interval(*gain['ci'])} times as fast" if gain else ""
        yield "default", duration(winner["default_median_s"]), winner["default"]["variant"] + says
    if winner["runner_up"]:
        yield "runner-up", duration(winner["runner_up"]["median_s"]), winner["runner_up"]["name"]


def runner_up_line(second: dict[str, Any]) -> str:
    return f"the runner-up takes {second['ratio']:.3f} of the winner's time, {_TOLD_APART[second['significant']]}"


def bound_lines(bounds: dict[str, Any]) -> Iterator[str]:
    """What bounds the winner, a sentence each."""
    yield from bounds.get("says", ())
    here = f"roofline: {three(bounds['intensity'])} FLOP a byte"
    if "least_s" in bounds:
        least = f"{bounds['roof']} allows no less than {duration(bounds['least_s'])}"
        yield f"{here}, the device's ridge is at {three(bounds['ridge'])}: {least}"
    else:
        yield here
    if "of_peak" in bounds:
        yield f"it reaches {bounds['of_peak']:.1%} of the arithmetic peak and {bounds['of_copy']:.1%} of a copy's rate"
    if parts := bounds.get("parts_s"):
        yield "by the model: " + ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items())
    if evidence := bounds.get("evidence"):
        yield "by the compiler and the launch: " + ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in evidence.items() if value != ""
        )  # fmt: skip


def _refused(refused: dict[str, Any]) -> None:
    if refused["by_gate"]:
        click.echo("\nrefused, by gate: " + ", ".join(f"{gate} {n}" for gate, n in refused["by_gate"].items()))
    rows = sorted(refused["reasons"], key=lambda row: (-row["count"], row["reason"]))
    for row in rows[:_REASONS]:
        click.echo(f"  {row['count']:4d}  {row['gate'] + ': ' if row['gate'] else ''}{row['reason']}")
    if len(rows) > _REASONS:
        click.echo(f"  and {len(rows) - _REASONS} other reasons")
