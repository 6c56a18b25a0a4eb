"""Tables for people: records, benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from .units import duration, interval


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell; plain text, so that a pipe gets the same as a terminal."""
    lines = [headers, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    for row in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_records(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("no records yet; `kernsearch tune` makes them")
        return
    cells = [
        (row["place"], row["problem"], row["variant"], duration(row["median_s"]) if row["median_s"] else "not measured",
         row["device"], row["status"], row["name"])
        for row in rows
    ]  # fmt: skip
    table(("where", "problem", "variant", "time", "device", "status", "name"), cells)


def print_verified(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("nothing to verify: every record is exact or about another device")
        return
    table(("record", "status", "why"), [(row["name"], row["status"], row["reason"]) for row in rows])


_HITS = {"nearest": "by the record of a near shape", "default": "by a shipped default, not tuned here"}


def print_bench(results: dict[str, Any]) -> None:
    for row in results["results"]:
        ours = row["ours"]
        click.echo(f"{row['problem']}, {results['threads']} threads, {results['cache']} caches")
        how = f"{ours['variant']}, {_HITS.get(ours['hit'], ours['hit'] + ' record')}"
        cells = [("kernsearch", duration(ours["median_s"]), "1", "", how)]
        cells += [
            (name, duration(peer["median_s"]), f"{peer['ratio']:.3f}", interval(*peer["ratio_ci"]), peer["library"])
            for name, peer in sorted(row["peers"].items())
        ]
        table(("library", "median", "of our time", "99 %", ""), cells)
        if row["busy"]:
            click.echo("the machine was busy while measuring; times are less sure than they look")
    if len(results["results"]) > 1:
        for name, ratio in sorted(results["geomean"].items()):
            click.echo(f"geometric mean: {name} takes {ratio:.3f} times our time")
