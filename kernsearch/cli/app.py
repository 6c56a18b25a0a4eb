"""The group of all commands, and the entry point."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

from ..errors import KernsearchError, NothingSurvived
from . import cache, looking, replaying, studies, timing, tuning
from .common import complain, given_twice, op_options


class _ReaderGone(Exception):
    """Nobody reads our output any more."""


class _Commands(click.Group):
    """A group that says in its own words when a pipe has broken; click would exit with 1, which has a meaning here.
    Options that no command has and some op does are passed on as --option: `--kv-heads 4`. Of an option that is given
    twice click would take the last."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, command, words = super().resolve_command(ctx, op_options(args, set(_options(self))))
        if command is None or ctx.resilient_parsing:
            return name, command, words
        if (twice := given_twice(command, words, ctx)) is not None:
            raise click.UsageError(f"{twice} is given twice: want each option once")
        return name, command, words

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error


def _options(command: click.Command) -> Iterator[str]:
    """The options of a command and of those below it."""
    for param in command.params:
        yield from (*param.opts, *param.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="kernsearch", prog_name="kernsearch")
def cli() -> None:
    """Find the fastest kernel for your shape on your device, prove it right, and keep it."""


for command in (
    tuning.tune, timing.bench, looking.explain, looking.graph, studies.ladder, studies.case, looking.show, cache.cache,
    looking.dashboard, looking.doctor, replaying.replay, replaying.export,
):  # fmt: skip
    cli.add_command(command)


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    """Warnings, as of a record that is skipped, in one line, without the line of source that Python adds."""
    with contextlib.suppress(OSError):  # as Python's own: a warning that cannot be written is none
        complain(str(message) if category is UserWarning else f"{filename}:{lineno}: {category.__name__}: {message}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every foreseen error is one line on standard error."""
    _open_standard_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            cli.main(args=arguments, prog_name="kernsearch", standalone_mode=False)
    except KernsearchError as error:
        complain(str(error))
        if isinstance(error, NothingSurvived):
            for reason, count in sorted(error.reasons.items(), key=lambda item: (-item[1], item[0])):
                click.echo(f"  {count:5d}  {reason}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        complain(error.format_message())
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted; no record was changed, and trials of `tune` that had ended are kept")
        sys.exit(130)
    except _ReaderGone:  # that is the reader's right; what is still to be flushed goes nowhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.exit(0)
    except MemoryError:
        complain("out of memory")
        sys.exit(2)
    except OSError as error:  # what the system refuses: files, processes, descriptors, a full disk behind our output
        where = f"{error.filename!r}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        sys.exit(2)


def _open_standard_streams() -> None:
    """Standard streams that the caller has closed become empty ones: no file opened later may take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  as long as the process
