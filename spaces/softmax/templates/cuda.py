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
_WIDE = Param("WK", (64, 128, 256, 512, 1024), "threads of a row")
_TURN = Param("BK", (1024, 2048, 4096, 8192, 16384), "elements of a turn of all threads of a row")
_CLUSTER = Param("SPLIT", (2, 4, 8, 16), "blocks of a cluster, slabs of a row")
_SLABS = Param("SPLIT", (2, 4, 8, 16, 32, 64, 128), "slabs of a row")
_STAY = "blocks at most, for each multiprocessor; they take rows in turn"
_WAVES = Param("WAVES", (1, 2, 4, 8, 16, 64, 1048576), _STAY)
_WAVES_AHEAD = Param("WAVES", (1, 2, 3, 4, 6, 8, 16, 64, 1048576), _STAY)
_IN_SHARED = Param("SHARED", (1,), "a row stays in shared memory")
_AHEAD = Param("AHEAD", (0, 1), "1: the next row is on its way to shared memory while one is worked on")
_STREAM = Param("STREAM", (0, 1, 3), "cache policy: 1 stores are first to leave, 3 loads too")
_LIFT = Param("LIFT", (0, 1), "1: exponentials are taken times 2^16, so that ex2 need not mind subnormal ones")
APART = 40  # registers of a thread beside what it keeps of a row
LIFTED_APART = 32  # the same where exponentials are lifted
TURN = 16  # and of the words of a turn where it keeps none
LOST = 8  # multiprocessors that clusters of four and more cannot use: an H200 held 31 of 4, 15 of 8 and 7 of 16
HALF = 0.5  # of the places that a block has for a row may stay empty


def _word(sizes: Sizes) -> int:
    """Elements of 16 bytes."""
    return max(1, 16 // sizes["ITEMSIZE"])


_COARSE = Constraint("only results of 16 bits are lifted", lambda c, d, s: not c.get("LIFT") or s["ITEMSIZE"] <= 2)


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


def _places(of: Reduction, c: Config, sizes: Sizes) -> int:
    """Bytes of shared memory of a block that keeps a row as it was read, or asks for the next one."""
    return c["BM"] * c["WK"] * c["TK"] * sizes["ITEMSIZE"] * len(of.operands) + 2048


def _ahead(of: Reduction, share: Places, *, shared: bool) -> tuple[Constraint, ...]:
    """`share`: blocks of a row. Blocks that ask ahead stay for several rows, and all blocks are there at once. In
    `shared` memory the row that is worked on has a place beside that of the next one."""

    def several(c: Config, d: Device, s: Sizes) -> bool:
        return not c["AHEAD"] or s["M"] * share(c) > c["BM"] * d.sms * c["WAVES"]

    def room(c: Config, d: Device, s: Sizes) -> bool:
        places = _places(of, c, s) * (2 if shared else 1)
        return not c["AHEAD"] or (c["WAVES"] * places <= d.shared_sm_bytes and places <= d.shared_block_bytes)

    def registers(c: Config, d: Device, s: Sizes) -> bool:
        apart = LIFTED_APART if c.get("LIFT") else APART
        threads, wanted = c["BM"] * c["WK"], (TURN if shared else c["TK"]) * len(of.operands) + apart
        return not c["AHEAD"] or c["WAVES"] == 1 or c["WAVES"] * threads * wanted <= d.registers_sm

    return (
        Constraint("blocks that stay are more than registers for what they keep", registers),
        Constraint("no row comes after the first", several),
        Constraint("what is asked for ahead exceeds shared memory", room),
        Constraint(
            "few blocks stay, and nothing is asked for ahead", lambda c, d, s: bool(c["AHEAD"]) or c["WAVES"] >= 4
        ),
        Constraint(
            "a row exceeds shared memory", lambda c, d, s: not shared or _places(of, c, s) <= d.shared_block_bytes
        ),
    )


def _keep(of: Reduction, level: str) -> tuple[Annotation, ...]:
    return tuple(("keep", role, level) for role in of.operands)


def _lift(of: Reduction) -> tuple[Param, ...]:
    """Of sums of exponentials."""
    return (_LIFT,) if of == STATISTICS else ()


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
            Constraint("few blocks stay", lambda c, d, s: c["WAVES"] >= 4),
            *_fits(lambda c: 32 // c["WM"] * c["TK"], {"WM": Param("WM", (16,), ""), "TK": _KEPT}),
        ),
        launches=_launch("softmax_row_kept", "min(ceil(M, BM), SMS * WAVES)", "BM * 32 // WM"),
    )  # fmt: skip


