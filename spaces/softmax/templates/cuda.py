"""Templates of softmax on CUDA: a row by a part of a warp, a warp, a block, a cluster, and those that read it twice."""

from __future__ import annotations

from collections.abc import Callable

from kernsearch.device import Device
from kernsearch.program import Annotation
from kernsearch.space import Config, Constraint, Param, Sizes
from kernsearch.template import Launch, Template

from .patterns import MAXIMUM, REDUCTIONS, STATISTICS, Reduction

_ROWS = Param("BM", (1, 2, 4, 8, 16, 32), "rows of a block")
_FEW_ROWS = Param("BM", (1, 2, 4), "rows of a block")
_ONE_ROW = Param("BM", (1,), "rows of a block")
_WARP_ROWS = Param("WM", (1, 2, 4, 8, 16), "rows of a warp")
_KEPT = Param("TK", (4, 8, 16, 32, 64), "elements that a thread keeps")
_SHARED = Param("KEEP", (1024, 2048, 4096, 8192, 16384, 24576, 32768, 49152), "elements of a row that a block keeps")
_WIDE = Param("WK", (64, 128, 256, 512, 1024), "threads of a row")
_TURN = Param("BK", (1024, 2048, 4096, 8192, 16384), "elements of a turn of all threads of a row")
_UNDER_WAY = Param("KU", (2, 4, 8), "words under way of a thread")
_CLUSTER = Param("SPLIT", (2, 4, 8, 16), "blocks of a cluster, slabs of a row")
_SLABS = Param("SPLIT", (2, 4, 8, 16, 32, 64, 128), "slabs of a row")
_WAVES = Param("WAVES", (4, 8, 16, 64, 1048576), "blocks at most, for each multiprocessor; they take rows in turn")
_STREAM = Param("STREAM", (0, 1, 3), "cache policy: 1 stores are first to leave, 3 loads too")
HALF = 0.5  # of the places that a block has for a row may stay empty


