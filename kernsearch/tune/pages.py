"""The pages of a study: a note on the whole, and a note and files for each finalist.

They are written between batches and at the end, each time in one transaction, so that no clock waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import sources
from ..derive import Variant, annotation
from ..search.notes import Page, shortened
from ..units import duration, rate, spelled

if TYPE_CHECKING:
    from ..measure import Playoff, Verdict
    from ..search import Past
    from .session import Passed, Session

EVERY_S = 5.0  # between two notes while the search goes on


class Pages:
    """Writes the pages of a session's study."""

    def __init__(self, session: Session):
        self._session = session
        self._last = -EVERY_S  # when the study's note was written, on the monotonic clock
        self._told: tuple[str, float] | None = None

    def follow(self) -> None:
        """Write the study's note if there is a new best and the last note is some time ago."""
        session, now = self._session, time.monotonic()
        if session.best is None or now - self._last < EVERY_S:
            return
        seconds, candidate = session.best
        if self._told != (candidate.name, seconds):
            self._told, self._last = (candidate.name, seconds), now
            session.search.annotate({None: Page(self._study())})

    def begin(self) -> None:
        """What is known before anything is measured."""
        self._session.search.annotate({None: Page(self._study())})

    def end(self, finalists: Mapping[Any, Passed], played: Playoff, told: Verdict) -> None:
        """The finalists' pages, and the study's with what the play-off said."""
        numbers = {(p.variant, tuple(sorted(p.config.items()))): p.number for p in self._session.search.finished()}
        known = {numbers[key]: p for c, p in finalists.items() if (key := (c.variant, c.config)) in numbers}
        note = self._study([told.sentence, "", *_times(played, told.keep, known)])
        pages: dict[int | None, Page] = {None: Page(note)}
        pages |= {number: self._finalist(passed, played, told) for number, passed in known.items()
                  if passed.candidate.name in played.measurements}  # fmt: skip
        self._session.search.annotate(pages)

    def _study(self, playoff: Sequence[str] = ()) -> str:
        session = self._session
        lines = [f"# {session.problem.key}", "", f"Device: {session.device.name} (`{session.device.key}`)  ",
                 f"Compiler: {session.toolchain}  ",
                 f"Least time that arithmetic and memory allow: {duration(session.prospects.floor_s)}", ""]  # fmt: skip
        best = session.search.best()
        if best is None or best.seconds is None:
            return "\n".join([*lines, "Nothing is measured yet."])
        lines += ["## Best so far", "", *self._best(best), ""]
        if playoff:
            lines += ["## Play-off", "", *playoff, "",
                      "Notes and files of these are on the pages of their trials.", ""]  # fmt: skip
        if (variant := session.prospects.variants.get(best.variant)) is not None:
            lines += ["## Derivation", "", *_derivation(variant)]
        return "\n".join(lines)

    def _best(self, best: Past) -> Iterator[str]:
        assert best.seconds is not None  # it is the best of the measured ones
        rate = self._rate(best.seconds)
        yield f"Trial {best.number}: {duration(best.seconds)}, {rate}, proposed by `{best.origin}`"
        yield ""
        yield f"`{best.variant}` {spelled(best.config)}"

    def _rate(self, seconds: float) -> str:
        return rate(self._session.work, self._session.unit, seconds)

    def _finalist(self, passed: Passed, played: Playoff, told: Verdict) -> Page:
        candidate, session = passed.candidate, self._session
        name = candidate.name
        measured = played.measurements[name]
        (low, high), rate = measured.ci_s, self._rate(measured.median_s)
        kept = " It is the one that is kept." if told.keep == name else ""
        lines = [f"# Finalist{' and winner' if kept else ''}", "",
                 f"`{candidate.variant}` {spelled(dict(candidate.config))}",
                 "", f"Play-off: {duration(measured.median_s)} ({duration(low)} to {duration(high)}), {rate}.{kept}",
                 "", f"The model predicted {duration(session.prospects.predicted_s(candidate))}."]  # fmt: skip
        if name in played.ratios:
            ratio = played.ratios[name]
            lines += ["", f"It takes {ratio.value:.3f} [{ratio.ci[0]:.3f}, {ratio.ci[1]:.3f}] of the default's time."]
        lines += ["", "## Derivation", "", *_derivation(session.prospects.variants[candidate.variant])]
        lines += ["", "## What the compiler said", "", *_table(passed)]
        if passed.evidence:
            found = (f"- {key}: {_value(value)}" for key, value in sorted(passed.evidence.items()))
            lines += ["", "## Thorough gates", "", *found]
        return Page("\n".join(lines), dict(self._files(passed)))

    def _files(self, passed: Passed) -> Iterator[tuple[str, str]]:
        """Source, generated header and the compiler's findings of each kernel."""
        for number, (kernel, built) in enumerate(zip(passed.plan.kernels, passed.compiled, strict=True), 1):
            path = sources.path_of(kernel.source)
            yield f"{number}-{path.name}", shortened(sources.text(path))
            yield f"{number}-ks_generated.h", shortened(kernel.header)
            defines = " ".join(f"-D{letter}={value}" for letter, value in sorted(kernel.defines.items()))
            said = [f"compiler: {self._session.toolchain}", f"source: {kernel.source}", f"entry: {kernel.entry}",
                    f"flags: {' '.join(kernel.flags)}", f"defines: {defines}",
                    *(f"{key}: {value}" for key, value in built.evidence.items())]  # fmt: skip
            yield f"{number}-compiler.log", shortened("\n".join(said) + "\n")


def _times(played: Playoff, kept: str, finalists: Mapping[int, Passed]) -> Iterator[str]:
    """A row for each finalist by the number of its trial, the fastest first: its time beside that of the one kept."""
    winner_s = played.measurements[kept].median_s
    timed = [(played.measurements[name], number, name) for number, passed in finalists.items()
             if (name := passed.candidate.name) not in played.refused]  # fmt: skip
    yield from ("| trial | candidate | median | 99 % | of the winner's time |", "| --- | --- | --- | --- | --- |")
    for measured, number, name in sorted(timed, key=lambda row: row[0].median_s):
        low, high = measured.ci_s
        yield (f"| {number} | {name} | {duration(measured.median_s)} | {duration(low)} to {duration(high)} "
               f"| {measured.median_s / winner_s:.3f} |")  # fmt: skip
    for number, passed in finalists.items():
        if (name := passed.candidate.name) in played.refused:
            yield f"| {number} | {name} | failed while it was timed: {played.refused[name]} | | |"


def _derivation(variant: Variant) -> list[str]:
    """Rules as a list, the schedule's steps in words."""
    names = {key: name for name, key in variant.program.keys.items()}
    lines = [f"{number}. rule `{step.rule}`" for number, step in enumerate(variant.path, 1)]
    schedule = [annotation(step.site.choice, names) for step in variant.steps[len(variant.path) :]]
    return [*lines, f"{len(lines) + 1}. schedule: {', '.join(schedule) or 'none'}"]


def _table(passed: Passed) -> list[str]:
    keys = list(dict.fromkeys(key for built in passed.compiled for key in built.evidence))
    names = [kernel.template for kernel in passed.plan.kernels]
    rows = [f"| {key} | " + " | ".join(str(b.evidence.get(key, "")) for b in passed.compiled) + " |" for key in keys]
    return [f"| | {' | '.join(names)} |", "| --- |" + " --- |" * len(names), *rows]


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
