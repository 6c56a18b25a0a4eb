"""Templates of attention on CUDA for few queries: keys and values to registers or rings of warps, slabs in parallel.

What bounds them is memory. 16 sequences, 32 heads on 8 of keys, 8192 keys of 128 in bfloat16 are 537 MB: at the 4.2
TB/s that a copy reaches on an H200, 128 us. 16 products of a tensor core for 16 keys are a hundredth of its rate, and
the 240 instructions of a warp for the 8 KB of 16 keys a tenth of what a multiprocessor issues. So the time is that of
the bytes as long as enough of them are on their way: 64 KB of each multiprocessor are eight warps, each with keys and
values of its next step. Expected: 130 us. One sequence of 1024 keys, 2 MB, takes the start of a block, one trip to
memory and the exchange within a cluster: 4 us expected where the launch before hides the start.

Four heads of keys in clusters of 16 are 64 blocks. Plain loads by 64 multiprocessors take 19, 12 and 10 us for 33 MB
with 32, 64 and 128 KB of each on their way, 9 us by all 132: registers hold 128 KB, but while one half is worked on the
other half's place is empty. In shared memory it is asked for again at once. Expected of rings: 16384 keys in 12.5 us
for 16.9, 4096 in 6.2 for 8.0. Tiles of half the columns, which are twice the blocks but read the keys twice, took 17.0
and 7.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template

from .cuda import ASYNC, least
from .patterns import CLUSTERED, COMBINED, GROUPS, OUTPUTS, SLABS

_BM = Param("BM", (8, 16), "rows of a block, 8 a product")
_BK = Param("BK", (32, 64, 128, 256), "keys of a step of all warps")
_BD = Param("BD", (64, 128, 192, 256), "inner depth, filled up with zeros")
_BE = Param("BE", (64, 128, 192, 256), "columns of a block, filled up with zeros")
_STAGES = Param("STAGES", (2,), "steps whose keys and values a thread has: one at work, one on its way")
_RING = Param("STAGES", (1, 2, 3, 4, 6), "steps of keys and values in shared memory")
_SLICES = Param("SLICES", (2, 4, 8, 16), "warps, each with keys of its own")
_AHEAD = Param("AHEAD", (0, 1, 4, 8, 16), "steps asked into the second-level cache while the launch before still runs")
_SLABS = Param("SPLIT", (2, 3, 4, 6, 8, 16, 32, 64), "slabs of the keys")
_CLUSTER = Param("SPLIT", (2, 4, 8, 16), "blocks of a cluster, slabs of the keys")

ROWS = 64  # more are for kernels that read keys for more of them
REGISTERS = 44  # of a thread, beside queries, sums, keys and values


def registers(c: Config) -> int:
    """Of a thread: sums and queries of each 8 rows; keys and values of each 16 of a step."""
    wide = c["BD"] // 4 + c["BE"] // 4
    return c["BM"] // 8 * (c["BE"] // 4 + c["BD"] // 8) + c["BK"] // c["SLICES"] // 16 * wide + REGISTERS


def ring_registers(c: Config) -> int:
    """The same where keys and values are in shared memory: scores in their place."""
    return c["BM"] // 8 * (c["BE"] // 4 + c["BD"] // 8 + c["BK"] // c["SLICES"] // 4) + REGISTERS + 16


def shared_bytes(c: Config) -> int:
    """Shared memory of a block: where sums meet, in whole 128 bytes, and the rings."""
    together = 4 * c["SLICES"] * c["BM"] * (c["BE"] + 6) + 16
    if "SPLIT" in c:
        together += 4 * c["BM"] * c["BE"] + 16 * (c["BM"] + c["SPLIT"])
    return -(-together // 128) * 128 + 2 * c["STAGES"] * c["BK"] * (c["BD"] + c["BE"])


def _fits(taken: Callable[[Config], int]) -> Constraint:
    return Constraint(
        "what a thread keeps exceeds its registers",
        lambda c, d, s: taken(c) <= min(255, d.registers_sm // (32 * c["SLICES"])),
    )


def efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate: one product after the other, each with what comes between for its keys. Each tile of
    columns computes all scores."""
    rows = s["M"] / (-(-s["M"] // c["BM"]) * c["BM"])
    return 0.5 * rows * (s["D"] + s["N"]) / (-(-s["N"] // c["BE"]) * (c["BD"] + c["BE"]))


_CONSTRAINTS = (
    Constraint("the device has no mma.sync of 16x8x16: that came with sm_80", lambda c, d, s: d.cc_major >= 8),
    Constraint("tensor cores take 16-bit operands here", lambda c, d, s: s["ITEMSIZE"] == 2),
    Constraint("more rows than this is for", lambda c, d, s: s["M"] <= ROWS),
    Constraint("BD is not the narrowest that holds the inner depth", least(_BD, "D")),
    Constraint("BE is larger than the columns need", covers(_BE, "N")),
    Constraint("BM is larger than the rows need", covers(_BM, "M")),
    Constraint("BK is larger than the keys need", covers(_BK, "K")),
    Constraint("a warp has neither 16 nor 32 keys of a step", lambda c, d, s: c["BK"] // c["SLICES"] in (16, 32)),
)
_SHARED = "4 * SLICES * BM * (BE + 6){met} + 16"
_RING_SHARED = f"ceil({_SHARED}, 128) * 128 + 2 * STAGES * BK * (BD + BE)"


def _launch(entry: str, together: str, *, clustered: bool) -> tuple[Launch, ...]:
    return (
        Launch(
            entry,
            ("ceil(M, BM) * ceil(N, BE) * B * S", "1", "1"),
            "32 * SLICES",
            together.format(met=" + 4 * BM * BE + 16 * (BM + SPLIT)" if clustered else ""),
            cluster=("SPLIT" if clustered else "1", "1", "1"),  # type: ignore[arg-type]
            overlap=True,
        ),
    )


_LONG_SLABS = Constraint("slabs are shorter than 64 keys", lambda c, d, s: c["SPLIT"] == 2 or s["K"] >= 64 * c["SPLIT"])
_CLUSTERS = Constraint("clusters came with sm_90", lambda c, d, s: d.cc_major >= 9)
_ANN = tuple(step for step in ASYNC.ann if "warp" not in step)  # a warp has keys of its own, and all rows


def _three(whole: Template, together: str) -> tuple[Template, Template, Template]:
    """A template, the same for slabs of the keys, and for slabs by the blocks of a cluster."""
    slabs = replace(
        whole,
        name=f"{whole.name}_slabs",
        what=f"as {whole.name}, for slabs of the keys in parallel",
        roots=SLABS,
        optional=0,
        params=(_SLABS, *whole.params),
        constraints=(_LONG_SLABS, *whole.constraints),
    )
    cluster = replace(
        whole,
        name=f"{whole.name}_cluster",
        what=f"as {whole.name}, for slabs of the keys by the blocks of a cluster, which share the outputs",
        roots=CLUSTERED,
        ann=(
            ("combine", "S", "cluster"),
            *(tuple("part" if word == "state" else word for word in step) for step in _ANN),  # what the keys go by
        ),
        params=(_CLUSTER, *whole.params),
        constraints=(_CLUSTERS, _LONG_SLABS, *whole.constraints),
        flags=("-DKS_CLUSTERED=1",),
        launches=_launch(whole.entry, together, clustered=True),
    )
    return whole, slabs, cluster


_DIRECT = Template(
    name="attention_direct",
    backend="cuda",
    what="scores, online softmax and weighted values of few rows, keys and values from memory to registers",
    roots=OUTPUTS,
    optional=1,
    source="attention/cuda/03_direct.cu",
    entry="attention_direct",
    groups=GROUPS,
    dtypes=("bfloat16", "float16", "float32"),
    ann=_ANN,
    params=(_BM, _BK, _BD, _BE, _STAGES),
    knobs=(_SLICES, _AHEAD),
    constraints=(*_CONSTRAINTS, _fits(registers)),
    assumes=("D <= BD",),
    launches=_launch("attention_direct", _SHARED, clustered=False),
    efficiency=efficiency,
)
_RINGS = replace(
    _DIRECT,
    name="attention_ring",
    what="scores, online softmax and weighted values of few rows, keys and values by a ring of each warp",
    source="attention/cuda/05_ring.cu",
    entry="attention_ring",
    params=(_BM, _BK, _BD, _BE, _RING),
    constraints=(
        *_CONSTRAINTS,
        _fits(ring_registers),
        Constraint("the rings exceed shared memory", lambda c, d, s: shared_bytes(c) <= d.shared_block_bytes),
    ),
    launches=_launch("attention_ring", _RING_SHARED, clustered=False),
)
DIRECT, DIRECT_SLABS, DIRECT_CLUSTER = _three(_DIRECT, _SHARED)
RING, RING_SLABS, RING_CLUSTER = _three(_RINGS, _RING_SHARED)

COMBINE = Template(
    name="state_combine",
    backend="cuda",
    what="the states of slabs brought together by threads that share them",
    roots=(COMBINED,),
    many=True,
    source="attention/cuda/04_combine.cu",
    entry="attention_combine",
    ann=(("tile", ("M",), "thread", "TM"),),
    params=(Param("TM", (4, 8), "elements of the output of a thread"),),
    knobs=(Param("LANES", (4, 8, 16, 32), "threads that share them, and deal out the slabs"),),
    launches=(
        Launch("attention_combine", ("min(ceil(OUTPUTS * LANES, 256 * TM), SMS * 32)", "1", "1"), "256", overlap=True),
    ),
)


def templates() -> tuple[Template, ...]:
    return (DIRECT, DIRECT_SLABS, DIRECT_CLUSTER, RING, RING_SLABS, RING_CLUSTER, COMBINE)
