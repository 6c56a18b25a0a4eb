"""`kernsearch show`: one record, read by a person."""

from __future__ import annotations

import glob
from pathlib import Path

import click

from .. import sources
from ..errors import CacheError
from ..records import Record, read
from .units import duration, spelled


def read_record(name: str) -> Record:
    """The record in a file, or of a name that `cache list` prints. Raises CacheError when there is none."""
    from ..records import lookup

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
    if record.measurement is not None:
        low, high = record.measurement.ci_s
        click.echo(f"time      {duration(record.measurement.median_s)} ({duration(low)} to {duration(high)})")
    click.echo("derivation")
    for step in record.derivation:
        click.echo(f"  {step['rule']:18s} {step['site']}")
    for kernel in record.plan.kernels:
        click.echo(f"kernel    {kernel.template} ({kernel.source}), scratch {kernel.scratch} bytes")
    if log:
        click.echo("evidence")
        for gate, found in record.evidence.items():
            click.echo(f"  {gate}: {found}")
    if source:
        for kernel in record.plan.kernels:
            click.echo(f"\n// ks_generated.h for {kernel.template}\n{kernel.header}")
            click.echo(f"// {kernel.source}\n{sources.path_of(kernel.source).read_text()}")
