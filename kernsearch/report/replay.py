"""Replays as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..replay.recording import Recording
from ..replay.result import BASELINE, Result, quantile, uniform
from ..replay.run import Run, after
from ..units import duration
from . import figures


def print_replay(recording: Recording, results: Sequence[Result]) -> None:
    """One line a searcher and budget, and before them what the recording holds and lacks."""
    failed = sum(e.seconds is None for e in recording.entries.values())
    told = [f"{len(recording.entries)} configurations"]
    told += [f"{failed} of them failed"] if failed else []
    told += [f"{recording.left_out} left out by the restrictions"] if recording.left_out else []
    told += [f"best {duration(recording.best_s)}"]
    told += [f"recorded on {recording.device}"] if recording.device else []
    click.echo(f"{recording.name}: {', '.join(told)}")
    if not recording.predicted:
        click.echo("  no predictions of our model in it: searches start without seeds")
    click.echo("  fraction of the best: median [10th to 90th percentile] over seeds; to 95 % and 99 %: median")
    for row in results:
        f = row.fraction
        budget = "" if row.budget is None else f"{row.budget:g}"
        goals = "  ".join(f"{name[3:]} %: {_to(*row.to[name])}" for name in row.to)
        seeds = "closed form" if row.searcher == BASELINE else f"{row.seeds} seeds"
        click.echo(f"  {row.searcher:12} {budget:>6}  {f['median']:.3f} [{f['p10']:.3f} to {f['p90']:.3f}]  "
                   f"{goals}  {seeds}")  # fmt: skip
    asked = sum(row.infeasible_asks for row in results), sum(row.duplicate_evaluations for row in results)
    click.echo(f"  {asked[0]} infeasible and {asked[1]} duplicate evaluations")


def plot_replay(path: Path, runs: Sequence[tuple[Recording, dict[str, list[Run]]]]) -> None:
    """Draw the median and the band from the 10th to the 90th percentile over evaluations, a panel for each recording,
    the closed-form random search dashed. The format is that of the file's ending. Raises FigureError and
    OutputError."""
    with figures.drawing() as pyplot:
        figure, panels = pyplot.subplots(1, len(runs), figsize=(6.0 * len(runs), 4.0), squeeze=False)
        for panel, (recording, by_searcher) in zip(panels[0], runs, strict=True):
            longest = max(len(run.steps) for found in by_searcher.values() for run in found)
            counts = range(1, longest + 1)
            for searcher, found in by_searcher.items():
                bands = {q: [quantile([after(run, n) for run in found], q) for n in counts] for q in (0.1, 0.5, 0.9)}
                (line,) = panel.plot(counts, bands[0.5], label=searcher)
                panel.fill_between(counts, bands[0.1], bands[0.9], alpha=0.15, color=line.get_color(), linewidth=0)
            chance = [uniform(recording, min(n, len(recording.entries)), None).fraction for n in counts]
            panel.plot(counts, [c["median"] for c in chance], "k--", linewidth=1, label="random, closed form")
            panel.plot(counts, [c["p10"] for c in chance], "k:", linewidth=1)
            panel.set(
                xlabel="evaluations", ylabel="fraction of the best", title=Path(recording.name).name, ylim=(None, 1.01)
            )
            panel.legend(loc="lower right")
        figure.tight_layout()
        figures.save(figure, path)


def _to(evaluations: float | None, seconds: float | None) -> str:
    return "-" if evaluations is None else f"{evaluations:g} ({duration(seconds or 0.0)})"
