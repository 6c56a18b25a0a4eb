"""Ladders and case studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import (
    json_option,
    named_options,
    optional_problem,
    present,
    print_json,
    progress,
    recorded_on,
    space_option,
    use_space,
    want_alone,
)
from .outputs import Output, Picture


@click.command()
@optional_problem
@space_option
@json_option
@click.option(
    "--from",
    "recorded",
    default=None,
    metavar="FILE",
    help="Print a recorded ladder; nothing is measured. The key of a device takes the one that is shipped.",
)
@click.option("--out", default=None, type=Output(parents=True), metavar="FILE",
              help="Write the data there, predictions before measuring.")  # fmt: skip
@click.option("--plot", default=None, type=Picture(), metavar="FILE", help="Draw it as well, as .svg, .png or .pdf.")
@click.option("--tried", default=6, show_default=True, metavar="N", help="Configs tried of each rung.")
def ladder(op: str | None, shape: str | None, as_json: bool, space_file: str | None, recorded: str | None,
           out: Path | None, plot: Path | None, **options: Any) -> None:  # fmt: skip
    """Climb from the plainest kernel to the best, rung by rung.

    Each rung is a template of the op at its best config, the prediction beside the measurement.

    \b
    kernsearch ladder gemm --shape 4096x4096x4096
    kernsearch ladder gemm --from recorded.json
    kernsearch ladder gemm --from cuda-nvidia-h200-sm90a --plot ladder.svg
    """
    from ..cases import climbed, recordings
    from ..report.cases import print_ladder

    if recorded is not None:
        want_alone("--from", "op", "recorded", "plot", "as_json")
        told = climbed.recording(recordings.read(recorded, f"ladder-{op or 'gemm'}", "rungs"), op, recorded)
    else:
        from ..cases import ladder as ladders
        from ..problem import parse_shape

        if op is None or shape is None:
            raise click.UsageError("want an OP and its --shape, or --from FILE")
        use_space(space_file)
        present(options["device"], recorded_on(options["device"], f"ladder-{op}"))
        told = ladders.run(op, shape=parse_shape(shape), out=out,
                           listener=progress(as_json), **named_options(options))  # fmt: skip
    print_json(told) if as_json else print_ladder(told)
    if plot is not None:
        from ..report.ladder_plot import plot_ladder

        plot_ladder(plot, told)


@click.command()
@click.argument("name", metavar="list|NAME")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@space_option
@json_option
@click.option("--out", "folder", default=None, type=Output(folder=True), metavar="DIR",
              help="Write prediction.json, data.json and the reports there.")  # fmt: skip
@click.option(
    "--from",
    "recorded",
    default=None,
    metavar="FILE",
    help="Judge recorded data; nothing is measured. The key of a device takes what is shipped.",
)
def case(name: str, device: str, as_json: bool, space_file: str | None, folder: Path | None,
         recorded: str | None) -> None:  # fmt: skip
    """List the case studies, run one, or judge a recording of it.

    A run writes its predictions down first, then measures, then judges by the samples alone. With --out it also writes
    report.html, which needs nothing beside it, and report.md with its figures; with --from too.

    \b
    kernsearch case list
    kernsearch case wave-quantization --device cuda --out waves
    kernsearch case wave-quantization --from cuda-nvidia-h200-sm90a --out waves
    """
    from ..cases import cases, find, judged, listed, recording, recordings
    from ..report.cases import print_case, print_list

    if name == "list":
        want_alone("list", "name", "space_file", "as_json")
    if recorded is not None:
        want_alone("--from", "name", "recorded", "folder", "space_file", "as_json")
    use_space(space_file)
    if name == "list":
        found_all = cases().values()
        print_json(listed(found_all)) if as_json else print_list(found_all)
        return
    found = find(name)
    if recorded is not None:
        told = judged(recording(recordings.read(recorded, name, "arms"), name, recorded), found.means)
        if folder is not None:
            recordings.keep(folder / "data.json", told)
    else:
        from ..cases import run

        present(device, recorded_on(device, name))
        told = run(found, device=device, out=folder, listener=progress(as_json))
    print_json(told) if as_json else print_case(told)
    if folder is not None:
        from ..report.case_report import write_report

        if (lacking := write_report(folder, told)) is not None:
            click.echo(f"the reports have no figures: {lacking}", err=True)
        click.echo(f"{folder / 'report.html'}", err=True)
