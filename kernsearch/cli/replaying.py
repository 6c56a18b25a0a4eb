"""Searches of recorded spaces, and writing our own down for others to search."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import click

from ..errors import RecordingError, SpaceError
from .common import json_option, print_json, progress
from .outputs import Output, Picture


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--searcher",
    "searchers",
    multiple=True,
    metavar="NAME",
    help="As in `tune`, or uniform: random search in closed form. May be repeated.  [default: that of `tune`]",
)
@click.option("--budget", "budgets", multiple=True, type=int, metavar="N",
              help="Evaluations; may be repeated.  [default: 100]")  # fmt: skip
@click.option("--budget-seconds", type=float, default=None, metavar="S",
              help="Recorded time of compiling, checking and timing, and processor time of the search.")  # fmt: skip
@click.option("--seeds", default=10, show_default=True, metavar="R", help="Searches, with seeds 0 to R - 1.")
@click.option("--restrict", default=None, metavar="FILE",
              help="What is feasible, an expression over parameters a line.  [default: what is recorded]")  # fmt: skip
@click.option("--model-seeds", is_flag=True, help="Start from what our model promised, where a recording holds it.")
@click.option("--warm-from", multiple=True, metavar="FILE",
              help="Another recording, of a near shape or another device, to learn from. May be repeated.")  # fmt: skip
@click.option("--early-stop", default=0.0, metavar="GAIN",
              help="End a search that expects to save less than this share of the time.  [default: never]")  # fmt: skip
@click.option("--plot", default=None, type=Picture(), metavar="FILE",
              help="Draw progress over evaluations, as .svg, .png or .pdf.")  # fmt: skip
@json_option
def replay(
    files: tuple[str, ...], searchers: tuple[str, ...], budgets: tuple[int, ...], budget_seconds: float | None,
    seeds: int, restrict: str | None, model_seeds: bool, warm_from: tuple[str, ...], early_stop: float,
    plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Search recorded spaces, beside what random search comes to.

    Reads caches of Kernel Tuner, T4, and what `export` writes, also compressed by gzip.

    \b
    kernsearch replay gemm_RTX_3090.json.gz --budget 50 --budget 100 --seeds 100
    kernsearch replay trials.jsonl --searcher expected --searcher tpe --plot progress.svg
    """
    from ..replay import Budget, read, restrictions
    from ..replay import replay as replayed
    from ..replay.result import BASELINE, result, uniform
    from ..report.replay import plot_replay, print_replay
    from ..search import DEFAULT, SEARCHERS

    searchers = searchers or (DEFAULT,)
    for name in searchers:
        if name not in (*SEARCHERS, BASELINE):
            raise SpaceError(f"searcher {name!r}: want one of {', '.join((*SEARCHERS, BASELINE))}")
    if budgets and budget_seconds is not None:
        raise click.UsageError("--budget beside --budget-seconds: want one or the other")
    budgets = budgets if budgets or budget_seconds is not None else (100,)
    if seeds < 1 or any(n < 1 for n in budgets) or not (budget_seconds is None or budget_seconds > 0):
        raise click.UsageError("--seeds, --budget and --budget-seconds: want numbers above 0")
    if not 0 <= early_stop < 1:
        raise click.UsageError(f"--early-stop {early_stop}: want a share of the time, from 0 to below 1")
    rules = () if restrict is None else restrictions(restrict)
    recordings = [read(name, rules) for name in files]
    sources = [read(name).source() for name in warm_from]
    for recording, source in product(recordings, sources):
        if not source.within(recording.spaces).rows:
            raise RecordingError(f"--warm-from {source.name!r}: holds no variant of {recording.name}, want one of "
                                 f"{', '.join(recording.spaces)}")  # fmt: skip
    say = progress(as_json)
    told: list[dict[str, Any]] = []
    drawn = []
    for recording in recordings:
        found = {}
        for name in (n for n in searchers if n != BASELINE):
            say(f"{recording.name}: {name}")
            found[name] = replayed(
                recording, name, Budget(max(budgets, default=None), budget_seconds), range(seeds), warm=model_seeds,
                sources=sources, early_stop=early_stop,
            )  # fmt: skip
        say("")
        rows = [result(recording, name, runs, n, n or budget_seconds) for name, runs in found.items()
                for n in budgets or (None,)]  # fmt: skip
        ends = budgets or [max((len(run.steps) for runs in found.values() for run in runs), default=100)]
        chance = [uniform(recording, min(n, len(recording.entries)), n) for n in ends]
        told += [row.to_json() for row in (*rows, *(chance if BASELINE in searchers else ()))]
        drawn.append((recording, found))
        if not as_json:
            print_replay(recording, [*rows, *chance])
    if plot is not None:
        plot_replay(plot, drawn)
    if as_json:
        print_json({"results": told})


@click.command()
@click.argument("study")
@click.option("--format", "form", default="jsonl", show_default=True, metavar="FORM", help="t4, csv or jsonl.")
@click.option(
    "--storage", default=None, metavar="URL", help="Where the study is.  [default: SQLite in the data folder]"
)
@click.option("--out", default=None, type=Output(), metavar="FILE",
              help="Write there; .gz compresses.  [default: standard output]")  # fmt: skip
def export(study: str, form: str, storage: str | None, out: Path | None) -> None:
    """Write the trials of a study for others to replay.

    STUDY is its name, its hash, or any part of the name that only it has. Of the formats, `replay` reads t4 and jsonl;
    jsonl keeps all that is known of a trial.

    \b
    kernsearch export "gemm 96x80x64 float32" --format t4 --out trials.json
    """
    from ..replay.export import text_of, write

    told = text_of(study, form, storage)
    if out is None:
        click.echo(told, nl=False)
    else:
        write(out, told)