def _block_rows(of: Reduction, *, shared: bool) -> Template:
    """A row with a block: in its registers, or in its shared memory."""
    letters, bytes_ = {"WK": _WIDE, "TK": _KEPT}, f"BM * WK * (TK // WORD) * 16 * {len(of.operands)}"
    return Template(
        name=f"{'shared' if shared else 'block'}_row{of.suffix}",
        backend="cuda",
        what=f"a row in the {'shared memory' if shared else 'registers'} of a block",
        roots=of.fused(),
        source="softmax/cuda/01_row_kept.cu",
        entry="softmax_row_kept",
        groups="M* K1",
        ann=(
            ("tile", ("M",), "block", "BM"), ("tile", ("K",), "thread", "TK"),
            *_keep(of, "shared" if shared else "registers"),
        ),
        params=(_FEW_ROWS, _KEPT),
        knobs=(_WIDE, _WAVES_AHEAD, _STREAM, *((_IN_SHARED,) if shared else ()), _AHEAD, *_lift(of)),
        constraints=(
            _COARSE,
            _WORDS,
            _SKEWED,
            Constraint("a block has more than 1024 threads", lambda c, d, s: c["BM"] * c["WK"] <= 1024),
            Constraint("rows side by side leave no thread busy", lambda c, d, s: c["BM"] == 1 or c["WK"] <= 256),
            *_fits(lambda c: c["WK"] * c["TK"], letters),
            *_ahead(of, lambda c: 1, shared=shared),
        ),
        launches=_launch("softmax_row_kept", "min(ceil(M, BM), SMS * WAVES)", "BM * WK",
                         shared=f"{'(1 + AHEAD)' if shared else 'AHEAD'} * {bytes_}"),
    )  # fmt: skip


def _cluster_row(of: Reduction, *, shared: bool) -> Template:
    """A row with a cluster: in the registers of its blocks, or in their shared memory."""
    letters, bytes_ = {"SPLIT": _CLUSTER, "WK": _WIDE, "TK": _KEPT}, f"WK * (TK // WORD) * 16 * {len(of.operands)}"
    usable = (
        f"(SMS - min(1, SPLIT // 4) * {LOST} * AHEAD)"  # a cluster that starts late would stay as long as all others
    )
    return Template(
        name=f"cluster_{'shared' if shared else 'row'}{of.suffix}",
        backend="cuda",
        what=f"a row in the {'shared memory' if shared else 'registers'} of the blocks of a cluster",
        roots=of.clustered(),
        source="softmax/cuda/02_row_cluster.cu",
        entry="softmax_row_cluster",
        groups="M* K1",
        ann=(
            ("combine", "S", "cluster"), ("tile", ("M",), "block", "BM"), ("tile", ("K",), "thread", "TK"),
            *_keep(of, "shared" if shared else "registers"),
        ),
        params=(_CLUSTER, _ONE_ROW, _KEPT),
        knobs=(_WIDE, _WAVES_AHEAD, _STREAM, *((_IN_SHARED,) if shared else ()), _AHEAD, *_lift(of)),
        constraints=(
            _COARSE,
            Constraint("clusters came with sm_90", lambda c, d, s: d.cc_major >= 9),
            _WORDS,
            *_fits(lambda c: c["SPLIT"] * c["WK"] * c["TK"], letters),
            *_ahead(of, lambda c: c["SPLIT"], shared=shared),
        ),
        launches=_launch("softmax_row_cluster", f"min(M, max(1, {usable} * WAVES // SPLIT)) * SPLIT", "WK",
                         shared=f"{'(1 + AHEAD)' if shared else 'AHEAD'} * {bytes_}", cluster="SPLIT"),
    )  # fmt: skip


def _states(of: Reduction, *, slab: bool) -> Template:
    letters = {"WK": _WIDE, "TK": _KEPT}
    pieces = "M * S" if slab else "M"
    return Template(
        name=f"row_{'slabs' if slab else 'states'}{of.suffix}",
        backend="cuda",
        what=f"the fields of each {'slab of each row' if slab else 'row'}, to memory",
        roots=of.states(slab=slab),
        source="softmax/cuda/04_row_states.cu",
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
    source="softmax/cuda/03_row_online.cu",
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
    found = [_warp_rows(of) for of in REDUCTIONS]
    found += [
        family(of, shared=at) for of in REDUCTIONS for family in (_block_rows, _cluster_row) for at in (False, True)
    ]
    found += [_states(of, slab=slab) for of in REDUCTIONS for slab in (False, True)]
    return (*found, _states(MAXIMUM, slab=False), _ONLINE)
