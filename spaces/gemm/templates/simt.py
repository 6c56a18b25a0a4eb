"""Templates of gemm on CUDA cores: the lower rungs of the ladder, and the float32 pipeline."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template, dot, hole

ALL_DTYPES = ("float32", "bfloat16", "float16")

_TM = Param("TM", (1, 2, 4, 8), "rows of the output per thread")
_NARROW_M = Param("BM", (8, 16, 32), "rows of the output per block")
_NARROW_N = Param("BN", (16, 32), "columns of the output per block")
_BM = Param("BM", (16, 32, 64, 128), "rows of the output per block")
_BN = Param("BN", (32, 64, 128), "columns of the output per block")
_BK = Param("BK", (8, 16, 32), "depth of a tile")
_OWN_M = Param("TM", (2, 4, 8, 16), "rows of the output per thread")
_OWN_N = Param("TN", (2, 4, 8, 16), "columns of the output per thread")
_VECTORS_M = Param("TM", (4, 8), "rows of the output per thread")
_VECTORS_N = Param("TN", (4, 8), "columns of the output per thread")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 12, 16, 32), "slabs of the reduced axis")

# the pipeline: tiles of odd sizes are there to fill a device's multiprocessors evenly
_WIDE_M = Param("BM", (1, 16, 32, 64, 96, 128, 144, 192, 256), "rows of the output per block")
_WIDE_N = Param("BN", (1, 16, 32, 64, 96, 112, 128, 144, 256), "columns of the output per block")
_FINE_M = Param("TM", (1, 4, 8, 9, 12, 16), "rows of the output per thread")
_FINE_N = Param("TN", (1, 4, 8, 9, 12, 14, 16), "columns of the output per thread")
_STAGES = Param("STAGES", (2, 3, 4, 6), "tiles in shared memory")
_GROUP = Param("GROUP", (1, 4, 8, 16), "rows of tiles that blocks share before they move on")

MOST_REGISTERS = 255  # of a thread
REGISTERS = 32  # of a thread, beside sums and fragments
PADDING = 4  # elements that a row of a tile in shared memory may be longer
LOADS = 8 / 3  # clocks that shared memory takes to serve a warp 16 bytes a lane, as lanes share them
COPY = 3  # instructions of a copy: its address and itself


def threads(c: Config) -> int:
    """Threads of a block that are dealt TM x TN sums each; 1 where thread tiles are larger than the block."""
    return max(1, c["BM"] // c["TM"] * (c["BN"] // c["TN"]))


def lanes(c: Config) -> tuple[int, int]:
    """How the lanes of a warp lie along M and N: `ks_layout` of simt_tile.cuh."""
    down, across = c["BM"] // c["TM"], c["BN"] // c["TN"]
    most = min(8 if c["TM"] <= c["TN"] else 4, down)
    lanes_n = max(1, min(32 // max(1, most), across))
    return 32 // lanes_n, lanes_n


def _pieces(c: Config) -> int:
    """Copies of a thread for a tile, where all are of 4 bytes."""
    return -(-c["BM"] * c.get("BK", 8) // threads(c)) + -(-c["BN"] * c.get("BK", 8) // threads(c))


def registers(c: Config) -> int:
    """Of a thread, about: as 08_simt_pipeline.cu counts them to say how many blocks shall fit."""
    pieces = _pieces(c)
    return c["TM"] * c["TN"] + 2 * (c["TM"] + c["TN"]) + REGISTERS + (pieces + 8 if pieces > 16 else 0)


def pipeline_bytes(c: Config) -> int:
    """Shared memory of a block of the pipeline: its tiles, or a slice of the output if that takes more."""
    tiles = c["STAGES"] * c["BK"] * (c["BM"] + c["BN"] + 2 * PADDING)
    return 4 * max(tiles, c["BM"] // c["TM"] * c["BN"])


def _whole(c: Config, d: Device, s: Sizes) -> bool:
    return c["BM"] % c["TM"] == 0 and c["BN"] % c["TN"] == 0


def _whole_warps(c: Config, d: Device, s: Sizes) -> bool:
    """Do lanes tile the block, with a warp's tile starting at whole vectors?"""
    down, across = c["BM"] // c["TM"], c["BN"] // c["TN"]
    lanes_m, lanes_n = lanes(c)
    vectors = all(own < 4 or own * many % 4 == 0 for own, many in ((c["TM"], lanes_m), (c["TN"], lanes_n)))
    return lanes_m * lanes_n == 32 and down % lanes_m == 0 and across % lanes_n == 0 and vectors


