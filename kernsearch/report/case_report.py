"""A case as files for people: `report.md` with its figures, and `report.html`, which needs nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..errors import FigureError
from .case_plot import pictures
from .case_text import markdown

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 0.8rem 0; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.7rem; text-align: left; vertical-align: top; }
th { background: #f6f6f6; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
"""


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


def html(text: str, drawn: Mapping[str, str]) -> str:
    """A page of the Markdown, figures (SVG by file name) inside it: nothing is loaded from anywhere."""
    from markdown_it import MarkdownIt

    def figure(tokens: Sequence[Any], at: int, options: Any, env: Any) -> str:
        token = tokens[at]
        said = escape(str(token.content))
        return (
            f'<figure role="img" aria-label="{said}">{inlined(drawn[token.attrs["src"]], token.attrs["src"])}</figure>'
        )

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.renderer.rules["image"] = figure  # type: ignore[attr-defined]
    title = text.partition("\n")[0].lstrip("# ").replace("\\", "")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{parser.render(text)}</body>\n</html>\n"
    )


def inlined(svg: str, name: str) -> str:
    """An SVG file as a part of a page: without prolog and metadata, and with names that no other picture has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    prefix = re.sub(r"\W", "-", name)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    return re.sub(r'href="#', f'href="#{prefix}-', svg)
