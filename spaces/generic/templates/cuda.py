"""Templates that run anything: the textbook program of every op has a kernel on CUDA from the first day."""

from __future__ import annotations

from kernsearch.space import Constraint, Param
from kernsearch.template import Launch, Template, comb, dot, hole, red

_TM = Param("TM", (1, 4, 8), "elements of the output per thread")
_TN = Param("TN", (1, 4), "columns of the output per thread")
_SPREAD_TN = Param("TN", (1, 4, 8), "neighbours of a thread")
_EACH = (("tile", ("M",), "thread", "TM"),)


def _launches(entry: str, each: str, *, overlap: bool = False) -> tuple[Launch, ...]:
    """Blocks for all outputs; for large ones a few waves, in which threads take one stretch after another."""
    blocks = f"min(ceil(OUTPUTS, 256 * {each}) + ceil(OUTPUTS, 65536), SMS * 32)"
    return (Launch(entry, (blocks, "1", "1"), "256", overlap=overlap),)


CONTRACTION = Template(
    name="contraction",
    backend="cuda",
    source="generic/cuda/01_contraction.cu",
    entry="generic_contraction",
    what="a contraction over any axes, a few outputs per thread",
    roots=(hole("D", dot("A", "B")),),
    ann=(("tile", ("N",), "thread", "TN"),),
    params=(_TN,),
    launches=_launches("generic_contraction", "TN"),
)
MAP = Template(
    name="map",
    backend="cuda",
    source="generic/cuda/02_map.cu",
    entry="generic_map",
    what="an elementwise expression over any axes",
    roots=(hole("Y", groups="M"),),
    many=True,
    ann=_EACH,
    params=(_TM,),
    launches=_launches("generic_map", "TM", overlap=True),
)
REDUCE = Template(
    name="reduce",
    backend="cuda",
    source="generic/cuda/03_reduce.cu",
    entry="generic_reduce",
    what="a reduction with any fields over any axes",
    roots=(hole("Y", red(None)),),
    many=True,
    ann=_EACH,
    params=(_TM,),
    launches=_launches("generic_reduce", "TM", overlap=True),
)
COMBINE = Template(
    name="combine",
    backend="cuda",
    source="generic/cuda/03_reduce.cu",
    entry="generic_reduce",
    what="the sum, or rescaled sum, of the partial results of slabs",
    roots=(hole("Y", comb()),),
    many=True,
    ann=_EACH,
    params=(_TM,),
    launches=_launches("generic_reduce", "TM", overlap=True),
)
SPREAD = Template(
    name="spread",
    backend="cuda",
    source="generic/cuda/04_spread.cu",
    entry="generic_spread",
    what="the combined results of slabs, spread over all elements of a row",
    roots=(hole("Y", comb(), groups="MC"),),
    groups="M* C1 K1",
    ann=(("tile", ("M",), "block", "BM"), ("tile", ("C",), "block", "BN"), ("tile", ("C",), "thread", "TN")),
    params=(
        Param("BM", (1,), "rows of a block"),
        Param("BN", (1024, 2048, 4096, 8192), "elements of a row per block"),
        _SPREAD_TN,
    ),
    constraints=(
        Constraint("a block's columns are no whole number of turns", lambda c, d, s: c["BN"] % (256 * c["TN"]) == 0),
    ),
    launches=(Launch("generic_spread", ("min(OUTPUTS // C * ceil(C, BN), SMS * 64)", "1", "1"), "256", overlap=True),),
)


def templates() -> tuple[Template, ...]:
    return (CONTRACTION, MAP, REDUCE, COMBINE, SPREAD)
