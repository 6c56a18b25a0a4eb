"""Pages for people: text in Markdown, and the same as one HTML file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

_SHORT = 14  # characters of a cell that stays in one line: "40.75 TFLOP/s"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 0.8rem 0; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.7rem; text-align: left; vertical-align: top; }
th { background: #f6f6f6; }
td.short { white-space: nowrap; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
"""


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
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{_cells(parser.render(text))}</body>\n</html>\n"
    )


def _cells(page: str) -> str:
    """Cells as they can be read: a number stays with its unit, and a long name may break after a plus."""

    def cell(found: re.Match[str]) -> str:
        said = found[1]
        opened = '<td class="short">' if len(said) <= _SHORT else "<td>"
        return f"{opened}{said.replace('+', '+<wbr>')}</td>"

    return re.sub(r"<td>([^<]*)</td>", cell, page)


def inlined(svg: str, name: str) -> str:
    """An SVG file as a part of a page: without prolog and metadata, and with names that no other picture has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    prefix = re.sub(r"\W", "-", name)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    return re.sub(r'href="#', f'href="#{prefix}-', svg)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, without the columns in which no row has anything."""
    lines = [[plain(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(headers)) if any(line[i] for line in lines)]
    for line in ([plain(header) for header in headers], ["---"] * len(headers), *lines):
        yield "| " + " | ".join(line[i] for i in kept) + " |"
    yield ""


def plain(text: str) -> str:
    """Text that Markdown leaves as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!])", r"\\\1", " ".join(text.split()))
