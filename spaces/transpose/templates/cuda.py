"""Templates of transpose on CUDA: straight from memory to memory, and through a tile in shared memory.

How that tile is laid out moves no byte more or less, so it is a knob: rows as they are, rows longer by a word, or words
of a row exchanged by the row's number. What each means for the banks is counted from the addresses in `banks`.
"""

from __future__ import annotations

from kernsearch.space import Constraint, Param
from kernsearch.template import Launch, Template, turned

from ..banks import scattered, through_a_tile

_BLOCKS = ("ceil(M, BM) * ceil(N, BN)", "1", "1")
_FITS = Constraint("more blocks than a grid has", lambda c, d, s: -(-s["M"] // c["BM"]) * -(-s["N"] // c["BN"]) < 2**31)

NAIVE = Template(
    name="transpose_naive",
    backend="cuda",
    what="neighbouring threads write neighbours, and read what lies a row apart",
    roots=(turned("Y", "X"),),
    source="transpose/cuda/01_naive.cu",
    entry="transpose_naive",
    groups="M1 N1",
    ann=(("tile", ("M",), "block", "BM"), ("tile", ("N",), "block", "BN")),
    params=(
        Param("BM", (32, 64, 128, 256), "columns of the output in a block"),
        Param("BN", (1, 2, 4, 8, 16), "rows of the output in a block"),
    ),
    constraints=(Constraint("a block is no 256 threads", lambda c, d, s: c["BM"] * c["BN"] >= 256), _FITS),
    accesses=scattered,
    launches=(Launch("transpose_naive", _BLOCKS, "256", overlap=True),),
)
TILED = Template(
    name="transpose_tiled",
    backend="cuda",
    what="a tile goes through shared memory, so that neighbouring threads read and write neighbours",
    roots=(turned("Y", "X"),),
    source="transpose/cuda/02_tiled.cu",
    entry="transpose_tiled",
    groups="M1 N1",
    ann=(("tile", ("M",), "block", "BM"), ("tile", ("N",), "block", "BN"), ("move", "X", "sync")),
    params=(
        Param("BM", (32, 64, 128), "rows of the input in a tile"),
        Param("BN", (32, 64, 128), "columns of the input in a tile"),
    ),
    knobs=(Param("LAYOUT", (0, 1, 2), "of the tile: 0 rows as they are, 1 a word longer, 2 words exchanged by xor"),),
    constraints=(
        Constraint("a thread moves more than 32 elements", lambda c, d, s: c["BM"] * c["BN"] <= 32 * 256),
        _FITS,
    ),
    accesses=through_a_tile,
    launches=(
        Launch(
            "transpose_tiled",
            _BLOCKS,
            "256",
            shared="BM * (BN * ITEMSIZE + LAYOUT % 2 * max(4, ITEMSIZE))",
            overlap=True,
        ),
    ),
)


def templates() -> tuple[Template, ...]:
    return (NAIVE, TILED)
