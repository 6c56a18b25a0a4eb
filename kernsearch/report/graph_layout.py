"""Where the programs of a derivation graph are drawn: columns of boxes, and lines that pass between boxes.

Lengths are pixels from the top left. From column to column there is room for curves, then room for the names of rules,
in which all lines run level; a line to a farther column has a place of its own between the boxes that it passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

WIDE = 0.6  # of a letter by its height, in a typeface whose letters are all as wide
WORDS, NAMES, TITLES = 12.0, 10.0, 15.0  # heights of letters: in boxes, of rules, of phases
LINE = 16.0  # from a line of words to the next
MARGIN, INSIDE, BETWEEN = 16.0, 8.0, 14.0  # around all, within a box, between boxes of a column
TOP = 52.0  # of the highest box, below the names of phases
PASS = 10.0  # height of the place of a line that passes
ARROW = 8.0
MANY = 40  # programs, from which the columns hold few
MOST, FEW = 8, 5  # boxes of a column; of more programs those that say most are drawn, and a box counts the others
LETTERS, NAMED = 38, 3  # in a line of a box; rules that are named where they lead to one box

Edge = tuple[str, str]
Place = tuple[str, int]  # a box and its column, or whose line passes which column


@dataclass(frozen=True)
class Words:
    """Words on one line. x is where they begin, or where they end (`ends`); y is their foot. `kind`: kernel, template,
    note, rule, phase or legend."""

    x: float
    y: float
    said: str
    height: float = WORDS
    kind: str = "kernel"
    ends: bool = False

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        wide = WIDE * self.height * len(self.said)
        left = self.x - wide if self.ends else self.x
        return left, self.y - 0.8 * self.height, left + wide, self.y + 0.25 * self.height


@dataclass(frozen=True)
class Box:
    """A program, or `many` of them that are counted only. `told` is all that is known of it, uncut."""

    key: str
    column: int
    left: float
    top: float
    width: float
    height: float
    words: tuple[Words, ...]
    told: str = ""
    many: int = 1

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


@dataclass(frozen=True)
class Route:
    """The way of an edge: level lines, and curves where the next point is higher or lower, which stay between the two.
    Of two points alone it bends round the right side of a column."""

    edge: Edge
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: tuple[Route, ...]
    words: tuple[Words, ...]  # outside of boxes
    bands: tuple[tuple[str, float, float], ...]  # phase, left and right


def laid_out(data: Mapping[str, Any], legend: Sequence[str] = ()) -> Layout:
    """The layout of what `graph --format json` prints, above lines of a legend."""
    columns, phases = layers(data)
    drawn = _drawn(data, columns)
    legend = [*legend, *_hidden(drawn, len(data["nodes"]))]
    order = _ordered(drawn)
    middles = _middles(drawn, order)
    across = _across(drawn, len(columns))
    boxes = {key: _box(node, across, middles[key, node.column]) for key, node in drawn.nodes.items()}
    words = [
        Words(boxes[key].left - ARROW - 3, boxes[key].middle + door - 4, said, NAMES, "rule", ends=True)
        for key, node in drawn.nodes.items()
        for said, door in zip(node.names, _doors(len(node.names)), strict=True)
        if said
    ]
    bands, first = [], 0
    for phase, count in phases:
        left, right = across.begins[first], across.begins[first + count]
        bands.append((phase, left, right))
        words.append(Words(left + INSIDE, TOP - 24, phase, TITLES, "phase"))
        first += count
    bottom = max(box.top + box.height for box in boxes.values()) + MARGIN
    width = max(across.begins[-1] + MARGIN / 2, MARGIN * 2 + WIDE * WORDS * 56)
    for line in _wrapped(legend, int((width - 2 * MARGIN) / (WIDE * WORDS))):
        bottom += LINE
        words.append(Words(MARGIN, bottom, line, kind="legend"))
    routes = tuple(_route(edge, drawn, boxes, across, middles) for edge in drawn.edges)
    return Layout(width, bottom + MARGIN / 2, boxes, routes, tuple(words), tuple(bands))


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


# What is drawn -------------------------------------------------------------------------------------------------------


@dataclass
class _Node:
    key: str
    column: int
    lines: list[tuple[str, str]]  # words and their kind
    told: str
    many: int = 1
    names: list[str] = field(default_factory=list)  # of the rules that lead here, one for each place where lines end

    @property
    def width(self) -> float:
        return 2 * INSIDE + WIDE * WORDS * max(len(words) for words, _ in self.lines)

    @property
    def height(self) -> float:
        return max(LINE * len(self.lines) + INSIDE, LINE * len(self.names))


@dataclass
class _Drawn:
    nodes: dict[str, _Node]
    edges: dict[Edge, list[str]]  # with the rules
    won: set[Edge]

    def links(self) -> Iterator[tuple[Place, Place, Edge]]:
        """From each place to one of the next column, on the way of an edge."""
        for edge in self.edges:
            yield from ((a, b, edge) for a, b in pairwise(self.way(edge)))

    def way(self, edge: Edge) -> list[Place]:
        """The places of an edge from left to right. Lines from one box run together as long as they can."""
        first, last = sorted(edge, key=lambda key: self.nodes[key].column)
        begin, end = self.nodes[first].column, self.nodes[last].column
        passed = [(f"{first}>", column) for column in range(begin + 1, end)]
        return [(first, begin), *passed, (last, end)]


def _drawn(data: Mapping[str, Any], columns: Sequence[Sequence[str]]) -> _Drawn:
    """The programs as nodes with what is said of each; in a column of many the rest is one node."""
    winner = data.get("winner", {})
    path = list(winner.get("path", ()))
    of = {node["key"]: node for node in data["nodes"]}
    near = {edge["to"] for edge in data["edges"] if edge["from"] in path}
    near |= {edge["from"] for edge in data["edges"] if edge["to"] in path}

    def rank(key: str) -> tuple[bool, bool, bool, int]:
        return key not in path, key not in near, not of[key]["runnable"], -len(of[key]["variants"])

    most = FEW if len(of) >= MANY else MOST
    stands: dict[str, str] = {}
    nodes: dict[str, _Node] = {}
    for column, keys in enumerate(columns):
        kept = set(keys if len(keys) <= most else sorted(keys, key=rank)[: most - 1])
        rest = [key for key in keys if key not in kept]
        for key in (key for key in keys if key in kept):
            nodes[key] = _program(of[key], column, winner.get("templates", ()) if path[-1:] == [key] else ())
        if rest:
            nodes[f"rest-{column}"] = _counted(f"rest-{column}", column, [of[key] for key in rest])
        stands |= {key: key if key in kept else f"rest-{column}" for key in keys}
    edges: dict[Edge, list[str]] = {}
    for edge in data["edges"]:
        if (ends := (stands[edge["from"]], stands[edge["to"]])) and ends[0] != ends[1]:
            edges.setdefault(ends, []).append(edge["rule"])
    for key, node in nodes.items():
        leads = [found for (a, to), found in edges.items() if to == key and nodes[a].column < node.column]
        rules = list(dict.fromkeys(rule for found in leads for rule in found))
        node.names = rules if len(rules) <= NAMED else [f"{len(rules)} rules"]
        if any(a == key and nodes[to].column < node.column for a, to in edges):
            node.names.append("")  # what leads back begins there
    return _Drawn(nodes, edges, set(pairwise(path)) & edges.keys())


def _program(node: Mapping[str, Any], column: int, chosen: Sequence[str]) -> _Node:
    """What each kernel computes, and the templates that it fits; the chosen ones where the winner is made of them."""
    lines, told = [("textbook", "note")] if node["root"] else [], []
    for number, kernel in enumerate(node["kernels"]):
        computes, fits = f"{number + 1} {' '.join(kernel['computes'])}", kernel["templates"]
        first = chosen[number] if chosen else fits[0] if fits else "no template"
        more = f" and {len(fits) - 1} more" if len(fits) > 1 else ""
        lines += [(_cut(computes), "kernel"), ("  " + _cut(first, LETTERS - 2 - len(more)) + more, "template")]
        told += [computes, "  " + (", ".join(fits) or "no template")]
    return _Node(node["key"], column, lines, "\n".join(told))


def _counted(key: str, column: int, rest: Sequence[Mapping[str, Any]]) -> _Node:
    run = sum(node["runnable"] for node in rest)
    lines = [(f"and {len(rest)} more", "note"), (f"{run} of them can run", "note")]
    counts = Counter(len(node["kernels"]) for node in rest)
    told = ", ".join(f"{n} of {k} kernel{'s' if k > 1 else ''}" for k, n in sorted(counts.items()))
    return _Node(key, column, lines, told, len(rest))


def _hidden(drawn: _Drawn, programs: int) -> Iterator[str]:
    if rest := sum(node.many for key, node in drawn.nodes.items() if key.startswith("rest-")):
        yield f"{programs - rest} of {programs} programs are drawn, near the winner's first; --format json has all"


def _cut(text: str, letters: int = LETTERS) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _wrapped(lines: Iterable[str], letters: int) -> Iterator[str]:
    import textwrap

    for line in lines:
        yield from textwrap.wrap(line, letters)


# Order and height ----------------------------------------------------------------------------------------------------


def _ordered(drawn: _Drawn) -> list[list[Place]]:
    """The places of each column from top to bottom, so that few lines cross: each in turn goes to where its neighbours
    are on average, of the column before and of the column after by turns."""
    columns: list[list[Place]] = [[] for _ in range(1 + max(node.column for node in drawn.nodes.values()))]
    for key, node in drawn.nodes.items():
        columns[node.column].append((key, node.column))
    links = list(dict.fromkeys((a, b) for a, b, _ in drawn.links() if a[1] != b[1]))
    for place in dict.fromkeys(place for link in links for place in link):
        if place not in columns[place[1]]:
            columns[place[1]].append(place)
    best, fewest = columns, _crossings(columns, links)
    for turn in range(12):
        columns = [list(column) for column in columns]
        for column in columns if turn % 2 == 0 else reversed(columns):
            beside: dict[Place, list[float]] = {place: [] for place in column}
            at = {place: i / len(c) for c in columns for i, place in enumerate(c)}
            for a, b in links:
                here, there = (b, a) if turn % 2 == 0 else (a, b)
                if here in beside:
                    beside[here].append(at[there])
            column.sort(key=lambda place: sum(beside[place]) / len(beside[place]) if beside[place] else at[place])
        if (crossings := _crossings(columns, links)) < fewest:
            best, fewest = columns, crossings
    return best


def _crossings(columns: Sequence[Sequence[Place]], links: Sequence[tuple[Place, Place]]) -> int:
    at = {place: i for column in columns for i, place in enumerate(column)}
    count = 0
    for column in range(len(columns) - 1):
        ends = sorted((at[a], at[b]) for a, b in links if a[1] == column)
        count += sum(one[0] < other[0] and one[1] > other[1] for i, one in enumerate(ends) for other in ends[i + 1 :])
    return count


def _middles(drawn: _Drawn, order: Sequence[Sequence[Place]]) -> dict[Place, float]:
    """The height of each place: as near to its neighbours' as order and distances allow, the winner's way the most."""
    beside: dict[Place, list[tuple[Place, float]]] = {place: [] for column in order for place in column}
    for a, b, edge in drawn.links():
        if a[1] != b[1]:
            weight = 8.0 if edge in drawn.won else 1.0
            beside[a].append((b, weight))
            beside[b].append((a, weight))
    tall = {place: drawn.nodes[place[0]].height if place[0] in drawn.nodes else PASS for place in beside}
    found: dict[Place, float] = {}
    for column in order:
        found |= _spread(column, tall, dict.fromkeys(column, 0.0))
    for turn in range(10):
        for column in order if turn % 2 == 0 else reversed(order):
            wish = {place: sum(w * found[other] for other, w in beside[place]) / sum(w for _, w in beside[place])
                    if beside[place] else found[place] for place in column}  # fmt: skip
            found |= _spread(column, tall, wish)
    top = min(middle - tall[place] / 2 for place, middle in found.items())
    return {place: middle - top + TOP for place, middle in found.items()}


def _spread(column: Sequence[Place], tall: Mapping[Place, float], wish: Mapping[Place, float]) -> dict[Place, float]:
    """Heights in that order with room between, as near to the wished ones as that allows: neighbours that would come
    too near share the mean of what they wish."""
    offsets = [0.0]
    for above, below in pairwise(column):
        offsets.append(offsets[-1] + (tall[above] + tall[below]) / 2 + BETWEEN)
    groups: list[tuple[float, int]] = []  # mean and how many
    for place, offset in zip(column, offsets, strict=True):
        mean, count = wish[place] - offset, 1
        while groups and groups[-1][0] > mean:
            other, n = groups.pop()
            mean, count = (mean * count + other * n) / (count + n), count + n
        groups.append((mean, count))
    flat = [mean for mean, count in groups for _ in range(count)]
    return {place: mean + offset for place, mean, offset in zip(column, flat, offsets, strict=True)}


# Across, and the lines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Across:
    """Of each column: where its room begins, where its names of rules do, where its boxes do, and how wide these are;
    `begins` has one more, for the end of all."""

    begins: list[float]
    names: list[float]
    boxes: list[float]
    widths: list[float]


def _across(drawn: _Drawn, columns: int) -> _Across:
    begins, names, boxes, widths = [MARGIN / 2], [], [], []
    crowd = Counter(b[1] for a, b in {(a, b) for a, b, _ in drawn.links()} if a[1] != b[1])
    for column in range(columns):
        here = [node for node in drawn.nodes.values() if node.column == column]
        said = WIDE * NAMES * max((len(name) for node in here for name in node.names), default=0) + ARROW + MARGIN / 2
        curves = min(36.0 + 5 * crowd[column], 120.0) if crowd[column] else 0.0
        names.append(begins[-1] + curves)
        boxes.append(names[-1] + said)
        widths.append(max(node.width for node in here))
        begins.append(boxes[-1] + widths[-1] + MARGIN / 2)
    begins[-1] += MARGIN  # for what bends round the last column
    return _Across(begins, names, boxes, widths)


def _box(node: _Node, across: _Across, middle: float) -> Box:
    left, top = across.boxes[node.column], middle - node.height / 2
    first = middle - LINE * len(node.lines) / 2 + 0.75 * LINE
    words = (Words(left + INSIDE, first + LINE * i, said, WORDS, kind) for i, (said, kind) in enumerate(node.lines))
    width = across.widths[node.column]
    return Box(node.key, node.column, left, top, width, node.height, tuple(words), node.told, node.many)


def _doors(count: int) -> list[float]:
    """Where lines end at a box, from its middle."""
    return [LINE * (i - (count - 1) / 2) for i in range(count)]


def _route(
    edge: Edge, drawn: _Drawn, boxes: Mapping[str, Box], across: _Across, middles: Mapping[Place, float]
) -> Route:
    """From the middle of one box's right side by curves and level lines to the left side of the other. What leads back
    goes the same way, and what stays in a column goes by its right side."""
    a, b = boxes[edge[0]], boxes[edge[1]]
    right = [left + width for left, width in zip(across.boxes, across.widths, strict=True)]
    if a.column == b.column:
        out = right[a.column]
        return Route(edge, ((out, a.middle), (out, b.middle)))
    way = drawn.way(edge)
    points = [(right[way[0][1]], middles[way[0]])]
    for place in way[1:-1]:
        points += [(across.names[place[1]], middles[place]), (right[place[1]], middles[place])]
    last = boxes[way[-1][0]]
    names = drawn.nodes[last.key].names
    name = drawn.edges[edge][0] if last is b else ""
    door = last.middle + _doors(len(names))[names.index(name) if name in names else 0]
    points += [(across.names[last.column], door), (last.left, door)]
    return Route(edge, tuple(points if last is b else reversed(points)))
