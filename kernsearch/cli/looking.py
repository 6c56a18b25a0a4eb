"""Looking at derivations, studies, records and the machine."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from .common import (
    json_option,
    named_options,
    optional_problem,
    present,
    print_json,
    problem_options,
    progress,
    space_option,
    use_space,
    want_alone,
)
from .outputs import Output


@click.command()
@optional_problem
@space_option
@json_option
@click.option("--from", "recorded", default=None, metavar="RECORD",
              help="Explain a record, also of another device: a path, or a name that `cache list` prints.")  # fmt: skip
@click.option("--rank", is_flag=True, help="Rank all variants by the model, although there is a record.")
@click.option(
    "--measure",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Time N configs of each step's candidate, all of them in turns.",
)
@click.option("--html", "page", default=None, type=Output(), metavar="FILE",
              help="Write it as a page with pictures as well.")  # fmt: skip
def explain(op: str | None, shape: str | None, as_json: bool, space_file: str | None, recorded: str | None, rank: bool,
            measure: int, page: Path | None, **options: Any) -> None:  # fmt: skip
    """Show derivation, predictions, measurements and what bounds it.

    \b
    kernsearch explain gemm --shape 2304x1544x4096
    kernsearch explain --from gemm_4096x4096x4096_bfloat16_epilogue=none_layout=nn
    kernsearch explain gemm --shape 2304x1544x4096 --html winner.html
    kernsearch explain softmax --shape 512x4096 --measure 4
    """
    from ..problem import parse_shape
    from ..report.explain import explained, explanation
    from ..report.explained import print_explanation
    from ..report.record import read_record

    use_space(space_file)
    if recorded is not None:
        want_alone("--from", "recorded", "page", "space_file", "as_json")
        told = explained(read_record(recorded))
    else:
        if op is None or shape is None:
            raise click.UsageError("want an OP and its --shape, or --from RECORD")
        present(options["device"], "--from RECORD explains a record of a device that is elsewhere, and "
                                   "`kernsearch cache list` names those that are shipped")  # fmt: skip
        told = explanation(op, shape=parse_shape(shape), rank=rank, measure=measure, listener=progress(as_json),
                           **named_options(options))  # fmt: skip
    if page is not None:
        from ..report.explain_page import write_page

        if (lacking := write_page(page, told)) is not None:
            click.echo(f"{page} has no pictures: {lacking}", err=True)
    print_json(told) if as_json else print_explanation(told)


@click.command()
@problem_options
@space_option
@click.option("--format", "form", default="json", show_default=True, metavar="FORM", help="json, graphml, dot or svg.")
def graph(op: str, shape: str, form: str, space_file: str | None, **options: Any) -> None:
    """Write the derivation graph to standard output.

    \b
    kernsearch graph softmax --shape 512x4096 --format svg > softmax.svg
    """
    from ..problem import parse_shape
    from ..report.graph import derivation_graph

    use_space(space_file)
    click.echo(derivation_graph(op, form=form, shape=parse_shape(shape), **named_options(options)))


@click.command()
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="0: any that is free.",
)
@click.option("--storage", default=None, metavar="URL", help="As of tune.  [default: SQLite in the data folder]")
def dashboard(port: int, storage: str | None) -> None:
    """Show the studies in a browser, also while they grow.

    Serves optuna-dashboard on this machine alone, for reading only, until Ctrl-C. A search that goes on is not
    disturbed.

    \b
    kernsearch dashboard
    kernsearch dashboard --storage runs.db --port 8081
    """
    from ..report.dashboard import address, open_server, yield_processor

    with open_server(port, storage) as server:
        yield_processor()
        click.echo(f"{address(server)}\nCtrl-C ends it")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@click.command()
@click.argument("record")
@click.option("--source", is_flag=True, help="Print the kernels' sources, generated headers included.")
@click.option("--log", is_flag=True, help="Print what the gates and the compiler found.")
@json_option
def show(record: str, source: bool, log: bool, as_json: bool) -> None:
    """Show a record: a path, or a name that `cache list` prints."""
    from ..report.record import print_record, read_record

    found = read_record(record)
    if as_json:
        print_json(found.to_json())
    else:
        print_record(found, source=source, log=log)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show device, compiler, folders and libraries."""
    from ..report.doctor import examine, print_findings

    findings = examine()
    print_json(findings) if as_json else print_findings(findings)
    if not findings["ok"]:
        raise SystemExit(2)
