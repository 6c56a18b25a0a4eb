"""The records."""

from __future__ import annotations

from typing import Any

import click

from .common import json_option, named_options, print_json, problem_options, space_option, use_space


@click.group()
def cache() -> None:
    """List, check and explain the records."""


@cache.command("list")
@json_option
def cache_list(as_json: bool) -> None:
    """List the records, yours first."""
    from ..records.upkeep import list_records
    from ..report.tables import print_records

    rows = list_records()
    print_json(rows) if as_json else print_records(rows)


@cache.command("why")
@problem_options
@space_option
@click.option("--policy", default="compatible", show_default=True, help="strict, compatible or any.")
@json_option
def cache_why(op: str, shape: str, as_json: bool, space_file: str | None, **options: Any) -> None:
    """Say which record would be used, and why not others."""
    from ..problem import parse_shape
    from ..runtime import why

    use_space(space_file)
    told = why(op, shape=parse_shape(shape), **named_options(options))
    if as_json:
        print_json(told)
        return
    click.echo(told["hit"])
    for reason in told["reasons"]:
        click.echo(f"  {reason}")


@cache.command("verify")
@json_option
def cache_verify(as_json: bool) -> None:
    """Run the gates again on records that are not exact.

    Those are the ones whose compiler, measurement policy or package version changed.
    """
    from ..records.upkeep import verify_records
    from ..report.tables import print_verified

    rows = verify_records()
    print_json(rows) if as_json else print_verified(rows)
    if any(row["status"] == "rejected" for row in rows):
        raise SystemExit(1)
