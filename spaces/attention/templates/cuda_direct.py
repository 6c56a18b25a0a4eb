"""Templates of attention on CUDA for few queries: keys and values straight to registers, slabs in parallel.

What bounds them is memory. 16 sequences, 32 heads on 8 of keys, 8192 keys of 128 in bfloat16 are 537 MB: at the 4.2
TB/s that a copy reaches on an H200, 128 us. 16 products of a tensor core for 16 keys are a hundredth of its rate, and
the 240 instructions of a warp for the 8 KB of 16 keys a tenth of what a multiprocessor issues. So the time is that of
the bytes as long as enough of them are on their way: 64 KB of each multiprocessor are eight warps, each with keys and
values of its next step. Expected: 130 us. One sequence of 1024 keys, 2 MB, takes the start of a block, one trip to
memory and the exchange within a cluster: 4 us expected where the launch before hides the start.
"""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Launch, Template

from .cuda import ASYNC, least
from .patterns import CLUSTERED, COMBINED, GROUPS, OUTPUTS, SLABS

_BM = Param("BM", (8, 16), "rows of a block, 8 a product")
_BK = Param("BK", (32, 64, 128, 256), "keys of a step of all warps")
_BD = Param("BD", (64, 128, 192, 256), "inner depth, filled up with zeros")
_BE = Param("BE", (64, 128, 192, 256), "columns, filled up with zeros")
_STAGES = Param("STAGES", (2,), "steps whose keys and values a thread has: one at work, one on its way")
_SLICES = Param("SLICES", (2, 4, 8), "warps, each with keys of its own")
_AHEAD = Param("AHEAD", (0, 1, 4, 16), "steps that come to the second-level cache while the launch before still runs")
_SLABS = Param("SPLIT", (2, 3, 4, 6, 8, 16, 32, 64), "slabs of the keys")
_CLUSTER = Param("SPLIT", (2, 4, 8, 16), "blocks of a cluster, slabs of the keys")

ROWS = 64  # more are for kernels that read keys for more of them
REGISTERS = 44  # of a thread, beside queries, sums, keys and values


def registers(c: Config) -> int:
    """Of a thread: sums and queries of each 8 rows; keys and values of each 16 of a step."""
    wide = c["BD"] // 4 + c["BE"] // 4
    return c["BM"] // 8 * (c["BE"] // 4 + c["BD"] // 8) + c["BK"] // c["SLICES"] // 16 * wide + REGISTERS


def efficiency(c: Config, d: Device, s: Sizes) -> float:
    """Share of the tensor rate: one product after the other, each with what comes between for its keys."""
    rows = s["M"] / (-(-s["M"] // c["BM"]) * c["BM"])
    return 0.5 * rows * s["D"] * s["N"] / (c["BD"] * c["BE"])


_CONSTRAINTS = (
    Constraint("the device has no mma.sync of 16x8x16: that came with sm_80", lambda c, d, s: d.cc_major >= 8),
    Constraint("tensor cores take 16-bit operands here", lambda c, d, s: s["ITEMSIZE"] == 2),
    Constraint("more rows than this is for", lambda c, d, s: s["M"] <= ROWS),
    Constraint("BD is not the narrowest that holds the inner depth", least(_BD, "D")),
    Constraint("BE is not the narrowest that holds the columns", least(_BE, "N")),
    Constraint("BM is larger than the rows need", covers(_BM, "M")),
    Constraint("BK is larger than the keys need", covers(_BK, "K")),
    Constraint("a warp has neither 16 nor 32 keys of a step", lambda c, d, s: c["BK"] // c["SLICES"] in (16, 32)),
    Constraint("what a thread keeps exceeds its registers", lambda c, d, s: registers(c) <= 255),
)
_SHARED = "4 * SLICES * BM * (BE + 2{blocks}) + 8 * BM + 16"


def _launch(*, clustered: bool) -> tuple[Launch, ...]:
    return (
        Launch(
            "attention_direct",
            ("ceil(M, BM) * B * S", "1", "1"),
            "32 * SLICES",
            _SHARED.format(blocks=" * SPLIT" if clustered else ""),
            cluster=("SPLIT" if clustered else "1", "1", "1"),  # type: ignore[arg-type]
            overlap=True,
        ),
    )


_LONG_SLABS = Constraint("slabs are shorter than 64 keys", lambda c, d, s: c["SPLIT"] == 2 or s["K"] >= 64 * c["SPLIT"])
_ANN = tuple(step for step in ASYNC.ann if "warp" not in step)  # a warp has keys of its own, and all rows
DIRECT = Template(
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
    constraints=_CONSTRAINTS,
    assumes=ASYNC.assumes,
    launches=_launch(clustered=False),
    efficiency=efficiency,
)
DIRECT_SLABS = replace(
    DIRECT,
    name="attention_direct_slabs",
    what="as attention_direct, for slabs of the keys in parallel",
    roots=SLABS,
    optional=0,
    params=(_SLABS, *DIRECT.params),
    constraints=(
        _LONG_SLABS,
        *_CONSTRAINTS,
    ),
)
DIRECT_CLUSTER = replace(
    DIRECT,
    name="attention_direct_cluster",
    what="as attention_direct, for slabs of the keys by the blocks of a cluster, which share the outputs",
    roots=CLUSTERED,
    ann=(
        ("combine", "S", "cluster"),
        *(tuple("part" if word == "state" else word for word in step) for step in _ANN),  # what the keys go by
    ),
    params=(_CLUSTER, *DIRECT.params),
    constraints=(
        Constraint("clusters came with sm_90", lambda c, d, s: d.cc_major >= 9),
        _LONG_SLABS,
        *_CONSTRAINTS,
    ),
    flags=("-DKS_CLUSTERED=1",),
    launches=_launch(clustered=True),
)


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
    return (DIRECT, DIRECT_SLABS, DIRECT_CLUSTER, COMBINE)
