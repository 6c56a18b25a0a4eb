"""Templates of attention on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template, TileMap

from .patterns import GROUPS, OUTPUTS, SLABS

_WIDTHS = (16, 32, 64, 128, 192, 256)
_BM = Param("BM", (16, 32, 64, 128), "rows of a block")
_WM = Param("WM", (16, 32), "rows of a warp")
_BK = Param("BK", (32, 64, 128, 256), "keys of a tile")
_BD = Param("BD", _WIDTHS, "inner depth of a tile, filled up with zeros")
_BE = Param("BE", _WIDTHS, "columns of a tile, filled up with zeros")
_STAGES = Param("STAGES", (2, 3, 4, 6), "tiles of keys and of values in shared memory")
_SLICES = Param("SLICES", (1, 2, 4, 8), "warps that share the keys of a tile")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 16, 32, 64), "slabs of the keys")

MMA_SYNC = 0.5  # share of the tensor rate that mma.sync reaches here where wgmma exists
ALONE = 0.65  # and where it does not
EXPONENTIALS = 16  # that a multiprocessor computes in a clock
REGISTERS = 48  # of a thread, beside sums, scores and queries


def least(param: Param, size: str) -> Callable[[Config, Device, Sizes], bool]:
    """The narrowest that holds the whole size."""

    def holds(c: Config, d: Device, s: Sizes) -> bool:
        value = c[param.name]
        return value >= s[size] and not any(s[size] <= other < value for other in param.values)

    return holds


def _tiles(rows: Param, keys: Param, depth: Param, columns: Param) -> tuple[Constraint, ...]:
    """What tiles of every kernel on tensor cores keep to."""
    return (
        Constraint("tensor cores take 16-bit operands here", lambda c, d, s: s["ITEMSIZE"] == 2),
        Constraint("BD is not the narrowest that holds the inner depth", least(depth, "D")),
        Constraint("BE is not the narrowest that holds the columns", least(columns, "N")),
        Constraint("BM is larger than the rows need", covers(rows, "M")),
        Constraint("BK is larger than the keys need", covers(keys, "K")),
    )


def warps(c: Config) -> int:
    return c["BM"] // c["WM"] * c["SLICES"]


def shared_bytes(c: Config) -> int:
    """Shared memory of a block."""
    together = 4 * c["SLICES"] * c["BM"] * (c["BE"] + 2) if c["SLICES"] > 1 else 0
    return 2 * c["BM"] * c["BD"] + max(2 * c["STAGES"] * c["BK"] * (c["BD"] + c["BE"]), together)


def registers(c: Config) -> int:
    """Of a thread: sums, scores, and queries where they stay."""
    tiles = c["WM"] // 16
    queries = c["BD"] // 4 if tiles == 1 else 4 * tiles
    return tiles * (c["BE"] // 2 + c["BK"] // c["SLICES"] // 2) + queries + REGISTERS


def efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate of the two products: what exponentials between them, and rows and keys that are no whole
    tile, leave of it."""
    best, rate = (MMA_SYNC, 2048) if d.cc_major >= 9 else (ALONE, 1024 if (d.cc_major, d.cc_minor) == (8, 0) else 512)
    multiply = c["BM"] * c["BK"] * (c["BD"] + c["BE"]) / (best * rate)
    between = c["BM"] * c["BK"] / EXPONENTIALS
    rows = s["M"] / (-(-s["M"] // c["BM"]) * c["BM"])
    return best * multiply / (multiply + 0.5 * between) * rows * (1.0 if warps(c) >= 4 else 0.6)


_CONSTRAINTS = (
    Constraint("the device has no mma.sync of 16x8x16: that came with sm_80", lambda c, d, s: d.cc_major >= 8),
    *_tiles(_BM, _BK, _BD, _BE),
    Constraint("BM is no whole number of WM", lambda c, d, s: c["BM"] % c["WM"] == 0),
    Constraint("a warp has no whole product of keys", lambda c, d, s: c["BK"] % (16 * c["SLICES"]) == 0),
    Constraint("slices are for few rows", lambda c, d, s: c["SLICES"] == 1 or c["BM"] <= 32),
    Constraint("a block has neither 2, 4 nor 8 warps", lambda c, d, s: warps(c) in (2, 4, 8)),
    Constraint("a thread's sums and scores exceed its registers", lambda c, d, s: registers(c) <= 255),
    Constraint("the block's tiles exceed shared memory", lambda c, d, s: shared_bytes(c) <= d.shared_block_bytes),
)
_WHOLE = ("D <= BD", "N <= BE")
_SLAB = Constraint("slabs are shorter than 128 keys", lambda c, d, s: c["SPLIT"] == 2 or s["K"] >= 128 * c["SPLIT"])
_ANN = (
    ("tile", ("M",), "block", "BM"),
    ("tile", ("M",), "warp", "WM"),
    ("tile", ("K",), "serial", "BK"),
    ("tile", ("D",), "serial", "BD"),
    ("tile", ("N",), "block", "BE"),
    ("keep", "state", "registers"),
    ("move", "K", "async", "STAGES"),
    ("move", "V", "async", "STAGES"),
    ("unit", "s", "mma"),
    ("unit", "state", "mma"),
    ("skip", ("K",)),
)
_SHARED = "2 * BM * BD + max(2 * STAGES * BK * (BD + BE), 4 * SLICES * BM * (BE + 2) if SLICES > 1 else 0)"

ASYNC = Template(
    name="attention_async",
    backend="cuda",
    what="scores, online softmax and weighted values in one pass over the keys, by warps on tensor cores",
    roots=OUTPUTS,
    optional=1,
    source="attention/cuda/01_async.cu",
    entry="attention_async",
    groups=GROUPS,
    dtypes=("bfloat16", "float16", "float32"),
    ann=_ANN,
    params=(_BM, _WM, _BK, _BD, _BE, _STAGES),
    knobs=(_SLICES,),
    constraints=_CONSTRAINTS,
    assumes=_WHOLE,
    launches=(
        Launch("attention_async", ("ceil(M, BM) * B * S", "1", "1"), "32 * (BM // WM) * SLICES", _SHARED, overlap=True),
    ),
    efficiency=efficiency,
)
ASYNC_SLABS = replace(
    ASYNC,
    name="attention_async_slabs",
    what="as attention_async, for slabs of the keys in parallel: for few queries",
    roots=SLABS,
    optional=0,
    params=(_SPLIT, *ASYNC.params),
    constraints=(_SLAB, *_CONSTRAINTS),
)


_ROWS = Param("BM", (64, 128, 192), "rows of a block, 64 a consumer")
_KEYS = Param("BK", (64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256), "keys of a tile")
_DEPTH = Param("BD", (64, 128, 192, 256), "inner depth of a tile, filled up with zeros")
_COLUMNS = Param("BE", (64, 128, 192, 256), "columns of a tile, filled up with zeros")
_RINGS = Param("STAGES", (2, 3, 4), "tiles of keys, and of values, in shared memory")
_OVERLAP = Param("OVERLAP", (1, 0), "1: exponentials are computed while the products of the tile before run")
_PINGPONG = Param("PINGPONG", (1, 0), "1: consumers take turns at starting products")
_GROUP = Param("GROUP", (64, 16, 8, 4, 2), "heads that go together where a mask makes work unequal")

WGMMA = 0.8  # share of the tensor rate that the two products reach, if nothing else were to do
_FIXED = 2048  # bytes of shared memory: barriers, and alignment


def ring_bytes(c: Config) -> int:
    """Shared memory of a block of the warp-specialized kernel."""
    return _FIXED + 2 * c["BM"] * c["BD"] + c["STAGES"] * 2 * c["BK"] * (c["BD"] + c["BE"])


def consumer_registers(c: Config) -> int:
    """Of a thread: sums, scores, weights, and all else. Without overlap too weights have places of their own: the
    assembler puts products one after the other where they have none."""
    return c["BE"] // 2 + c["BK"] // 2 + c["BK"] // 4 + 32


def consumer_has(c: Config) -> int:
    """Registers that the kernel gives to a thread of a consumer."""
    return 160 if c["BM"] == 192 else 240


def wgmma_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate of the two products: exponentials run beside those of the same consumer, of another one,
    or of nobody."""
    multiply = c["BM"] * c["BK"] * (c["BD"] + c["BE"]) / (WGMMA * 2048)
    between = c["BM"] * c["BK"] / EXPONENTIALS * 1.6
    hidden = 0.95 if c["BM"] > 128 else 0.0 if c["BM"] == 64 else 0.75 if c["PINGPONG"] else 0.5
    hidden = min(max(hidden, 0.5) + 0.15, 0.95) if c["OVERLAP"] else hidden
    rows = s["M"] / (-(-s["M"] // c["BM"]) * c["BM"])
    deep = s["D"] * s["N"] / (c["BD"] * c["BE"])
    return WGMMA * multiply / (max(multiply, between) + (1 - hidden) * between) * rows * deep


_WGMMA_CONSTRAINTS = (
    Constraint("the device has no wgmma: that is of sm_90a", lambda c, d, s: d.cc_major == 9),
    *_tiles(_ROWS, _KEYS, _DEPTH, _COLUMNS),
    Constraint("nobody is there to take turns with", lambda c, d, s: c["BM"] > 64 or not c["PINGPONG"]),
    Constraint(
        "sums, scores and weights exceed the registers",
        lambda c, d, s: consumer_registers(c) <= consumer_has(c),
    ),
    Constraint("the block's tiles exceed shared memory", lambda c, d, s: ring_bytes(c) <= d.shared_block_bytes),
)
WARP_SPECIALIZED = Template(
    name="attention_specialized",
    backend="cuda",
    what="scores, online softmax and weighted values in one pass, by wgmma; a producer, and consumers that take turns",
    roots=OUTPUTS,
    optional=1,
    source="attention/cuda/02_warp_specialized.cu",
    entry="attention_warp_specialized",
    groups=GROUPS,
    dtypes=("bfloat16", "float16", "float32"),
    ann=(
        ("tile", ("M",), "block", "BM"),
        ("tile", ("K",), "serial", "BK"),
        ("tile", ("D",), "serial", "BD"),
        ("tile", ("N",), "block", "BE"),
        ("keep", "state", "registers"),
        ("move", "Q", "bulk"),
        ("move", "K", "bulk", "STAGES"),
        ("move", "V", "bulk", "STAGES"),
        ("unit", "s", "wgmma"),
        ("unit", "state", "wgmma"),
        ("grid", "persistent"),
        ("roles", "producer_consumer"),
        ("skip", ("K",)),
    ),
    params=(_ROWS, _KEYS, _DEPTH, _COLUMNS, _RINGS),
    knobs=(_OVERLAP, _PINGPONG, _GROUP),
    constraints=_WGMMA_CONSTRAINTS,
    assumes=_WHOLE,
    launches=(
        Launch(
            "attention_warp_specialized",
            ("min(SMS, ceil(M, BM) * B)", "1", "1"),
            "128 * (BM // 64 + 1)",
            f"{_FIXED} + 2 * BM * BD + STAGES * 2 * BK * (BD + BE)",
            overlap=True,
        ),
    ),
    maps=(
        TileMap("Q", "MD", ("BM", "BD")),
        TileMap("K", "KD", ("BK", "BD")),
        TileMap("V", "KN", ("BK", "BE")),
    ),
    efficiency=wgmma_efficiency,
)


def templates() -> tuple[Template, ...]:
    return (ASYNC, ASYNC_SLABS, WARP_SPECIALIZED)
