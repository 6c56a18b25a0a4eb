"""Templates of transpose on the CPU."""

from __future__ import annotations

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Template, turned

_NC = Param("NC", (32, 64, 128, 256), "rows of the output in a tile")
_MC = Param("MC", (32, 64, 128, 256, 512), "columns of the output in a tile")
_ROWS = Param("NC", (1, 4, 16, 64), "rows of the output in a task")


def _worth_caching(config: Config, device: Device, sizes: Sizes) -> bool:
    largest = max(device.facts.get("l3_bytes", 0), device.facts.get("l2_bytes", 0))
    return bool(config["STREAM"]) or sizes["M"] * sizes["N"] * sizes["ITEMSIZE"] <= largest


NAIVE = Template(
    name="transpose_naive",
    backend="cpu",
    what="row after row of the output, so each line of the input is visited once for every element of it",
    roots=(turned("Y", "X"),),
    source="transpose/c/01_naive.c",
    entry="transpose_naive",
    groups="M1 N1",
    ann=(("tile", ("N",), "block", "NC"),),
    params=(_ROWS,),
    constraints=(Constraint("NC is larger than N needs", covers(_ROWS, "N")),),
)
BLOCKED = Template(
    name="transpose_blocked",
    backend="cpu",
    what="squares a cache line wide, read and written by whole lines and turned in registers",
    roots=(turned("Y", "X"),),
    source="transpose/c/02_blocked.c",
    entry="transpose_blocked",
    groups="M1 N1",
    ann=(("tile", ("N",), "block", "NC"), ("tile", ("M",), "block", "MC")),
    params=(_NC, _MC),
    knobs=(Param("STREAM", (0, 1), "1: whole lines of the output are stored around the caches"),),
    constraints=(
        Constraint("NC is larger than N needs", covers(_NC, "N")),
        Constraint("MC is larger than M needs", covers(_MC, "M")),
        Constraint("lines of an output that no cache holds go through the caches", _worth_caching),
    ),
)


def templates() -> tuple[Template, ...]:
    return (NAIVE, BLOCKED)
