"""A case as files for people: `report.md` with its figures, and `report.html`, which needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FigureError
from .case_plot import pictures
from .case_text import markdown
from .page import html


def write_report(folder: Path, data: Mapping[str, Any]) -> str | None:
    """Write the reports of judged data into a folder that exists. Returns why there are no figures in them, or None.

    Raises FigureError when the files cannot be written.
    """
    lacking, drawn = None, {}
    try:
        drawn = pictures(data)
    except FigureError as error:
        lacking = str(error)
    text = markdown(data, tuple(drawn))
    files = {**drawn, "report.md": text, "report.html": html(text, drawn)}
    try:
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise FigureError(f"--out {str(folder)!r}: {error}") from error
    return lacking
