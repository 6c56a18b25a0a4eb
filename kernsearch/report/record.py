"""`kernsearch show`: one record, read by a person."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from .. import registry, sources
from ..derive import annotation
from ..errors import CacheError, KernsearchError
from ..records import Record, lookup, read
from ..units import duration, size, spelled, told_rate


def read_record(name: str) -> Record:
    """The record in a file, or of a name that `cache list` prints. Raises CacheError when there is none."""
    path = Path(name)
    if not path.is_file():
        store = lookup.store()
        found = [p for _, place in store.places() for p in place.glob(f"*/{glob.escape(path.stem)}.json")]
        if not found:
            raise CacheError(f"record {name!r}: want a path, or a name that `kernsearch cache list` prints")
        path = found[0]
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise CacheError(f"record {str(path)!r} cannot be read: {error}") from error


def print_record(record: Record, *, source: bool, log: bool) -> None:
    click.echo(record.problem.key)
    click.echo(f"device    {record.fingerprint.device} ({record.fingerprint.name})")
    click.echo(f"compiler  {record.fingerprint.compiler}")
    click.echo(f"variant   {record.variant}")
    click.echo(f"config    {spelled(record.config)}")
    for line in _times(record):
        click.echo(line)
    if record.created:
        click.echo(f"created   {record.created}")
    names = _names(record)
    for i, step in enumerate(record.derivation):
        click.echo(f"{'' if i else 'derived':9s} {_step(step, names)}")
    for i, kernel in enumerate(record.plan.kernels):
        click.echo(f"{'' if i else 'kernels':9s} {kernel.template} ({kernel.source})")
    if (workspace := record.evidence.get("gates", {}).get("workspace_bytes")) is not None:
        click.echo(f"workspace {size(workspace)}")
    if log:
        click.echo("evidence")
        for name, found in record.evidence.items():
            if name == "searched":  # of the search, not of the winner: `explain` tells it
                continue
            for line in _finalists(found) if name == "finalists" else _lines(found):
                click.echo(f"  {name}: {line}")
    if source:
        for kernel in record.plan.kernels:
            click.echo(f"\n// ks_generated.h for {kernel.template}\n{kernel.header}")
            click.echo(f"// {kernel.source}\n{sources.path_of(kernel.source).read_text()}")


def _times(record: Record) -> list[str]:
    """How fast it is, compared with what, and how sure that is."""
    measured, default = record.measurement, record.default_measurement
    if measured is None:
        return ["time      never measured: the model's pick"]
    (low, high), speed = measured.ci_s, told_rate(record.evidence)
    lines = [
        f"time      {duration(measured.median_s)} ({duration(low)} to {duration(high)})"
        + (f", {speed}" if speed else "")
    ]
    if default is not None and default != measured:
        lines.append(f"default   {duration(default.median_s)}")
    if verdict := record.evidence.get("verdict"):
        lines.append(f"play-off  {verdict}")
    return lines


def _finalists(found: Mapping[str, float]) -> list[str]:
    """Candidates of the play-off, the fastest first."""
    return [f"{duration(seconds)} {name}" for name, seconds in sorted(found.items(), key=lambda item: item[1])]


def _lines(found: Any) -> list[str]:
    """A piece of evidence, a line for each of several things."""
    if isinstance(found, list):
        return [line for each in found for line in _lines(each)]
    if isinstance(found, dict):
        return [", ".join(f"{name} {_value(value)}" for name, value in found.items()) or "none"]
    return [_value(found)]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return spelled(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _names(record: Record) -> dict[str, str]:
    """The textbook's names of values by their keys; none when its op is not known here."""
    try:
        root = registry.op(record.problem.op).root(record.problem)
    except KernsearchError:
        return {}
    return {key: name for name, key in root.keys.items()}


def _step(step: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """A rule by its name, a step of the schedule in words."""
    choice = step["site"].get("choice")
    return annotation(choice, names) if isinstance(choice, list | tuple) and choice[0] == step["rule"] else step["rule"]
