"""Tables for people: records, benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ..units import duration, interval


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell; plain text, so that a pipe gets the same as a terminal."""
    lines = [headers, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    for row in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def filled(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Without the columns in which no row has anything: those of another kind of device."""
    rows = list(rows)
    kept = [i for i in range(len(headers)) if any(row[i] for row in rows)]
    return [headers[i] for i in kept], [[row[i] for i in kept] for row in rows]


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


def print_moved(rows: list[dict[str, str]]) -> None:
    """What became of each record that was to be moved or removed, and how many of each."""
    if not rows:
        click.echo("nothing to do")
        return
    table(("record", "status", "why"), [(row["record"], row["status"], row["reason"]) for row in rows])
    counts = Counter(row["status"] for row in rows)
    click.echo(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))


_HITS = {"nearest": "by the record of a near shape", "default": "by a shipped default, not tuned here"}


def print_bench(results: dict[str, Any]) -> None:
    """One table a problem."""
    where = f"{results['threads']} threads" if "threads" in results else results["device_name"]
    for row in results["results"]:
        ours = row["ours"]
        click.echo(f"{row['problem']}, {where}, {results['cache']} caches")
        cells = [("kernsearch", duration(ours["median_s"]), "1", "", _how(ours))]
        cells += [
            (name, duration(peer["median_s"]), f"{peer['ratio']:.3f}", interval(*peer["ratio_ci"]), peer["library"])
            for name, peer in sorted(row["peers"].items())
        ]
        table(("library", "median", "of our time", "99 %", ""), cells)
        _print_first(row)
        if row["busy"]:
            click.echo("the machine was busy while measuring; times are less sure than they look")
    if len(results["results"]) > 1:
        _print_means(results)


def print_comparison(results: dict[str, Any]) -> None:
    """One table of many problems: our time, and how many times that each library takes."""
    where = f"{results['threads']} threads" if "threads" in results else results["device_name"]
    names = sorted({name for row in results["results"] for name in row["peers"]})
    click.echo(f"{where}, {results['cache']} caches; times of libraries by ours")
    rows = []
    for row in results["results"]:
        ours = row.get("ours")
        cells = [
            f"{row['peers'][name]['ratio']:.3f}" if "ratio" in row["peers"].get(name, {}) else "-" for name in names
        ]
        time = duration(ours["median_s"]) if ours else "-"
        rows.append((row["problem"], time, *cells, _how(ours) if ours else row["error"]))
    table(("problem", "ours", *names, ""), rows)
    for row in results["results"]:
        for name, peer in sorted(row["peers"].items()):
            if "error" in peer:
                click.echo(f"{row['problem']}: {name}: {peer['error']}")
    if any(row.get("busy") for row in results["results"]):
        click.echo("the machine was busy while measuring; times are less sure than they look")
    _print_means(results)


def print_changes(told: dict[str, Any]) -> None:
    """Our times then and now, and what they say."""
    rows = []
    for row in told["problems"]:
        beside = ", ".join(f"{ratio:.3f} beside {name}" for name, ratio in row.get("beside", {}).items())
        then = duration(row["then_s"]) if "then_s" in row else "-"
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
        busy = ", machine busy" if row.get("busy") else ""
        rows.append((row["problem"], then, duration(row["now_s"]), ratio, beside, row["verdict"] + busy))
    table(("problem", "then", "now", "now / then", "", ""), rows)
    if told["geomean"] == told["geomean"]:
        click.echo(f"geometric mean: {told['geomean']:.3f} of the time then")


def _how(ours: dict[str, Any]) -> str:
    if "variant" not in ours:
        return str(ours["called"])
    return f"{ours['variant']}, {_HITS.get(ours['hit'], ours['hit'] + ' record')}"


def _print_means(results: dict[str, Any]) -> None:
    for name, ratio in sorted(results["geomean"].items()):
        if ratio == ratio:  # NaN: the library could nowhere be timed
            count = sum("ratio" in row["peers"].get(name, {}) for row in results["results"])
            click.echo(f"geometric mean of {count}: {name} takes {ratio:.3f} times our time")


def _print_first(row: dict[str, Any]) -> None:
    """What came before the first result, a row each, where it was measured."""
    first = {"kernsearch": row["ours"].get("first")}
    first |= {name: peer.get("first") for name, peer in sorted(row["peers"].items())}
    steps = list(dict.fromkeys(step for taken in first.values() for step in taken or ()))
    if steps:
        cells = [
            [duration(taken[step]) if taken and step in taken else "-" for taken in first.values()] for step in steps
        ]
        table(("before the first result", *first), [(step, *each) for step, each in zip(steps, cells, strict=True)])
