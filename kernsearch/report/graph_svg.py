"""The derivation graph as a picture: phases as layers, the winner's way marked, what no template fits grey."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import figures

_LAYER_IN = 3.1  # inches from a column to the next
_GAP_IN = 0.25  # between boxes of a column
_LINE_IN = 0.15  # of text
_WIDTH_IN = 2.2  # of a box
_LETTERS = 34  # in a line of a box
_TINTS = {"algebra": "#eef3fb", "fusion": "#eef8ee", "split": "#fdf3e7"}
_WINS, _PLAIN, _GREY = "#c0392b", "#222222", "#a5a5a5"


@dataclass(frozen=True)
class Box:
    """Where a program is drawn: its column, and its centre and height in inches from the top."""

    column: int
    middle: float
    height: float
    lines: tuple[tuple[str, bool], ...]  # with: is it a template's


def picture(data: Mapping[str, Any]) -> str:
    """SVG of what `graph --format json` prints. Raises FigureError without matplotlib."""
    nodes = {node["key"]: node for node in data["nodes"]}
    columns, phases = layers(data)
    boxes = placed(data, columns)
    won = set(data.get("winner", {}).get("path", ()))
    ways = set(pairwise(data.get("winner", {}).get("path", ())))
    height = max(box.middle + box.height / 2 for box in boxes.values()) + 0.9
    width = _LAYER_IN * len(columns) + 0.2
    with figures.drawing() as pyplot:
        figure = pyplot.figure(figsize=(width, height))
        panel = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        panel.set(xlim=(0, width), ylim=(height, 0))
        panel.axis("off")
        _phases(panel, phases, height)
        for edge in data["edges"]:
            _edge(panel, edge, boxes, (edge["from"], edge["to"]) in ways)
        for key, box in boxes.items():
            _node(panel, nodes[key], box, key in won)
        _legend(panel, data, height)
        return figures.svg(figure)


def layers(data: Mapping[str, Any]) -> tuple[list[list[str]], list[tuple[str, int]]]:
    """Columns of program keys, and the phase of each group of columns with how many it has. Within a phase a program
    stands as many columns after its first as steps of that phase lead to it."""
    depth: dict[str, int] = {}
    phases = list(dict.fromkeys(node["phase"] for node in data["nodes"]))
    of = {node["key"]: node["phase"] for node in data["nodes"]}
    parents: dict[str, list[str]] = {key: [] for key in of}
    for edge in data["edges"]:
        parents[edge["to"]].append(edge["from"])
    columns: list[list[str]] = []
    counts = []
    for phase in phases:
        left = [key for key in of if of[key] == phase]
        here: list[list[str]] = []
        while left:
            near = {key: [p for p in parents[key] if of[p] == phase] for key in left}
            ready = [key for key in left if all(p in depth for p in near[key])] or left[:1]
            at = {key: 1 + max((depth[p] for p in near[key] if p in depth), default=-1) for key in ready}
            for key, column in at.items():
                depth[key] = column
                here += [[] for _ in range(column + 1 - len(here))]
                here[column].append(key)
            left = [key for key in left if key not in at]
        columns += here
        counts.append((phase, len(here)))
    return columns, counts


def placed(data: Mapping[str, Any], columns: Sequence[Sequence[str]]) -> dict[str, Box]:
    """A box for each program; those of a column stand in the order of what leads to them, so that few edges cross."""
    nodes = {node["key"]: node for node in data["nodes"]}
    winner = data.get("winner", {})
    parents: dict[str, list[str]] = {}
    for edge in data["edges"]:
        parents.setdefault(edge["to"], []).append(edge["from"])
    boxes: dict[str, Box] = {}
    for column, keys in enumerate(columns):

        def wish(key: str) -> float:
            found = [boxes[parent].middle for parent in parents.get(key, ()) if parent in boxes]
            return sum(found) / len(found) if found else 0.0

        top = 0.7
        for key in sorted(keys, key=wish):
            lines = tuple(_lines(nodes[key], winner["templates"] if key == winner.get("path", ("",))[-1] else ()))
            tall = _LINE_IN * len(lines) + 0.14
            middle = max(top + tall / 2, wish(key))
            boxes[key] = Box(column, middle, tall, lines)
            top = middle + tall / 2 + _GAP_IN
    return boxes


def _lines(node: Mapping[str, Any], chosen: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """What each kernel computes, and the templates that it fits; the chosen ones where the winner is made of them."""
    for number, kernel in enumerate(node["kernels"]):
        yield _cut(f"{number + 1}  {' '.join(kernel['computes'])}"), False
        fits = kernel["templates"]
        first = chosen[number] if chosen else fits[0] if fits else "no template"
        yield _cut(first + (f" and {len(fits) - 1} more" if len(fits) > 1 else "")), True


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _left(box: Box) -> float:
    return 0.2 + _LAYER_IN * box.column


def _phases(panel: Any, phases: Sequence[tuple[str, int]], height: float) -> None:
    from matplotlib.patches import Rectangle

    start = 0
    for phase, count in phases:
        left, width = 0.05 + _LAYER_IN * start, _LAYER_IN * count - 0.05
        panel.add_patch(Rectangle((left, 0.05), width, height - 0.45, facecolor=_TINTS.get(phase, "#f4f4f4"), zorder=0))
        panel.text(left + 0.15, 0.35, phase, fontsize=13, color=_PLAIN, va="center")
        start += count


def _node(panel: Any, node: Mapping[str, Any], box: Box, won: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = _WINS if won else _PLAIN if node["runnable"] else _GREY
    corner = (_left(box), box.middle - box.height / 2)
    panel.add_patch(
        FancyBboxPatch(
            corner, _WIDTH_IN, box.height, boxstyle="round,pad=0,rounding_size=0.06", facecolor="white",
            edgecolor=colour, linewidth=2.2 if won else 1.0, linestyle="-" if node["runnable"] else "--", zorder=3,
            gid=f"program-{node['key']}",
        )
    )  # fmt: skip
    words = _PLAIN if node["runnable"] else _GREY
    for number, (line, template) in enumerate(box.lines):
        at = corner[0] + (0.24 if template else 0.08), corner[1] + 0.07 + _LINE_IN * (number + 0.5)
        style = "italic" if template else "normal"
        panel.text(*at, line, fontsize=7.5, va="center", zorder=4, color=words, style=style, parse_math=False)
    if node["root"]:
        panel.text(corner[0], corner[1] - 0.08, "textbook", fontsize=7.5, color=words, style="italic", zorder=4)


def _edge(panel: Any, edge: Mapping[str, Any], boxes: Mapping[str, Box], won: bool) -> None:
    from matplotlib.patches import FancyArrowPatch

    a, b = boxes[edge["from"]], boxes[edge["to"]]
    start, end = (_left(a) + _WIDTH_IN, a.middle), (_left(b), b.middle)
    colour = _WINS if won else "#888888"
    panel.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0, color=colour,
                        linewidth=2.0 if won else 0.8, zorder=2 if won else 1)
    )  # fmt: skip
    # Near its end, where no other rule's arrow passes.
    at = (end[0] - 0.06, end[1] - 0.07)
    panel.text(*at, edge["rule"], fontsize=6.5, color=colour, ha="right", va="bottom", zorder=5, parse_math=False)


def _legend(panel: Any, data: Mapping[str, Any], height: float) -> None:
    told = str(data.get("problem", ""))
    if winner := data.get("winner"):
        told += f";  red: the way to {winner['variant']}, {winner['from']}"
    panel.text(0.2, height - 0.18, f"{told};  grey: a kernel without a template", fontsize=8, va="center",
               color=_PLAIN, parse_math=False)  # fmt: skip
