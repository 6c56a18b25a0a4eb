"""Progress of a tuning run: one live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from ..units import duration, rate

if TYPE_CHECKING:
    from rich.live import Live

    from ..tune import Event

PLAIN_EVERY_S = 5.0  # between lines of progress where there is no terminal


class Progress:
    """Listens to a tuning run. `quiet` sends nothing to standard output, and everything to standard error.

    title   what stands before every line, like which problem of how many this is
    """

    def __init__(self, *, quiet: bool, title: str = ""):
        self._before = f"[{title}] " if title else ""
        self._err = quiet
        stream = sys.stderr if quiet else sys.stdout
        self._terminal = stream.isatty()
        self._live: Live | None = None
        self._last = 0.0
        self._heard = True  # until whoever reads the pipe has gone

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

            self._live = Live("getting ready", console=Console(stderr=self._err), refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on(self, event: Event) -> None:
        """Show an event: `note` is said once and stays, `step` is the moving line."""
        if event.kind == "note":
            self._say(self._before + event.text)
            if self._live is not None:
                self._live.update("")  # what it said, such as the time left, may be over
            return
        line = self._before + _line(event)
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last >= PLAIN_EVERY_S:
            self._last = time.monotonic()
            self._say(line)

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self._heard:
            try:
                click.echo(text, err=self._err)
            except BrokenPipeError:
                self._heard = False


def _line(event: Event) -> str:
    parts = [f"{event.done}/{event.total}"]
    if event.best_s is not None:
        parts.append(f"best {duration(event.best_s)} ({rate(event.best_rate, event.unit, 1)}) by {event.best_name}")
    if event.rejected:
        parts.append(f"{event.rejected} refused")
    parts.append(f"{event.elapsed_s:.0f} s, about {event.eta_s:.0f} s left")
    parts.append(f"now {event.text}")
    return "  ".join(parts)
