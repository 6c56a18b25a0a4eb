"""Templates that run anything: the textbook program of every op has a kernel on the CPU from the first day."""

from __future__ import annotations

from kernsearch.space import Param
from kernsearch.template import Template, comb, dot, hole, red

_ROWS = Param("ROWS", (1, 4, 16, 64), "rows of the output per task")

CONTRACTION = Template(
    name="contraction",
    backend="cpu",
    source="generic/c/01_contraction.c",
    entry="generic_contraction",
    what="a contraction over any axes, one output at a time",
    roots=(hole("D", dot("A", "B")),),
    ann=(("tile", ("B", "M"), "block", "ROWS"),),
    params=(_ROWS,),
)
MAP = Template(
    name="map",
    backend="cpu",
    source="generic/c/02_map.c",
    entry="generic_map",
    what="an elementwise expression over any axes",
    roots=(hole("Y", groups="M"),),
    many=True,
    ann=(("tile", ("M",), "block", "ROWS"),),
    params=(_ROWS,),
)
REDUCE = Template(
    name="reduce",
    backend="cpu",
    source="generic/c/03_reduce.c",
    entry="generic_reduce",
    what="a reduction with any fields over any axes",
    roots=(hole("Y", red(None)),),
    many=True,
    ann=(("tile", ("M",), "block", "ROWS"),),
    params=(_ROWS,),
)
COMBINE = Template(
    name="combine",
    backend="cpu",
    source="generic/c/03_reduce.c",
    entry="generic_reduce",
    what="the sum, or rescaled sum, of the partial results of slabs",
    roots=(hole("Y", comb()),),
    many=True,
    ann=(("tile", ("M",), "block", "ROWS"),),
    params=(_ROWS,),
)
SPREAD = Template(
    name="spread",
    backend="cpu",
    source="generic/c/04_spread.c",
    entry="generic_spread",
    what="the combined results of slabs, spread over all elements of a row",
    roots=(hole("Y", comb(), groups="MC"),),
    groups="M* C1 K1",
    ann=(("tile", ("C",), "block", "COLUMNS"),),
    params=(Param("COLUMNS", (1024, 4096, 16384), "elements of a row per task"),),
)


def templates() -> tuple[Template, ...]:
    return (CONTRACTION, MAP, REDUCE, COMBINE, SPREAD)
