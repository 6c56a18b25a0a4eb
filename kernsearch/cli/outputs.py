"""Files and folders that a command will write: looked at before it does anything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class Output(click.ParamType):
    """A file that can be written, or a folder of files (`folder`), as a Path.

    `endings` are those that its name may have; `parents`: folders above it are made. A usage error in one line for
    anything else, so that nothing is measured for a result that nobody gets.
    """

    name = "path"

    def __init__(self, *endings: str, folder: bool = False, parents: bool = False):
        self.endings, self.folder, self.parents = endings, folder, parents or folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if (refusal := self._refusal(path)) is not None:
            named = "" if param is None else f"{param.opts[0] if isinstance(param, click.Option) else param.metavar} "
            raise click.UsageError(f"{named}{str(value)!r}: {refusal}", ctx)
        return path

    def _refusal(self, path: Path) -> str | None:
        if self.endings and path.suffix.lower() not in self.endings:
            *others, last = self.endings
            return f"want a name that ends in {', '.join(others)}{' or ' if others else ''}{last}"
        if path.exists():
            if path.is_dir() != self.folder:
                return "is a file, want a folder" if self.folder else "is a folder, want a file"
            if not os.access(path, os.W_OK):
                return "cannot be written"
            if not path.is_file():  # a folder, or a pipe
                return None
        above = Path(os.path.realpath(path)).parent  # where a draft is written that takes the file's place
        while self.parents and not above.exists():
            above = above.parent
        if not above.is_dir():
            return f"there is no folder {str(above)!r}"
        return None if os.access(above, os.W_OK | os.X_OK) else f"folder {str(above)!r} cannot be written"


class Picture(Output):
    """A file that matplotlib can draw. Raises FigureError without matplotlib."""

    def __init__(self) -> None:
        super().__init__(".svg", ".png", ".pdf")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from ..report import figures

        path = super().convert(value, param, ctx)
        figures.check()
        return path
