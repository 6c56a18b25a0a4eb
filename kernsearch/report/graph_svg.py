"""The derivation graph as a picture: phases as layers, the winner's way marked, what no template fits grey."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise
from typing import Any

from .graph_layout import ARROW, Box, Layout, Route, Words, laid_out

_TINTS = {"algebra": "#eef3fb", "fusion": "#eef8ee", "split": "#fdf3e7"}
WINS, PLAIN, GREY, LINES = "#c0392b", "#222222", "#8a8a8a", "#8899aa"
_TYPEFACE = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"  # no wider than the layout says


def picture(data: Mapping[str, Any]) -> str:
    """SVG of what `graph --format json` prints."""
    return "\n".join(_lines(data, laid_out(data, _legend(data)))) + "\n"


def _legend(data: Mapping[str, Any]) -> list[str]:
    told = [str(data["problem"])] if "problem" in data else []
    if winner := data.get("winner"):
        told.append(f"red: the way to {winner['variant']}, {winner['from']}")
    return [*told, "grey: a kernel of it fits no template, so it cannot run"]


def _lines(data: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    nodes = {node["key"]: node for node in data["nodes"]}
    path = data.get("winner", {}).get("path", ())
    ways = set(pairwise(path))
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'font-family="{_TYPEFACE}" role="img">')  # fmt: skip
    yield f"<title>{escape(str(data.get('problem', 'derivation')))}</title>"
    yield '<rect width="100%" height="100%" fill="white"/>'
    foot = max(box.top + box.height for box in layout.boxes.values()) + ARROW
    for phase, left, right in layout.bands:
        tint = _TINTS.get(phase, "#f4f4f4")
        yield (f'<rect x="{left:.1f}" y="8" width="{right - left - 4:.1f}" height="{foot - 8:.1f}" rx="6" '
               f'fill="{tint}"/>')  # fmt: skip
    for route in sorted(layout.routes, key=lambda route: route.edge in ways):  # the winner's on top
        yield _drawn(route, route.edge in ways)
    for key, box in layout.boxes.items():
        yield from _program(box, nodes.get(key), key in path)
    for words in layout.words:
        yield _words(words, GREY if words.kind == "rule" else PLAIN)
    yield "</svg>"


def _drawn(route: Route, won: bool) -> str:
    """Curves and level lines, and the head of an arrow."""
    (x, y), *points = route.points
    path = [f"M{x:.1f},{y:.1f}"]
    for to, level in points:
        if len(points) == 1:  # to another box of the same column
            path.append(f"C{x + 24:.1f},{y:.1f} {x + 24:.1f},{level:.1f} {to:.1f},{level:.1f}")
        elif level == y:
            path.append(f"H{to:.1f}")
        else:
            half = (x + to) / 2
            path.append(f"C{half:.1f},{y:.1f} {half:.1f},{level:.1f} {to:.1f},{level:.1f}")
        x, y = to, level
    back = ARROW if len(points) > 1 and points[-1][0] > route.points[0][0] else -ARROW
    path.append(f"m{-back:g},-3.5 l{back:g},3.5 l{-back:g},3.5")
    colour, wide = (WINS, 2.2) if won else (LINES, 1.0)
    return f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="{wide}"/>'


def _program(box: Box, node: Mapping[str, Any] | None, won: bool) -> Iterator[str]:
    """A box with its words; one without a node stands for several programs."""
    runs = node is not None and node["runnable"]
    colour = WINS if won else PLAIN if runs else GREY
    dashes = "" if runs else ' stroke-dasharray="2 3"' if node is None else ' stroke-dasharray="6 3"'
    yield f'<g id="program-{box.key}">'
    yield (f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5" '
           f'fill="white" stroke="{colour}" stroke-width="{2.2 if won else 1}"{dashes}/>')  # fmt: skip
    yield f"<title>{escape(box.told)}</title>"
    for words in box.words:
        yield _words(words, PLAIN if runs or node is None else GREY)
    yield "</g>"


def _words(words: Words, colour: str) -> str:
    style = ' font-style="italic"' if words.kind in ("template", "note") else ""
    anchor = ' text-anchor="end"' if words.ends else ""
    return (f'<text x="{words.x:.1f}" y="{words.y:.1f}" font-size="{words.height:g}" fill="{colour}"{style}{anchor} '
            f'xml:space="preserve">{escape(words.said)}</text>')  # fmt: skip
