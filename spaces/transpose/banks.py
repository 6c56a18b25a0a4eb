"""Which addresses the kernels of transpose touch, a warp at a time: what bank conflicts are counted from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kernsearch.space import Access, Config, Sizes

LANES = range(32)
PLAIN, PADDED, SWIZZLED = 0, 1, 2  # values of LAYOUT
BANKS_BYTES = 128  # of all banks, once
FAR = 1 << 20  # bytes between rows of a large array


def place(row: int, column: int, columns: int, itemsize: int, layout: int) -> int:
    """Byte offset of an element of a tile, as `place` of kernels/transpose/cuda/02_tiled.cu has it."""
    unit = max(4, itemsize)
    each, units = unit // itemsize, columns * itemsize // unit
    if layout == SWIZZLED:
        banks = BANKS_BYTES // unit
        turn = row // max(1, banks // units) & (min(units, banks) - 1)
        column = (column // each ^ turn) * each + column % each
    return row * (columns * itemsize + (unit if layout == PADDED else 0)) + column * itemsize


def through_a_tile(config: Config, sizes: Sizes) -> Mapping[str, tuple[Access, ...]]:
    """Writing the tile along its rows, and reading it down its columns."""
    return _tile(config["BM"], config["BN"], sizes["ITEMSIZE"], config["LAYOUT"])


@cache
def _tile(rows: int, columns: int, itemsize: int, layout: int) -> Mapping[str, tuple[Access, ...]]:
    def at(row: int, column: int) -> int:
        return place(row, column, columns, itemsize, layout)

    down, across = range(0, rows, 32), range(0, columns, 32)
    written = tuple(Access(tuple(at(r, c + lane) for lane in LANES), itemsize) for r in range(rows) for c in across)
    read = tuple(Access(tuple(at(r + lane, c) for lane in LANES), itemsize) for c in range(columns) for r in down)
    return {"write": written, "read": read}


def scattered(config: Config, sizes: Sizes) -> Mapping[str, tuple[Access, ...]]:
    """Reading memory down a column: an element of each row."""
    size = sizes["ITEMSIZE"]
    count = config["BM"] * config["BN"] // 32
    return {"gather": (Access(tuple(FAR * lane for lane in LANES), size, memory=True),) * count}