def _rules(*params: Param) -> tuple[Constraint, ...]:
    """The constraints that concern the sizes of tiles."""
    letters = {param.name for param in params}
    rules = [
        Constraint(f"{param.name} is larger than {size} needs", covers(param, size))
        for param in params
        if (size := {"BM": "M", "BN": "N"}.get(param.name))
    ]
    if "TM" not in letters:
        rules.append(Constraint("block has too many threads", lambda c, d, s: c["BM"] * c["BN"] <= 1024))
        rules.append(Constraint("block is less than two warps", lambda c, d, s: c["BM"] * c["BN"] >= 64))
        return tuple(rules)
    return (
        *rules,
        Constraint("thread tiles do not fill the block tile", _whole),
        Constraint("block has too many threads", lambda c, d, s: threads(c) <= 512),
        Constraint("block is not a whole number of warps", lambda c, d, s: threads(c) % 32 == 0),
    )


def _pipeline_rules() -> tuple[Constraint, ...]:
    """Those of the pipeline."""
    return (
        Constraint("cp.async came with sm_80", lambda c, d, s: d.cc_major >= 8),
        Constraint("BM is larger than M needs", covers(_WIDE_M, "M")),
        Constraint("BN is larger than N needs", covers(_WIDE_N, "N")),
        Constraint("thread tiles do not fill the block tile", _whole),
        Constraint(
            "sums and fragments of a thread exceed its registers",
            lambda c, d, s: c["TM"] * c["TN"] + 2 * (c["TM"] + c["TN"]) <= 208,
        ),
        Constraint(
            "offsets of copies exceed a thread's registers", lambda c, d, s: registers(c) <= 255 and _pieces(c) <= 136
        ),
        Constraint(
            "block is not 1, 2, 4 or 8 warps, which copies are dealt to evenly",
            lambda c, d, s: threads(c) in (32, 64, 128, 256),
        ),
        Constraint("thread tiles do not fill whole warps", _whole_warps),
        Constraint(
            "a thread's row or column is a single element without need",
            lambda c, d, s: (c["TM"] > 1 or c["BM"] == 1) and (c["TN"] > 1 or c["BN"] == 1),
        ),
        Constraint(
            "block tile is small for so large an output",
            lambda c, d, s: not _small(c) or min(s["M"], s["N"]) < 64 or s["M"] * s["N"] < 512 * 512,
        ),
        Constraint(
            "thread tile is small for so large a block: it would wait for shared memory",
            lambda c, d, s: _small(c) or c["TM"] * c["TN"] >= 64,
        ),
        Constraint(
            "thread tile is far from square for so large a block",
            lambda c, d, s: _small(c) or max(c["TM"], c["TN"]) <= 2 * min(c["TM"], c["TN"]),
        ),
        Constraint("few warps are for small tiles", lambda c, d, s: _small(c) or threads(c) >= 128),
        Constraint("deep tiles are for small blocks", lambda c, d, s: c["BK"] == 16 or (c["BK"] > 16) == _small(c)),
        Constraint("six stages are for small blocks", lambda c, d, s: c["STAGES"] <= 4 or _small(c)),
        Constraint("BK is too deep for so few threads", lambda c, d, s: threads(c) >= c["BK"]),
        Constraint("stages exceed shared memory", lambda c, d, s: pipeline_bytes(c) <= d.shared_block_bytes),
        Constraint(
            "stages keep a second block out of shared memory, for which there are registers",
            lambda c, d, s: min(resident(c), 2) * (pipeline_bytes(c) + 1024) <= d.shared_sm_bytes,
        ),
    )


