"""Templates without kernels: the CUDA ladder of gemm, softmax and attention as patterns and annotations."""

from __future__ import annotations

from kernsearch.program.body import arg, own
from kernsearch.template import Template, comb, dot, hole, red
from kernsearch.template.pattern import Pattern

SHIFTED = ("exp", ("shift", arg(0), own("m")))
STATISTICS = {"m": ("max", arg(0)), "l": ("sum", SHIFTED)}
FLASH = {**STATISTICS, "o": ("sum", ("mul", SHIFTED, arg(1)))}


def _t(name: str, *roots: Pattern, ann: tuple = (), groups: str = "", many: bool = False) -> Template:
    return Template(name=name, backend="cuda", roots=roots, ann=ann, groups=groups, many=many)


def _tiles(*levels: str) -> tuple:
    letters = {"block": ("BM", "BN"), "warp": ("WM", "WN"), "thread": ("TM", "TN")}
    steps = [("tile", (g,), level, letters[level][i]) for level in levels for i, g in enumerate("MN")]
    return (*steps, ("tile", ("K",), "serial", "BK"))


def _moves(how: str, *symbol: str) -> tuple:
    return tuple(("move", role, how, *symbol) for role in "AB")


GENERIC = (
    _t("naive", hole("D", dot("A", "B")), ann=(("tile", ("M",), "thread", "TM"),)),
    _t("map", hole("Y", groups="M"), ann=(("tile", ("M",), "thread", "TM"),), many=True),
    _t("reduce", hole("Y", red(None)), ann=(("tile", ("M",), "thread", "TM"),), many=True),
    _t("combine", hole("Y", comb()), ann=(("tile", ("M",), "thread", "TM"),), many=True),
)

_DOT = (hole("D", dot("A", "B")),)
_RUNGS = {
    "shared_tile": (*_tiles("block"), *_moves("sync")),
    "register_tile": (*_tiles("block", "thread"), ("keep", "acc", "registers"), *_moves("sync")),
    "vectorized": (*_tiles("block", "thread"), ("keep", "acc", "registers"), *_moves("vector")),
    "mma": (*_tiles("block", "warp"), ("keep", "acc", "registers"), *_moves("vector"), ("unit", "acc", "mma")),
    "pipeline": (
        *_tiles("block", "warp"), ("keep", "acc", "registers"), *_moves("async", "STAGES"), ("unit", "acc", "mma"),
    ),
    "wgmma": (*_tiles("block"), ("keep", "acc", "registers"), *_moves("bulk", "STAGES"), ("unit", "acc", "wgmma")),
    "wgmma_specialized": (
        *_tiles("block"), ("keep", "acc", "registers"), *_moves("bulk", "STAGES"), ("unit", "acc", "wgmma"),
        ("roles", "producer_consumer"),
    ),
    "wgmma_persistent": (
        *_tiles("block"), ("keep", "acc", "registers"), *_moves("bulk", "STAGES"), ("unit", "acc", "wgmma"),
        ("grid", "persistent"), ("roles", "producer_consumer"),
    ),
}  # fmt: skip
RUNGS = ("naive", *_RUNGS)
GEMM = (
    *(_t(name, *_DOT, ann=ann, groups="M+ N+ K+ B*") for name, ann in _RUNGS.items()),
    _t("split_k", hole("D", dot("A", "B", slab=True)), ann=_RUNGS["pipeline"], groups="M+ N+ K+ B*"),
    _t("split_k_atomic", hole("D", comb(inside=dot("A", "B", slab=True, name="part"))),
       ann=(("combine", "S", "atomic"),), groups="M+ N+ K+"),
)  # fmt: skip

_ROW = (("tile", ("M",), "block", "ROWS"), ("tile", ("K",), "warp", "BK"))
SOFTMAX = (
    _t("online", hole("M_", red(STATISTICS, "X")), hole("L_", red(STATISTICS, "X")), ann=_ROW),
    _t("on_chip", hole("Y", red(STATISTICS, "X"), groups="MK"), ann=(*_ROW, ("keep", "X", "registers"))),
    _t("cluster_row", hole("Y", comb(inside=red(STATISTICS, "X", slab=True, name="part")),
                           groups="MK"), ann=(("combine", "S", "cluster"), *_ROW)),
    _t("split_row", hole("M_", red(STATISTICS, "X", slab=True)), hole("L_", red(STATISTICS, "X", slab=True)), ann=_ROW),
)  # fmt: skip


def _flash(slab: bool = False) -> Pattern:
    scores = hole("S", dot("Q", "K", name="s", groups="MKDB"))
    return red(FLASH, scores, "V", wide=("o",), slab=slab, name="state")


_FLASH_TILES = (
    ("tile", ("M",), "block", "BM"), ("tile", ("K",), "serial", "BN"), ("keep", "state", "registers"),
    ("move", "K", "async", "STAGES"), ("move", "V", "async", "STAGES"), ("skip", ("K",)),
)  # fmt: skip
_SUM, _SQUARES = {"a": ("sum", arg(0))}, {"b": ("sum", ("mul", arg(0), ("neg", arg(0))))}
MOMENTS = (
    _t("two_sums", hole("A", red(_SUM, "X", name="first")), hole("B", red(_SQUARES, "X", name="second")), ann=_ROW),
    _t("row_moments", hole("Y", red(_SUM, "X", name="first"), red(_SQUARES, "X", name="second"), groups="MK"),
       ann=(*_ROW, ("keep", "X", "registers"))),
)  # fmt: skip
_ROW_OF_C = dot("A", "B", name="s", groups="MKDB")
_NORM = {"a": ("sum", ("mul", arg(0), arg(0)))}
HELD_OUT = (
    _t("row_softmax", hole("Y", red(STATISTICS, hole("S", _ROW_OF_C)), _ROW_OF_C, groups="MKB"), ann=_ROW),
    _t("row_norm", hole("Y", dot("A", "B"), red(_NORM, "X", name="norm", groups="MXKB")), ann=_ROW),
)  # fmt: skip
ATTENTION = (
    _t("flash", hole("O", _flash()), ann=_FLASH_TILES),
    _t("flash_normalizer", hole("O", _flash()), hole("L", _flash()), ann=_FLASH_TILES),
    _t("flash_split", *(hole(name, _flash(slab=True)) for name in ("M_", "L_", "O")), ann=_FLASH_TILES),
)

ALL = (*GENERIC, *GEMM, *SOFTMAX, *MOMENTS, *HELD_OUT, *ATTENTION)
