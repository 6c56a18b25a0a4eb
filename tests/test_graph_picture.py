"""The derivation graph as a picture: nothing lies on anything else, words fit, and what is marked is right."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from command import exit_code
from hypothesis import given
from hypothesis import strategies as st

from kernsearch import registry
from kernsearch.report import graph, graph_layout, graph_svg
from kernsearch.report.graph_layout import Layout, laid_out

RED, GREY = graph_svg.WINS, graph_svg.GREY
SVG = "{http://www.w3.org/2000/svg}"
# What a person can look at: a screen in height, and not many in width.
WIDEST, HIGHEST = 3600, 1600
SHAPES = [(name, (op.typical.get("cpu") or ((64, 96),))[0]) for name, op in sorted(registry.ops().items())]
Rectangle = tuple[float, float, float, float]


def node(key: str, phase: str, *kernels: tuple[str, list[str]], root: bool = False) -> dict[str, Any]:
    found = [{"key": c, "computes": c.split(), "writes": [c], "reads": [], "templates": fits} for c, fits in kernels]
    return {"key": key, "root": root, "phase": phase, "runnable": all(k["templates"] for k in found),
            "kernels": found, "variants": []}  # fmt: skip


def edge(a: str, b: str, rule: str) -> dict[str, Any]:
    return {"from": a, "to": b, "rule": rule, "site": {}}


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A graph of six programs: two steps of fusion, one split, one program that cannot run."""
    return {
        "problem": "toy 4x4 float32",
        "nodes": [
            node("aa", "algebra", ("x", ["plain"]), ("y", ["map"]), root=True),
            node("ab", "algebra", ("z", []), ("y$1", ["map"])),
            node("ba", "fusion", ("xy", ["fused", "packed"])),
            node("bb", "fusion", ("xyz", ["all"])),
            node("ca", "split", ("part", ["slabs"]), ("sum", ["combine"])),
            node("cb", "split", ("x_part", ["slabs"]), ("s", ["combine"]), ("y", ["map"])),
        ],
        "edges": [edge("aa", "ab", "merge"), edge("aa", "ba", "fuse_maps"), edge("ba", "bb", "fuse_more"),
                  edge("bb", "ca", "split_reduction"), edge("aa", "cb", "split_reduction")],
        "winner": {"variant": "packed", "from": "tuned", "path": ["aa", "ba"], "templates": ["packed"]},
    }  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Graphs of any form, with edges that lead back too, names of any length, and a way from the first program."""
    count = draw(st.integers(1, 40))
    cuts = sorted(draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    names = st.text("ab_$01", min_size=1, max_size=60)
    nodes = [node(f"p{i}", ("algebra", "fusion", "split")[sum(i >= cut for cut in cuts)],
                  *draw(st.lists(st.tuples(names, st.lists(names, max_size=3)), min_size=1, max_size=5)), root=i == 0)
             for i in range(count)]  # fmt: skip
    ends = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(ends, ends, st.sampled_from(["fuse", "split_reduction", "merge_reductions"])),
                          max_size=80))  # fmt: skip
    edges = [edge(f"p{min(a, b)}", f"p{max(a, b)}", rule) for a, b, rule in pairs if a != b]
    edges += [edge(f"p{max(a, b)}", f"p{min(a, b)}", rule) for a, b, rule in pairs[:2]
              if nodes[a]["phase"] == nodes[b]["phase"] and a != b]  # fmt: skip
    path = ["p0"]
    while further := [e["to"] for e in edges if e["from"] == path[-1] and e["to"] not in path]:
        path.append(further[0])
    chosen = {"variant": "v", "from": "tuned", "path": path, "templates": ["t"] * 5}
    return {"problem": "toy", "nodes": nodes, "edges": edges, "winner": chosen}


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def within(a: Rectangle, b: Rectangle) -> bool:
    return b[0] <= a[0] and b[1] <= a[1] and a[2] <= b[2] and a[3] <= b[3]


def drawn_way(points: tuple[tuple[float, float], ...]) -> Iterator[tuple[float, float]]:
    """Points along a line as it is drawn."""
    for (x, y), (to, level) in pairwise(points):
        bend = 24.0 if len(points) == 2 else 0.0
        xs = (x, x + bend, to + bend, to) if bend else (x, (x + to) / 2, (x + to) / 2, to)
        for i in range(21):
            t = i / 20
            w = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            yield sum(a * b for a, b in zip(w, xs, strict=True)), (w[0] + w[1]) * y + (w[2] + w[3]) * level


def check(found: Layout) -> None:
    """What has to hold of every picture."""
    page = (0.0, 0.0, found.width, found.height)
    boxes = {key: (b.left, b.top, b.left + b.width, b.top + b.height) for key, b in found.boxes.items()}
    assert all(within(box, page) for box in boxes.values())
    assert not [pair for pair in combinations(boxes, 2) if overlap(boxes[pair[0]], boxes[pair[1]])]
    for key, box in found.boxes.items():
        assert all(within(words.box, boxes[key]) for words in box.words), key
        assert not [p for p in combinations(box.words, 2) if overlap(p[0].box, p[1].box)]
    for words in found.words:
        assert within(words.box, page), words
        assert not [key for key, box in boxes.items() if overlap(words.box, box)], words
    assert not [p for p in combinations(found.words, 2) if overlap(p[0].box, p[1].box)]
    rules = [words.box for words in found.words if words.kind == "rule"]
    for route in found.routes:
        assert route.points[0][0] in (boxes[route.edge[0]][2], boxes[route.edge[0]][0])
        assert route.points[-1][0] in (boxes[route.edge[1]][2], boxes[route.edge[1]][0])
        assert boxes[route.edge[1]][1] <= route.points[-1][1] <= boxes[route.edge[1]][3]
        for x, y in drawn_way(route.points):
            assert 0 <= x <= found.width
            behind = [key for key, (left, top, right, foot) in boxes.items()
                      if left + 0.1 < x < right - 0.1 and top < y < foot]  # fmt: skip
            assert not behind, (route, behind)
            through = [box for box in rules if box[0] < x < box[2] and box[1] < y < box[3]]
            assert not through, (route, through)


@given(graphs())
def test_nothing_lies_on_anything_else_and_words_fit(data: dict[str, Any]) -> None:
    found = laid_out(data, ["a legend " * 20])
    check(found)
    assert sum(box.many for box in found.boxes.values()) == len(data["nodes"])
    columns = [box.column for box in found.boxes.values()]
    assert max(columns.count(column) for column in columns) <= graph_layout.MOST
    edges = {route.edge for route in found.routes}
    stands = {e[end] for e in data["edges"] for end in ("from", "to")} & found.boxes.keys()
    assert stands <= {end for edge in edges for end in edge}


@pytest.mark.parametrize(("op", "shape"), SHAPES, ids=[name for name, _ in SHAPES])
def test_a_person_can_look_at_the_picture_of_a_shipped_op(op: str, shape: tuple[int, ...]) -> None:
    data = json.loads(graph.derivation_graph(op, shape=shape, device="cpu"))
    found = laid_out(data)
    check(found)
    assert found.width <= WIDEST and found.height <= HIGHEST
    assert set(data["winner"]["path"]) <= found.boxes.keys()


def test_of_many_programs_those_next_to_the_winner_are_drawn_and_the_others_counted(recorded: dict[str, Any]) -> None:
    far = [node(f"x{i}", "fusion", ("w", ["map"])) for i in range(20)]
    recorded["nodes"] += far
    recorded["edges"] += [edge("ab", each["key"], "fuse_maps") for each in far]
    found = laid_out(recorded)
    assert {"aa", "ab", "ba"} <= found.boxes.keys()
    (rest,) = [box for box in found.boxes.values() if box.many > 1]
    drawn = [key for key in found.boxes if key.startswith("x")]
    assert rest.many == len(far) - len(drawn) and rest.words[0].said == f"and {rest.many} more"
    said = " ".join(words.said for words in found.words if words.kind == "legend")
    assert f"{26 - rest.many} of 26 programs are drawn" in said
    assert ("ab", rest.key) in {route.edge for route in found.routes}


def boxes(svg: str) -> dict[str, str]:
    """The colour of each program's box."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if (name := group.get("id", "")).startswith("program-"):
            found[name.removeprefix("program-")] = group[0].get("stroke", "")
    return found


