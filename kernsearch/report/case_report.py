"""A case as files for people: `report.md` with its figures, and `report.html`, which needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import files
from ..errors import FigureError
from .case_plot import pictures
from .case_text import markdown
from .page import html


def write_report(folder: Path, data: Mapping[str, Any]) -> str | None:
    """Write the reports of judged data into a folder that exists. Returns why there are no figures in them, or None.

    Raises OutputError when the files cannot be written: then none is.
    """
    lacking, drawn = None, {}
    try:
        drawn = pictures(data)
    except FigureError as error:
        lacking = str(error)
    text = markdown(data, tuple(drawn))
    found = {**drawn, "report.md": text, "report.html": html(text, drawn)}
    files.hand({folder / name: content for name, content in found.items()})
    return lacking
