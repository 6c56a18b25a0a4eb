"""Templates of gemm on Hopper GPUs: tiles by the copy engine, wgmma, a producer and consumers. Rung 07 of the ladder.

One source, many kernels: operands read where they are or from packed copies, the output stored by the copy engine or by
threads, operands swapped so that the smaller side of the output is that of wgmma's columns, and slabs of K, added up by
a second kernel or within a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template, TileMap, anything, as_, comb, dot, hole

_BM = Param("BM", (64, 128, 192, 256), "rows of the output per tile")
_BN = Param("BN", (16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256), "columns of the output per tile")
_BK = Param("BK", (64, 128), "depth of a stage")
_STAGES = Param("STAGES", (2, 3, 4, 5, 6, 7, 8, 10, 12), "stages in shared memory")
_CONSUMERS = Param("CONSUMERS", (1, 2, 3), "warpgroups that multiply")
_PINGPONG = Param("PINGPONG", (0, 1), "1: consumers take tiles in turn, 0: they share every tile")
_CM = Param("CM", (1, 2), "blocks of a cluster along M, which share tiles of B")
_CN = Param("CN", (1, 2), "blocks of a cluster along N, which share tiles of A")
_SLABS = Param("SPLIT", (2, 3, 4, 6, 8, 12, 16, 32), "slabs of the reduced axis")
_CLUSTER = Param("SPLIT", (2, 4, 8, 16), "slabs of the reduced axis, a cluster of blocks")
_GROUP = Param("GROUP", (1, 4, 8, 16), "rows (columns, if ALONG) of tiles that go together")
_ALONG = Param("ALONG", (0, 1), "1: tiles are grouped by columns")
_BUFFERS = Param("BUFFERS", (2, 4), "pieces of a finished tile on their way to memory")
_FEW_BUFFERS = Param("BUFFERS", (1, 2), "pieces of a finished tile on their way to memory")

_MOST_SUMS = {1: 208, 2: 208, 3: 128}  # of a thread, by the number of consumers
_WGMMA_RATE = 2048  # multiply-adds of one multiprocessor in a clock
_SHARED_RATE = 128  # bytes of shared memory, read or written, in a clock

# bytes of shared memory: barriers and alignment, stages, and what a finished tile needs on its way to memory
_FIXED = "2048"
_RING = "STAGES * 2 * BK * (BM + (BN if BN <= 64 else up(BN, 64)))"
_WIDE = "(64 if BN % 64 == 0 else 32 if BN % 32 == 0 else 16)"
_NARROW = "(32 if BN % 32 == 0 else 16)"
_PIECES = {
    "bulk": f"CONSUMERS * BUFFERS * 128 * {_WIDE}",
    "direct": f"CONSUMERS * BUFFERS * 256 * ({_NARROW} + 8)",
    "sums": "0",
    "cluster": f"max(0, 4 * BM * (BN + 8) - {_RING})",
    "cluster_swapped": f"max(0, 4 * BN * (BM + 4) - {_RING})",
}


def _wide(c: Config) -> int:
    return 64 if c["BN"] % 64 == 0 else 32 if c["BN"] % 32 == 0 else 16


def _loaded(c: Config) -> int:
    """Columns of B that a stage has room for: boxes of 64 may reach over the tile's end."""
    return c["BN"] if c["BN"] <= 64 else -(-c["BN"] // 64) * 64


def shared_bytes(c: Config, how: str) -> int:
    """Shared memory of a block; `how` a finished tile leaves: a key of _PIECES."""
    ring = c["STAGES"] * 2 * c["BK"] * (c["BM"] + _loaded(c))
    pieces = {
        "bulk": lambda: c["CONSUMERS"] * c["BUFFERS"] * 128 * _wide(c),
        "direct": lambda: c["CONSUMERS"] * c["BUFFERS"] * 256 * (min(32, _wide(c)) + 8),
        "sums": lambda: 0,
        "cluster": lambda: max(0, 4 * c["BM"] * (c["BN"] + 8) - ring),
        "cluster_swapped": lambda: max(0, 4 * c["BN"] * (c["BM"] + 4) - ring),
    }
    return 2048 + ring + pieces[how]()


def _rows(c: Config) -> int:
    """Rows of a tile that one consumer has."""
    return c["BM"] if c.get("PINGPONG") else c["BM"] // c["CONSUMERS"]


def _fewer(how: str) -> Callable[[Config, Device, Sizes], bool]:
    """At most one step fewer stages than there is room for."""

    def holds(c: Config, d: Device, s: Sizes) -> bool:
        more = [value for value in _STAGES.values if value > c["STAGES"]]
        return len(more) < 2 or shared_bytes({**c, "STAGES": more[1]}, how) > d.shared_block_bytes

    return holds


def _all_buffers(how: str) -> Callable[[Config, Device, Sizes], bool]:
    """As many pieces as there is room for."""
    values = (_BUFFERS if how == "bulk" else _FEW_BUFFERS).values

    def holds(c: Config, d: Device, s: Sizes) -> bool:
        more = [value for value in values if value > c["BUFFERS"]]
        return not more or shared_bytes({**c, "BUFFERS": more[0]}, how) > d.shared_block_bytes

    return holds


def _large_enough(m: str, n: str) -> Callable[[Config, Device, Sizes], bool]:
    def holds(c: Config, d: Device, s: Sizes) -> bool:
        return c["BM"] * c["BN"] >= 128 * 128 or _blocks(c, s, m, n) * c.get("SPLIT", 1) <= 3 * d.sms

    return holds


def _blocks(c: Config, s: Sizes, m: str, n: str) -> int:
    """Tiles of the whole output."""
    return -(-s[m] // c["BM"]) * -(-s[n] // c["BN"])


def _rules(how: str, letters: set[str], *, swapped: bool) -> tuple[Constraint, ...]:
    m, n = ("N", "M") if swapped else ("M", "N")
    rules = [
        Constraint("wgmma is Hopper's (sm_90a)", lambda c, d, s: d.cc_major == 9),
        Constraint("wgmma takes 16-bit operands here", lambda c, d, s: s["ITEMSIZE"] == 2),
        Constraint("BM is larger than the rows need", covers(_BM, m)),
        Constraint("BN is larger than the columns need", covers(_BN, n)),
    ]
    if "PINGPONG" in letters:
        rules.append(Constraint("two consumers take turns", lambda c, d, s: not c["PINGPONG"] or c["CONSUMERS"] == 2))
    rules += [
        Constraint(
            "consumers do not get 64 or 128 rows each (to 192 where they take turns)",
            lambda c, d, s: _rows(c) * (1 if c.get("PINGPONG") else c["CONSUMERS"]) == c["BM"]
            and _rows(c) in ((64, 128, 192) if c.get("PINGPONG") else (64, 128)),
        ),
        Constraint(
            "sums exceed a consumer's registers",
            lambda c, d, s: _rows(c) * c["BN"] // 128 <= _MOST_SUMS[c["CONSUMERS"]],
        ),
        Constraint(
            "a product of 64 rows does not fit the registers that a thread of four warpgroups starts with",
            lambda c, d, s: c["CONSUMERS"] < 3 or c["BN"] <= 192,
        ),
        Constraint(
            "stages of 128 are for small tiles: large ones need the room for more of 64",
            lambda c, d, s: c["BK"] == 64 or c["BM"] + c["BN"] <= 256,
        ),
        Constraint("the ring, and what leaves, exceed shared memory",
                   lambda c, d, s: shared_bytes(c, how) <= d.shared_block_bytes),
        Constraint("there is room for many more stages", _fewer(how)),
        Constraint("tiles are small without need: they fill the device many times", _large_enough(m, n)),
    ]  # fmt: skip
    if "BUFFERS" in letters:
        rules.append(Constraint("there is room for more pieces of finished tiles", _all_buffers(how)))
    if "CM" in letters:
        rules += [
            Constraint("clusters of more than two blocks bring nothing here", lambda c, d, s: c["CM"] * c["CN"] <= 2),
            Constraint(
                "a block of the cluster would have nothing to do",
                lambda c, d, s: (c["CM"] == 1 or s[m] > c["BM"]) and (c["CN"] == 1 or s[n] > c["BN"]),
            ),
        ]
    if "GROUP" in letters:
        rules.append(
            Constraint(
                "GROUP is larger than there are tiles",
                lambda c, d, s: (
                    c["GROUP"] == 1 or c["GROUP"] < 2 * (-(-s[n] // c["BN"]) if c["ALONG"] else -(-s[m] // c["BM"]))
                ),
            )
        )
    if "SPLIT" in letters:
        rules += [
            Constraint("slabs are shorter than 128", lambda c, d, s: s["K"] >= 128 * c["SPLIT"]),
            Constraint("tiles fill the device without slabs", lambda c, d, s: 4 * _blocks(c, s, m, n) <= 3 * d.sms),
            Constraint(
                "slabs fill the device more than twice",
                lambda c, d, s: c["SPLIT"] == 2 or _blocks(c, s, m, n) * c["SPLIT"] <= 2 * d.sms,
            ),
        ]
    if how.startswith("cluster"):
        rules.append(
            Constraint(
                "clusters of eight or more do not all run at once: groups of multiprocessors do not hold whole ones",
                lambda c, d, s: c["SPLIT"] < 8 or 8 * _blocks(c, s, m, n) * c["SPLIT"] <= 7 * d.sms,
            )
        )
    return tuple(rules)


def wgmma_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate of the main loop: each product of 64 rows reads its rows and all columns from shared
    memory at 128 bytes a clock. One consumer alone, or one of two that take turns with 64 rows each, waits for its own
    products. Fitted to an H200."""
    multiply = c["BM"] * c["BN"] * c["BK"] / _WGMMA_RATE
    read = c["BM"] // 64 * (64 + c["BN"]) * c["BK"] * 2 / _SHARED_RATE
    alone = 0.82 if c["CONSUMERS"] == 1 or (c.get("PINGPONG") and c["BM"] == 64) else 1.0
    return 0.97 * alone * multiply / (max(multiply, read) + 8)


_OPERANDS = (as_("A", anything()), as_("B", anything()))
_DOT = (hole("D", dot(*_OPERANDS)),)
_SLAB = (hole("D", dot(*_OPERANDS, slab=True)),)
_COMBINED = (hole("D", comb(inside=dot(*_OPERANDS, slab=True, name="part"))),)


def _schedule(sums: str = "acc", *before: tuple) -> tuple[tuple, ...]:
    return (
        *before,
        ("tile", ("M",), "block", "BM"),
        ("tile", ("N",), "block", "BN"),
        ("tile", ("K",), "serial", "BK"),
        ("keep", sums, "registers"),
        ("move", "A", "bulk", "STAGES"),
        ("move", "B", "bulk", "STAGES"),
        ("unit", sums, "wgmma"),
        ("grid", "persistent"),
        ("roles", "producer_consumer"),
    )


def _launch(tiles: str, cluster: str, how: str) -> Launch:
    """Blocks that fill the device, in whole clusters, or fewer when there are fewer tiles."""
    return Launch(
        "gemm_warp_specialized",
        grid=(f"min(max(SMS // ({cluster}), 1), {tiles}) * {cluster}", "1", "1"),
        block="128 * (CONSUMERS + 1)",
        shared=f"{_FIXED} + {_RING} + {_PIECES[how]}",
        cluster=(cluster, 1, 1),  # type: ignore[arg-type]
        overlap=True,
    )


_A = TileMap("A", "MK", ("BM", "BK"), share="CN")
_B = TileMap("B", "KN", ("BK", "BN"), share="CM", over=True)
_D = TileMap("D", "MN", ("64", _WIDE))
_ALONE = (replace(_A, share="1"), replace(_B, share="1"))
_TILES = "ceil(M, BM * CM) * ceil(N, BN * CN) * B"
_PARAMS = (_BM, _BN, _BK, _CONSUMERS, _PINGPONG, _STAGES, _CM, _CN)
_SHORT = (_BM, _BN, _BK, _CONSUMERS, _STAGES)
_PACK = {roles: (Launch(entry, (f"min(ceil({size} * K * B, 2048) + 1, SMS * 8)", "1", "1"), "256", overlap=True),)
         for roles, entry, size in (("A", "pack_a", "M"), ("B", "pack_b", "N"),
                                    ("AB", "pack_both", "(M + N)"))}  # fmt: skip


def _template(name: str, what: str, **more: object) -> Template:
    letters = {param.name for key in ("params", "knobs") for param in more.get(key, ())}  # type: ignore[attr-defined]
    how = str(more.pop("how"))
    return Template(
        name=name,
        what=what,
        backend="cuda",
        source="gemm/cuda/07_warp_specialized.cu",
        entry="gemm_warp_specialized",
        groups="M1 N1 K1 B*",
        constraints=_rules(how, letters, swapped=bool(more.get("swapped"))),
        efficiency=wgmma_efficiency,
        **more,  # type: ignore[arg-type]
    )


def _whole(name: str, what: str, how: str, *, packed: str = "", swapped: bool = False) -> Template:
    """All of K at once."""
    return _template(
        name,
        what,
        how=how,
        roots=_DOT,
        ann=_schedule("acc", *(("move", role, "pack") for role in packed)),
        params=_PARAMS,
        knobs=(_GROUP, _ALONG, _BUFFERS if how == "bulk" else _FEW_BUFFERS),
        launches=(*_PACK.get(packed, ()), _launch(_TILES, "CM * CN", how)),
        maps=(_A, _B, _D) if how == "bulk" else (_A, _B),
        dtypes=("bfloat16", "float16") if how == "bulk" else (),  # pieces of a finished tile are of two bytes
        swapped=swapped,
    )


WARP_SPECIALIZED = _whole("warp_specialized", "a producer, consumers with wgmma, stores by the copy engine", "bulk")
SWAPPED = _whole("warp_specialized_swapped", "the same for the transposed product", "bulk", swapped=True)
DIRECT = _whole("warp_specialized_direct", "stores by threads, for any output", "direct")
PACKED_A = _whole("warp_specialized_packed_a", "of an aligned copy of A", "direct", packed="A")
PACKED_B = _whole("warp_specialized_packed_b", "of an aligned copy of B", "direct", packed="B")
PACKED = _whole("warp_specialized_packed", "of aligned copies of A and B", "direct", packed="AB")
SLABS = _template(
    "warp_specialized_slabs",
    "slabs of the reduced axis, partial sums to memory",
    how="sums",
    roots=_SLAB,
    ann=_schedule(),
    params=(_SLABS, *_PARAMS),
    launches=(_launch(f"{_TILES} * S", "CM * CN", "sums"),),
    maps=(_A, _B),
)


def _cluster(name: str, what: str, *, swapped: bool) -> Template:
    how = "cluster_swapped" if swapped else "cluster"
    return _template(
        name,
        what,
        how=how,
        roots=_COMBINED,
        ann=_schedule("part", ("combine", "S", "cluster")),
        params=(_CLUSTER, *_SHORT),
        launches=(_launch("ceil(M, BM) * ceil(N, BN) * B", "SPLIT", how),),
        maps=_ALONE,
        flags=("-DKS_COMBINE=1",),
        swapped=swapped,
    )


CLUSTER_SPLIT = _cluster("cluster_split", "slabs of the reduced axis, added up within a cluster", swapped=False)
CLUSTER_SPLIT_SWAPPED = _cluster("cluster_split_swapped", "the same for the transposed product", swapped=True)


def templates() -> tuple[Template, ...]:
    whole = (WARP_SPECIALIZED, SWAPPED, DIRECT, PACKED_A, PACKED_B, PACKED)
    return (*whole, SLABS, CLUSTER_SPLIT, CLUSTER_SPLIT_SWAPPED)