def _small(c: Config) -> bool:
    """A block tile for problems that are bound by memory, not by arithmetic."""
    return c["BM"] * c["BN"] < 64 * 64 or min(c["BM"], c["BN"]) <= 16


def resident(c: Config) -> int:
    """Blocks of a multiprocessor that registers allow: each of its quarters has 512 a lane."""
    warps = max(1, threads(c) // 32)
    return min(max(1, max(1, 512 // registers(c)) * 4 // warps), 16)


def _padded(c: Config, s: Sizes) -> float:
    """Share of the tiles' work that is wanted."""
    down, across = -(-s["M"] // c["BM"]) * c["BM"], -(-s["N"] // c["BN"]) * c["BN"]
    return s["M"] / down * s["N"] / across


def pipeline_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the multiply-adds in what a multiprocessor issues, less what shared memory and few warps cost, times
    what ragged tiles waste."""
    work = c["TM"] * c["TN"]
    loads = -(-c["TM"] // 4) + -(-c["TN"] // 4)
    copies = COPY * (c["BM"] + c["BN"] / 4) / threads(c)
    issue = work / (work + loads + copies + 16 / c["BK"])
    shared = min(1.0, work / 4 / (loads * LOADS))
    schedulers = 4
    warps = resident(c) * threads(c) / 32 / schedulers
    latency = min(1.0, 0.8 + 0.1 * warps)
    return issue * shared * latency * _padded(c, s)


def tile_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Of a kernel whose loads and arithmetic take turns. Sums without a register are written and read each step."""
    work = c.get("TM", 1) * c.get("TN", 1)
    loads = c.get("TM", 1) + c.get("TN", 1)
    spilled = max(0, work + loads + REGISTERS - MOST_REGISTERS)
    return 0.6 * work / (work + loads + 2 * spilled) * _padded(c, s)


def vector_efficiency(c: Config, d: Device, s: Sizes) -> float:
    """As `tile_efficiency`, with a quarter of the loads."""
    work, loads = c["TM"] * c["TN"], (c["TM"] + c["TN"]) / 4
    return 0.65 * work / (work + loads) * min(1.0, work / 4 / (loads * LOADS)) * _padded(c, s)


_BLOCKS = (("tile", ("M",), "block", "BM"), ("tile", ("N",), "block", "BN"))
_THREADS = (("tile", ("M",), "thread", "TM"), ("tile", ("N",), "thread", "TN"))
_DEPTH = (("tile", ("K",), "serial", "BK"),)
_KEPT = (("keep", "acc", "registers"),)
_TILES = "ceil(M, BM) * ceil(N, BN) * B"
_DEALT = "BM // TM * (BN // TN)"


def _moves(how: str, *symbol: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("move", role, how, *symbol) for role in "AB")


NAIVE = Template(
    name="naive",
    backend="cuda",
    what="a few rows of one column per thread, straight from memory",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/cuda/01_naive.cu",
    entry="gemm_naive",
    groups="M+ N+ K+ B*",
    dtypes=ALL_DTYPES,
    ann=(("tile", ("M",), "thread", "TM"),),
    params=(_TM,),
    constraints=(Constraint("TM is larger than M needs", covers(_TM, "M")),),
    launches=(Launch("gemm_naive", ("ceil(M, 8 * TM) * ceil(N, 32) * B", "S", "1"), "256"),),
)
SHARED_TILE = Template(
    name="shared_tile",
    backend="cuda",
    what="tiles of A and B in shared memory, one output per thread",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/cuda/02_shared_tile.cu",
    entry="gemm_shared_tile",
    groups="M+ N+ K+ B*",
    dtypes=ALL_DTYPES,
    ann=(*_BLOCKS, *_DEPTH, *_moves("sync")),
    params=(_NARROW_M, _NARROW_N, _BK),
    constraints=_rules(_NARROW_M, _NARROW_N),
    launches=(Launch("gemm_shared_tile", (_TILES, "S", "1"), "BM * BN"),),
    efficiency=tile_efficiency,
)
REGISTER_TILE = Template(
    name="register_tile",
    backend="cuda",
    what="several outputs per thread, their sums in registers",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/cuda/03_register_tile.cu",
    entry="gemm_register_tile",
    groups="M+ N+ K+ B*",
    dtypes=ALL_DTYPES,
    ann=(*_BLOCKS, *_THREADS, *_DEPTH, *_KEPT, *_moves("sync")),
    params=(_BM, _BN, _BK, _OWN_M, _OWN_N),
    constraints=(
        *_rules(_BM, _BN, _OWN_M, _OWN_N),
        Constraint(
            "deep tiles of 256 sums a thread, which spill in any case, take the compiler long",
            lambda c, d, s: c["TM"] * c["TN"] < 256 or c["BK"] == 8,
        ),
    ),
    launches=(Launch("gemm_register_tile", (_TILES, "S", "1"), _DEALT),),
    efficiency=tile_efficiency,
)
VECTORIZED = Template(
    name="vectorized",
    backend="cuda",
    what="sixteen bytes at a time, from memory to shared memory to registers and back",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/cuda/04_vectorized.cu",
    entry="gemm_vectorized",
    groups="M+ N+ K+ B*",
    dtypes=ALL_DTYPES,
    ann=(*_BLOCKS, *_THREADS, *_DEPTH, *_KEPT, *_moves("vector")),
    params=(_BM, _BN, _BK, _VECTORS_M, _VECTORS_N),
    constraints=(
        *_rules(_BM, _BN, _VECTORS_M, _VECTORS_N),
        Constraint("thread tiles do not fill whole warps", _whole_warps),
    ),
    launches=(Launch("gemm_vectorized", (_TILES, "S", "1"), _DEALT),),
    efficiency=vector_efficiency,
)
PIPELINE = Template(
    name="simt_pipeline",
    backend="cuda",
    what="float32 on CUDA cores: asynchronous copies, fragments loaded a step ahead",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/cuda/08_simt_pipeline.cu",
    entry="gemm_simt_pipeline",
    groups="M1 N1 K1 B*",
    dtypes=("float32",),
    ann=(*_BLOCKS, *_THREADS, *_DEPTH, *_KEPT, *_moves("async", "STAGES")),
    params=(_WIDE_M, _WIDE_N, _BK, _FINE_M, _FINE_N, _STAGES),
    knobs=(_GROUP,),
    constraints=_pipeline_rules(),
    launches=(
        Launch(
            "gemm_simt_pipeline",
            (_TILES, "S", "1"),
            _DEALT,
            f"4 * max(STAGES * BK * (BM + BN + {2 * PADDING}), BM // TM * BN)",
            overlap=True,
        ),
    ),
    efficiency=pipeline_efficiency,
)


def _split(template: Template, name: str) -> Template:
    """The same source with slabs: each block sums its slab of K, partial results go to memory."""
    return replace(
        template,
        name=name,
        what=f"{template.what}; slabs of the reduced axis",
        roots=(hole("D", dot("A", "B", slab=True)),),
        params=(_SPLIT, *template.params),
        constraints=(
            Constraint(
                "slabs are shorter than 64",
                lambda c, d, s: s["K"] >= 64 * c["SPLIT"] or c["SPLIT"] == _SPLIT.values[0],
            ),
            Constraint("there are tiles enough without slabs", lambda c, d, s: _tiles(c, s) <= 3 * d.sms),
            Constraint(
                "more slabs than a few waves of blocks",
                lambda c, d, s: _tiles(c, s) * c["SPLIT"] <= 8 * d.sms or c["SPLIT"] == _SPLIT.values[0],
            ),
            *template.constraints,
        ),
    )


def _tiles(c: Config, s: Sizes) -> int:
    return -(-s["M"] // c["BM"]) * -(-s["N"] // c["BN"])


VECTORIZED_SPLIT_K = _split(VECTORIZED, "vectorized_split_k")
SIMT_SPLIT_K = _split(PIPELINE, "simt_split_k")


def templates() -> tuple[Template, ...]:
    return (NAIVE, SHARED_TILE, REGISTER_TILE, VECTORIZED, VECTORIZED_SPLIT_K, PIPELINE, SIMT_SPLIT_K)
