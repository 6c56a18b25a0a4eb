"""Templates of gemm on the CPU."""

from __future__ import annotations

from kernsearch.space import Param
from kernsearch.template import Template, dot, hole

_MC = Param("MC", (48, 96, 192, 384), "rows of A packed at a time")
_NC = Param("NC", (256, 512, 1024, 2048), "columns of B packed at a time")
_KC = Param("KC", (128, 256, 384, 512), "depth of a packed panel")
_MR = Param("MR", (4, 6, 8, 12, 14), "rows of the register tile")
_NR = Param("NR", (8, 16, 32, 48), "columns of the register tile")
_SPLIT = Param("SPLIT", (2, 3, 4, 8), "slabs of the reduced axis")

CACHE_TILED = Template(
    name="cache_tiled",
    backend="cpu",
    what="blocks that fit a cache, read from the operands where they are",
    roots=(hole("D", dot("A", "B")),),
    groups="M1 N1 K1",
    dtypes=("float32", "float64"),
    ann=(("tile", ("M",), "block", "MC"), ("tile", ("N",), "block", "NC"), ("tile", ("K",), "serial", "KC")),
    params=(_MC, _NC, _KC),
)
REGISTER_TILED = Template(
    name="register_tiled",
    backend="cpu",
    what="packed A and B, a tile of the output in registers",
    roots=(hole("D", dot("A", "B")),),
    groups="M1 N1 K1",
    dtypes=("float32", "float64"),
    ann=(
        ("tile", ("M",), "block", "MC"),
        ("tile", ("N",), "block", "NC"),
        ("tile", ("K",), "serial", "KC"),
        ("tile", ("M",), "register", "MR"),
        ("tile", ("N",), "register", "NR"),
        ("keep", "acc", "registers"),
        ("move", "A", "pack"),
        ("move", "B", "pack"),
    ),
    params=(_MC, _NC, _KC, _MR, _NR),
)
UNPACKED = Template(
    name="unpacked",
    backend="cpu",
    what="a tile of the output in registers, operands read where they are: for skinny and tiny shapes",
    roots=(hole("D", dot("A", "B")),),
    groups="M1 N1 K1",
    dtypes=("float32", "float64"),
    ann=(
        ("tile", ("M",), "register", "MR"),
        ("tile", ("N",), "register", "NR"),
        ("keep", "acc", "registers"),
    ),
    params=(_MR, _NR),
)
SPLIT_K = Template(
    name="split_k",
    backend="cpu",
    what="slabs of the reduced axis in parallel, partial sums to memory",
    roots=(hole("D", dot("A", "B", slab=True)),),
    groups="M1 N1 K1",
    dtypes=("float32", "float64"),
    ann=(
        ("tile", ("M",), "block", "MC"),
        ("tile", ("N",), "block", "NC"),
        ("tile", ("K",), "serial", "KC"),
        ("tile", ("M",), "register", "MR"),
        ("tile", ("N",), "register", "NR"),
        ("keep", "acc", "registers"),
        ("move", "A", "pack"),
        ("move", "B", "pack"),
    ),
    params=(_SPLIT, _MC, _NC, _KC, _MR, _NR),
)


def templates() -> tuple[Template, ...]:
    return (CACHE_TILED, REGISTER_TILED, UNPACKED, SPLIT_K)
