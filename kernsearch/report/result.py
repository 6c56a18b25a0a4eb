"""What `kernsearch tune` says when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..units import duration, interval, spelled, told_rate

if TYPE_CHECKING:
    from ..tune import Result


def print_result(result: Result) -> None:
    record = result.record
    measured, default = record.measurement, record.default_measurement
    assert measured is not None and default is not None  # a tuned record holds both
    low, high = measured.ci_s
    speed = told_rate(record.evidence)
    click.echo(f"variant   {record.variant}")
    click.echo(f"config    {spelled(record.config)}")
    click.echo(f"time      {duration(measured.median_s)} ({duration(low)} to {duration(high)})"
               + (f", {speed}" if speed else ""))  # fmt: skip
    speedup = record.evidence.get("speedup")
    if result.default_kept or speedup is None:
        also = "; others were as fast" if record.tie else ""
        click.echo(f"default   kept: nothing beat the default candidate with confidence{also}")
    else:
        times = f"{speedup['value']:.3f} times as fast {interval(*speedup['ci'])}"
        click.echo(f"default   {duration(default.median_s)}; the winner is {times}")
    if record.tie and not result.default_kept:
        click.echo("tie       other candidates were as fast; the one with fewer resources was taken")
    if measured.busy:
        click.echo("busy      the machine was busy while measuring; times are less sure than they look")
    click.echo(f"trials    {trials(result)}")
    for reason, count in sorted(result.refusals.items(), key=lambda item: (-item[1], item[0]))[:8]:
        click.echo(f"          {count:4d}  {reason}")
    if result.interrupted:
        click.echo("stopped   by you; what was found is kept")
    click.echo(f"record    {result.path}" + ("" if result.recorded else " (an earlier one, faster; it stays)"))


def trials(result: Result) -> str:
    counts = result.counts
    infeasible = counts["rejected"]["space"]
    refused = sum(counts["rejected"].values()) - infeasible
    said = [f"{counts['measured']} measured", f"{refused} refused by gates"]
    said += [f"{infeasible} asks outside the space"] if infeasible else []
    said += [f"{counts['duplicates']} duplicates"] if counts["duplicates"] else []
    said += [f"{result.resumed} from earlier runs"] if result.resumed else []
    return f"{', '.join(said)}; {result.elapsed_s:.0f} s"