def _word(sizes: Sizes) -> int:
    """Elements of 16 bytes."""
    return max(1, 16 // sizes["ITEMSIZE"])


def _statistics_bytes(sizes: Sizes) -> int:
    return max(4, sizes["ITEMSIZE"])


Places = Callable[[Config], int]


def _fits(places: Places, letters: dict[str, Param], *, must: bool = True) -> tuple[Constraint, ...]:
    """What a block, or a cluster, keeps of a row is the whole row, and not much more. Unless it `must`, a row that no
    config could keep is taken by the largest."""

    def whole(config: Config, device: Device, sizes: Sizes) -> bool:
        largest = not must and all(config[letter] == param.values[-1] for letter, param in letters.items())
        return largest or places(config) >= sizes["N"]

    def tight(config: Config, device: Device, sizes: Sizes) -> bool:
        smallest = all(
            config[letter] == min((v for v in param.values if letter != "TK" or v >= _word(sizes)), default=0)
            for letter, param in letters.items()
        )
        return smallest or places(config) * HALF < sizes["N"]

    return (
        Constraint("a row is longer than what is kept of it", whole),
        Constraint("most places for a row would stay empty", tight),
    )


_WORDS = Constraint("TK is no whole number of words", lambda c, d, s: c["TK"] % _word(s) == 0)
_SKEWED = Constraint(
    "blocks of more rows than there are", lambda c, d, s: c["BM"] == 1 or c["BM"] // 2 < s["M"] or c["BM"] < 32
)


def _keep(of: Reduction, level: str) -> tuple[Annotation, ...]:
    return tuple(("keep", role, level) for role in of.operands)


def _launch(entry: str, blocks: str, block: str, *, shared: str = "0", cluster: str = "1") -> tuple[Launch, ...]:
    return (
        Launch(entry, (blocks, "1", "1"), block, shared=shared, cluster=(cluster, "1", "1"), overlap=True),  # type: ignore[arg-type]
    )


def _warp_rows(of: Reduction) -> Template:
    return Template(
        name=f"warp_rows{of.suffix}",
        backend="cuda",
        what="a row in the registers of a warp or a part of one",
        roots=of.fused(),
        source="softmax/cuda/01_row_kept.cu",
        entry="softmax_row_kept",
        groups="M* K1",
        ann=(
            ("tile", ("M",), "block", "BM"), ("tile", ("M",), "warp", "WM"), ("tile", ("K",), "thread", "TK"),
            *_keep(of, "registers"),
        ),
        params=(_ROWS, _WARP_ROWS, _KEPT),
        knobs=(_WAVES, _STREAM),
        constraints=(
            _WORDS,
            Constraint(
                "a block is no whole number of warps, at most 32",
                lambda c, d, s: c["BM"] % c["WM"] == 0 and c["BM"] // c["WM"] <= 32,
            ),
            Constraint("a block has fewer than two warps", lambda c, d, s: c["BM"] >= 2 * c["WM"] or s["M"] < 4096),
            *_fits(lambda c: 32 // c["WM"] * c["TK"], {"WM": Param("WM", (16,), ""), "TK": _KEPT}),
        ),
        launches=_launch("softmax_row_kept", "min(ceil(M, BM), SMS * WAVES)", "BM * 32 // WM"),
    )  # fmt: skip


def _block_rows(of: Reduction) -> Template:
    letters = {"WK": _WIDE, "TK": _KEPT}
    return Template(
        name=f"block_row{of.suffix}",
        backend="cuda",
        what="a row in the registers of a block",
        roots=of.fused(),
        source="softmax/cuda/01_row_kept.cu",
        entry="softmax_row_kept",
        groups="M* K1",
        ann=(("tile", ("M",), "block", "BM"), ("tile", ("K",), "thread", "TK"), *_keep(of, "registers")),
        params=(_FEW_ROWS, _KEPT),
        knobs=(_WIDE, _WAVES, _STREAM),
        constraints=(
            _WORDS,
            _SKEWED,
            Constraint("a block has more than 1024 threads", lambda c, d, s: c["BM"] * c["WK"] <= 1024),
            Constraint("rows side by side leave no thread busy", lambda c, d, s: c["BM"] == 1 or c["WK"] <= 256),
            *_fits(lambda c: c["WK"] * c["TK"], letters),
        ),
        launches=_launch("softmax_row_kept", "min(ceil(M, BM), SMS * WAVES)", "BM * WK"),
    )


def _shared_row(of: Reduction) -> Template:
    bytes_ = f"KEEP * max(4, ITEMSIZE) * {len(of.operands)}"
    return Template(
        name=f"shared_row{of.suffix}",
        backend="cuda",
        what="a row in the shared memory of a block",
        roots=of.fused(),
        source="softmax/cuda/02_row_shared.cu",
        entry="softmax_row_shared",
        groups="M* K1",
        ann=(("tile", ("M",), "block", "BM"), *_keep(of, "shared")),
        params=(_ONE_ROW,),
        knobs=(_SHARED, _WIDE, _UNDER_WAY, _WAVES, _STREAM),
        constraints=(
            Constraint(
                "a row exceeds shared memory",
                lambda c, d, s: c["KEEP"] * _statistics_bytes(s) * len(of.operands) + 1024 <= d.shared_block_bytes,
            ),
            Constraint("a block has less than a word for each thread", lambda c, d, s: c["KEEP"] >= c["WK"] * _word(s)),
            *_fits(lambda c: c["KEEP"], {"KEEP": _SHARED}),
        ),
        launches=_launch("softmax_row_shared", "min(M, SMS * WAVES)", "WK", shared=bytes_),
    )


def _cluster_row(of: Reduction) -> Template:
    letters = {"SPLIT": _CLUSTER, "WK": _WIDE, "TK": _KEPT}
    return Template(
        name=f"cluster_row{of.suffix}",
        backend="cuda",
        what="a row in the registers of the blocks of a cluster",
        roots=of.clustered(),
        source="softmax/cuda/03_row_cluster.cu",
        entry="softmax_row_cluster",
        groups="M* K1",
        ann=(
            ("combine", "S", "cluster"), ("tile", ("M",), "block", "BM"), ("tile", ("K",), "thread", "TK"),
            *_keep(of, "registers"),
        ),
        params=(_CLUSTER, _ONE_ROW, _KEPT),
        knobs=(_WIDE, _WAVES, _STREAM),
        constraints=(
            Constraint("clusters came with sm_90", lambda c, d, s: d.cc_major >= 9),
            _WORDS,
            *_fits(lambda c: c["SPLIT"] * c["WK"] * c["TK"], letters),
        ),
        launches=_launch("softmax_row_cluster", "min(M, SMS * WAVES) * SPLIT", "WK", cluster="SPLIT"),
    )  # fmt: skip


def _states(of: Reduction, *, slab: bool) -> Template:
    letters = {"WK": _WIDE, "TK": _KEPT}
    pieces = "M * S" if slab else "M"
    return Template(
        name=f"row_{'slabs' if slab else 'states'}{of.suffix}",
        backend="cuda",
        what=f"the fields of each {'slab of each row' if slab else 'row'}, to memory",
        roots=of.states(slab=slab),
        source="softmax/cuda/05_row_states.cu",
        entry="softmax_row_states",
        groups="M* K1",
        ann=(("tile", ("M",), "block", "BM"), ("tile", ("K",), "thread", "TK")),
        params=((_SLABS,) if slab else ()) + (_ONE_ROW, _KEPT),
        knobs=(_WIDE,),
        constraints=(
            _WORDS,
            *_fits(lambda c: c["WK"] * c["TK"] * (c["SPLIT"] if slab else 1),
                   {**letters, **({"SPLIT": _SLABS} if slab else {})}, must=False),
        ),
        launches=_launch("softmax_row_states", f"min({pieces}, SMS * 64)", "WK"),
    )  # fmt: skip


_ONLINE = Template(
    name="row_online",
    backend="cuda",
    what="maximum and sum in one pass over the row, then one that stores",
    roots=STATISTICS.fused(),
    source="softmax/cuda/04_row_online.cu",
    entry="softmax_row_online",
    groups="M* K1",
    ann=(("tile", ("M",), "block", "BM"), ("tile", ("K",), "serial", "BK")),
    params=(_ONE_ROW, _TURN),
    knobs=(_WIDE, _WAVES, _STREAM),
    constraints=(
        Constraint(
            "a turn is no whole number of words of each thread, at most eight",
            lambda c, d, s: c["BK"] % (c["WK"] * _word(s)) == 0 and c["BK"] <= 8 * c["WK"] * _word(s),
        ),
        Constraint("a turn is longer than a row", lambda c, d, s: c["BK"] // 2 < s["N"] or c["BK"] == 1024),
    ),
    launches=_launch("softmax_row_online", "min(M, SMS * WAVES)", "WK"),
)


def templates() -> tuple[Template, ...]:
    families = (_warp_rows, _block_rows, _shared_row, _cluster_row)
    found = [family(of) for of in REDUCTIONS for family in families]
    found += [_states(of, slab=slab) for of in REDUCTIONS for slab in (False, True)]
    return (*found, _states(MAXIMUM, slab=False), _ONLINE)