def said(svg: str) -> list[str]:
    return [re.sub(r"\s+", " ", text.text or "").strip() for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_phases_are_layers_from_left_to_right(recorded: dict[str, Any]) -> None:
    columns, phases = graph_layout.layers(recorded)
    assert phases == [("algebra", 2), ("fusion", 2), ("split", 1)]
    assert columns == [["aa"], ["ab"], ["ba"], ["bb"], ["ca", "cb"]]
    lefts = [box.left for box in sorted(laid_out(recorded).boxes.values(), key=lambda box: box.column)]
    assert lefts == sorted(lefts)


def test_the_winners_way_is_marked_and_what_cannot_run_is_grey(recorded: dict[str, Any]) -> None:
    svg = graph_svg.picture(recorded)
    drawn = boxes(svg)
    assert {key for key, colour in drawn.items() if colour == RED} == {"aa", "ba"}
    assert {key for key, colour in drawn.items() if colour == GREY} == {"ab"}
    assert drawn.keys() == {n["key"] for n in recorded["nodes"]}
    assert [path.get("stroke") for path in ET.fromstring(svg).iter(f"{SVG}path")].count(RED) == 1


def test_words_stay_words_and_the_winner_names_its_template(recorded: dict[str, Any]) -> None:
    recorded["nodes"][3]["kernels"][0]["computes"] = ["<b>", "&"]
    words = said(graph_svg.picture(recorded))
    assert {"packed and 1 more", "no template", "split_reduction", "2 y$1", "1 <b> &", "textbook"} <= set(words)
    assert "red: the way to packed, tuned" in words


def test_the_same_data_make_the_same_picture(recorded: dict[str, Any]) -> None:
    assert graph_svg.picture(recorded) == graph_svg.picture(json.loads(json.dumps(recorded)))


def test_a_graph_without_a_winner_marks_nothing(recorded: dict[str, Any]) -> None:
    del recorded["winner"]
    assert RED not in graph_svg.picture(recorded)


def test_the_command_draws_what_it_derives(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("graph", "softmax", "--shape", "128x256", "--device", "cpu", "--format")
    assert exit_code(*arguments, "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert exit_code(*arguments, "svg") == 0
    drawn = boxes(capsys.readouterr().out)
    assert drawn.keys() == {n["key"] for n in told["nodes"]}
    assert {key for key, colour in drawn.items() if colour == RED} == set(told["winner"]["path"])
    assert told["nodes"][0]["key"] == told["winner"]["path"][0]


def test_letters_are_no_wider_in_a_browser_than_the_layout_says(
    recorded: dict[str, Any], browser: Any, tmp_path: Path
) -> None:
    recorded["nodes"][0]["kernels"][0]["computes"] = ["W" * 30]
    path = tmp_path / "graph.svg"
    path.write_text(graph_svg.picture(recorded))
    browser.get(path.as_uri())
    found = browser.execute_script(
        "return [...document.querySelectorAll('text')].map(t => [t.textContent, t.getComputedTextLength(),"
        " parseFloat(t.getAttribute('font-size'))])"
    )
    assert len(found) > 20
    for words, width, height in found:
        assert width <= 1.02 * graph_layout.WIDE * height * len(words), words
