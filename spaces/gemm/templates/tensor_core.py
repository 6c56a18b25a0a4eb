"""Templates of gemm on CUDA that multiply 16-bit operands on tensor cores by warps: rungs 05 and 06 of the ladder."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template, anything, as_, comb, dot, hole

_BM = Param("BM", (16, 32, 64, 128, 256), "rows of the output per block")
_BN = Param("BN", (16, 32, 64, 128, 256), "columns of the output per block")
_BK = Param("BK", (32, 64), "depth of a tile in shared memory")
_DEEP = Param("BK", (32, 64, 128, 256), "depth of a tile in shared memory")
_WM = Param("WM", (16, 32, 64), "rows of the output per warp")
_WN = Param("WN", (16, 32, 64, 128), "columns of the output per warp")
_STAGES = Param("STAGES", (2, 3, 4, 5, 6, 8), "tiles in shared memory")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 12, 16, 32), "slabs of the reduced axis")
_SLICES = Param("SLICES", (1, 2, 4, 8), "groups of warps that share the depth of a tile")
_GROUP = Param("GROUP", (1, 4, 8, 16), "rows of tiles that go together")
_BLOCKS = Param("BLOCKS", (1, 2, 3), "blocks of a multiprocessor that registers must suffice for")

MMA_SYNC = 0.62  # share of the tensor rate that mma.sync reaches where wgmma exists
ALONE = 0.9  # and where it does not
SHARED_BYTES = 128  # that a multiprocessor moves to or from shared memory in a clock
SYNCHRONOUS = 0.55  # of the rate, where loads and arithmetic of a block take turns
LARGEST_SLICED = 64 * 128  # sums of a tile whose depth is worth slicing
REGISTERS = 40  # of a thread, beside sums and fragments


def warps(c: Config) -> int:
    return c["BM"] // c["WM"] * (c["BN"] // c["WN"]) * c.get("SLICES", 1)


def _registers(c: Config) -> int:
    """Of a thread: sums, fragments, addresses, and without a ring its pieces of the next tile."""
    fragments = (c["WM"] + c["WN"]) // 4
    if "STAGES" not in c:
        fragments += 9 * -(-c["BK"] * (c["BM"] + c["BN"]) // (8 * 32 * max(1, warps(c))))
    return c["WM"] * c["WN"] // 32 + fragments + REGISTERS


def shared_bytes(c: Config) -> int:
    """Shared memory of a block: its tiles, or sums on their way out if they take more."""
    tiles = c.get("STAGES", 1) * 2 * c["BK"] * (c["BM"] + c["BN"])
    slices = c.get("SLICES", 1)
    staged = slices * c["BM"] * (c["BN"] + 8) if slices > 1 else warps(c) * 16 * (c["WN"] + 8)
    return max(tiles, 4 * staged)


def _rules(*params: Param) -> tuple[Constraint, ...]:
    """The constraints that concern these parameters. Those of one or two letters come first: they cut deepest."""
    letters = {param.name for param in params}
    rules = [
        Constraint("the device has no mma.sync of 16x8x16: that came with sm_80", lambda c, d, s: d.cc_major >= 8),
        Constraint("tensor cores take 16-bit operands here", lambda c, d, s: s["ITEMSIZE"] == 2),
        Constraint("BM is larger than M needs", covers(_BM, "M")),
        Constraint("BN is larger than N needs", covers(_BN, "N")),
        Constraint(
            "a block's tile is not a whole number of warp tiles",
            lambda c, d, s: c["BM"] % c["WM"] == 0 and c["BN"] % c["WN"] == 0,
        ),
        Constraint("a warp's sums exceed its registers", lambda c, d, s: c["WM"] * c["WN"] <= 64 * 64),
        Constraint(
            "warp tiles are narrow without need: they read shared memory more often than they multiply",
            lambda c, d, s: c["WM"] * c["WN"] >= 32 * 32 or c["BM"] <= 32 or c["BN"] <= 32,
        ),
    ]
    if "SLICES" in letters:
        rules += [
            Constraint(
                "slices are for small tiles: a large one has warps enough",
                lambda c, d, s: c["SLICES"] == 1 or c["BM"] * c["BN"] <= LARGEST_SLICED,
            ),
            Constraint(
                "BK is not between two and four steps of 16 for each slice",
                lambda c, d, s: 2 <= c["BK"] // (16 * c["SLICES"]) <= 4,
            ),
        ]
    rules += [
        Constraint("a block has neither 4 nor 8 warps", lambda c, d, s: warps(c) in (4, 8)),
        Constraint("the block's tiles exceed shared memory", lambda c, d, s: shared_bytes(c) <= d.shared_block_bytes),
        Constraint("a thread's sums and pieces exceed its registers", lambda c, d, s: _registers(c) <= 255),
        Constraint(
            "BLOCKS do not fit a multiprocessor's shared memory",
            lambda c, d, s: c["BLOCKS"] == 1 or c["BLOCKS"] * (shared_bytes(c) + 1024) <= d.shared_sm_bytes,
        ),
        Constraint(
            "BLOCKS do not fit a multiprocessor's registers",
            lambda c, d, s: c["BLOCKS"] == 1 or c["BLOCKS"] * 32 * warps(c) * _registers(c) <= d.registers_sm,
        ),
        Constraint(
            "GROUP is larger than the rows of tiles need",
            lambda c, d, s: c["GROUP"] == 1 or c["GROUP"] < 2 * -(-s["M"] // c["BM"]),
        ),
    ]
    if "SPLIT" in letters:
        rules.append(
            Constraint(
                "slabs are shorter than 128",
                lambda c, d, s: s["K"] >= 128 * c["SPLIT"] or c["SPLIT"] == _SPLIT.values[0],
            )
        )
    return tuple(rules)


def pipeline_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate of the inner loop: what shared memory, barriers and too few warps leave of it.

    In clocks of one multiprocessor, for one tile: multiplying, and moving what is multiplied through shared memory
    once in and, for each warp, out again.
    """
    best = MMA_SYNC if d.cc_major >= 9 else ALONE
    rate = best * (2048 if d.cc_major >= 9 else 1024 if (d.cc_major, d.cc_minor) == (8, 0) else 512)
    multiply = c["BM"] * c["BN"] * c["BK"] / rate
    written = 2 * c["BK"] * (c["BM"] + c["BN"])
    read = 2 * c["BK"] * (c["BM"] * (c["BN"] // c["WN"]) + c["BN"] * (c["BM"] // c["WM"]))
    move = (written + read) / SHARED_BYTES
    steps = c["BK"] / 16 / c.get("SLICES", 1)
    share = best * multiply / (max(multiply, move) + 0.2 * min(multiply, move)) * steps / (steps + 0.25)
    return share * (1.0 if warps(c) * c["BLOCKS"] > 4 else 0.85)


def synchronous_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """As `pipeline_efficiency`; loads, stores to shared memory and arithmetic of a block take turns."""
    return SYNCHRONOUS * pipeline_efficiency(c, d, s)


_DOT = dot(as_("A", anything()), as_("B", anything()))
_SLAB = dot(as_("A", anything()), as_("B", anything()), slab=True)
_PART = dot(as_("A", anything()), as_("B", anything()), slab=True, name="part")
_TILES = (
    ("tile", ("M",), "block", "BM"),
    ("tile", ("N",), "block", "BN"),
    ("tile", ("M",), "warp", "WM"),
    ("tile", ("N",), "warp", "WN"),
    ("tile", ("K",), "serial", "BK"),
)


def _schedule(sums: str, *move: str) -> tuple[tuple, ...]:
    return (
        *_TILES,
        ("keep", sums, "registers"),
        ("move", "A", *move),
        ("move", "B", *move),
        ("unit", sums, "mma"),
    )


_GRID = ("ceil(M, BM) * ceil(N, BN) * B * S", "1", "1")
_BLOCK = "32 * (BM // WM) * (BN // WN)"
_STAGED = "4 * (BM // WM) * (BN // WN) * 16 * (WN + 8)"
_SLICED = f"4 * SLICES * BM * (BN + 8) if SLICES > 1 else {_STAGED}"
_SHARED = f"max(STAGES * 2 * BK * (BM + BN), {_SLICED})"
_PIPELINE = Launch("gemm_async_pipeline", _GRID, f"{_BLOCK} * SLICES", _SHARED, overlap=True)
# Never early itself: what follows it reads operands beside it, which what came before it may have written.
_CLEAR = Launch("gemm_clear", ("min(ceil(B * M * N, 256), 16 * SMS)", "1", "1"), "256")

TENSOR_CORE = Template(
    name="tensor_core",
    backend="cuda",
    what="16x8x16 products of warps on tensor cores, tiles staged through registers",
    roots=(hole("D", _DOT),),
    source="gemm/cuda/05_tensor_core.cu",
    entry="gemm_tensor_core",
    groups="M1 N1 K1 B*",
    dtypes=("bfloat16", "float16", "float32"),
    ann=_schedule("acc", "vector"),
    params=(_BM, _BN, _WM, _WN, _BK),
    knobs=(_GROUP, _BLOCKS),
    constraints=_rules(_BM, _BN, _WM, _WN, _BK),
    launches=(Launch("gemm_tensor_core", _GRID, _BLOCK, f"max(2 * BK * (BM + BN), {_STAGED})"),),
    efficiency=synchronous_efficiency,
)
ASYNC_PIPELINE = Template(
    name="async_pipeline",
    backend="cuda",
    what="as tensor_core, a ring of tiles filled by asynchronous copies; any alignment, and small outputs by slices",
    roots=(hole("D", _DOT),),
    source="gemm/cuda/06_async_pipeline.cu",
    entry="gemm_async_pipeline",
    groups="M1 N1 K1 B*",
    dtypes=("bfloat16", "float16", "float32"),
    ann=_schedule("acc", "async", "STAGES"),
    params=(_BM, _BN, _WM, _WN, _DEEP, _STAGES),
    knobs=(_SLICES, _GROUP, _BLOCKS),
    constraints=_rules(_BM, _BN, _WM, _WN, _DEEP, _STAGES, _SLICES),
    launches=(_PIPELINE,),
    efficiency=pipeline_efficiency,
)
ASYNC_SPLIT_K = replace(
    ASYNC_PIPELINE,
    name="async_split_k",
    what="as async_pipeline, slabs of the reduced axis by different blocks, partial sums to memory",
    roots=(hole("D", _SLAB),),
    params=(_SPLIT, *ASYNC_PIPELINE.params),
    constraints=_rules(_SPLIT, *ASYNC_PIPELINE.params, *ASYNC_PIPELINE.knobs),
)
ASYNC_ATOMIC = replace(
    ASYNC_SPLIT_K,
    name="async_atomic",
    what="as async_split_k, partial sums added up in memory by atomics, in no fixed order",
    roots=(hole("D", comb(inside=_PART)),),
    groups="M1 N1 K1",
    # Atomic additions in memory flush float32 subnormals (PTX ISA, atom). Sums of products of float16 have none, being
    # multiples of 2^-48; those of bfloat16 have.
    dtypes=("float16", "float32"),
    ann=(("combine", "S", "atomic"), *_schedule("part", "async", "STAGES")),
    launches=(_CLEAR, _PIPELINE),
    flags=("-DKS_ATOMIC=1",),
)


def templates() -> tuple[Template, ...]:
    return (TENSOR_CORE, ASYNC_PIPELINE, ASYNC_SPLIT_K, ASYNC_ATOMIC)
