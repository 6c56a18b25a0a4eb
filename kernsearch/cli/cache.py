"""The records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import json_option, named_options, print_json, problem_options, space_option, use_space
from .outputs import Output


@click.group()
def cache() -> None:
    """List, check, explain, move and clear away the records."""


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
    from .. import backends, registry
    from ..candidate import check_memory
    from ..problem import parse_shape
    from ..runtime import why

    use_space(space_file)
    sizes, named = parse_shape(shape), named_options(options)
    backend, where = backends.resolve(named["device"])
    how = {name: value for name, value in named.items() if name not in ("device", "policy")}
    check_memory(registry.problem(op, sizes, backend=backend.name, **how), where)
    told = why(op, shape=sizes, **named)
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


@cache.command("export")
@click.argument("file", type=Output(parents=True), metavar="FILE.json")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def cache_export(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Write your records, or those named as `cache list` does, to one file."""
    from ..records.exchange import export_records

    _print_moved(export_records(file, names), as_json)


@cache.command("import")
@click.argument("file", metavar="FILE.json")
@json_option
def cache_import(file: str, as_json: bool) -> None:
    """Take in the records of a file that `cache export` wrote.

    Of two records of the same problem on the same device the faster stays, where both were measured alike, else the
    newer.
    """
    from ..records.exchange import import_records

    _print_moved(import_records(Path(file)), as_json)


@cache.command("merge")
@click.argument("places", nargs=-1, required=True, metavar="PLACE...")
@json_option
def cache_merge(places: tuple[str, ...], as_json: bool) -> None:
    """Take in the records of other caches: data folders, folders of records, or exported files."""
    from ..records.exchange import merge_records

    _print_moved([row for place in places for row in merge_records(Path(place))], as_json)


@cache.command("prune")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def cache_prune(dry_run: bool, as_json: bool) -> None:
    """Remove your records that nothing will use: damaged, rejected, outdated and doubled ones.

    Outdated are those whose kernel sources have changed. Records of other devices stay.
    """
    from ..records.exchange import prune_records

    _print_moved(prune_records(dry_run=dry_run), as_json)


def _print_moved(rows: list[dict[str, str]], as_json: bool) -> None:
    from ..report.tables import print_moved

    print_json(rows) if as_json else print_moved(rows)
