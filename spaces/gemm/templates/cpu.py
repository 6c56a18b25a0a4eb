"""Templates of gemm on the CPU."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Template, dot, hole

_DTYPES = ("float32", "float64", "bfloat16")

_MR = Param("MR", (4, 6, 8, 12, 14), "rows of the register tile")
_FEW = Param("MR", (1, 2, 4, 6, 8, 12, 14), "rows of the register tile")
_NR = Param("NR", (4, 8, 12, 16, 24, 32, 48, 64), "columns of the register tile")
_WIDE = Param("NR", (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192), "columns of the register tile")
_MC = Param("MC", (24, 48, 96, 144, 192, 288, 384), "rows of a block of A, rounded down to whole register tiles")
_NC = Param("NC", (128, 256, 512, 1024, 2048, 4096), "columns of a block of B, rounded down to whole register tiles")
_KC = Param("KC", (128, 256, 384, 512, 768, 1024), "depth of the blocks")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 16), "slabs of the reduced axis")
_KU = Param("KU", (1, 2, 4, 8), "steps of k per turn of the inner loop")

_PACKING = 12.0  # multiply-adds that take as long as packing one element

# the smaller blocks of the kernel that packs nothing
_TILE_ROWS = Param("MC", (16, 32, 64, 128), "rows of a tile of sums")
_TILE_COLUMNS = Param("NC", (64, 128, 256, 512), "columns of a tile of sums")
_TILE_DEPTH = Param("KC", (8, 16, 32, 64, 128), "rows of B at a time")

# those of the kernels for few rows or columns
_ROW_BLOCK = Param("MC", (4, 8, 16, 32), "rows of a job")
_STRETCH = Param("NC", (256, 512, 1024, 2048, 4096), "columns of a job")
_DEPTH = Param("KC", (32, 128, 512), "rows of B that stay near while all rows use them")
_ROWS = Param("MR", (1, 2, 4), "rows of sums at a time")
_KR = Param("KR", (2, 4, 8, 12), "rows of B at a time")
_ROW_JOB = Param("MC", (8, 32, 128, 512), "rows of a job")
_DOT_ROWS = Param("MR", (1, 2, 4, 8), "rows at a time")
_DOT_COLUMNS = Param("NR", (1, 2, 4), "columns at a time")
_DOT_DEPTH = Param("KR", (4, 8, 16, 32, 64), "depth of a step")


def _lanes(device: Device, sizes: Sizes) -> int:
    """Sums in a vector: narrower dtypes are summed in float32."""
    return device.vector_bytes // max(4, sizes["ITEMSIZE"])


def _registers(config: Config, device: Device, sizes: Sizes) -> int:
    """Vector registers of the inner loop: sums, a row of B, an element of A."""
    across = -(-config["NR"] // _lanes(device, sizes))
    return config["MR"] * across + across + 1


def _rules(*params: Param) -> tuple[Constraint, ...]:
    """The constraints that concern these parameters."""
    letters = {param.name for param in params}
    rules = []
    if "NR" in letters:
        rules += [
            Constraint("NR is not a whole number of vectors", lambda c, d, s: c["NR"] % _lanes(d, s) == 0),
            Constraint(
                # a few too many are let through: what spilling costs is for the clock to say
                "register tile needs far more vector registers than the device has",
                lambda c, d, s: _registers(c, d, s) <= d.vector_registers + 8,
            ),
            Constraint(
                "register tile is too small to hide the latency of its sums",
                lambda c, d, s: c["MR"] * c["NR"] >= 6 * _lanes(d, s) or c["MR"] >= s["M"],
            ),
        ]
    elif "NC" in letters:
        rules.append(Constraint("NC is not a whole number of vectors", lambda c, d, s: c["NC"] % _lanes(d, s) == 0))
    if letters >= {"MC", "MR"}:
        rules.append(Constraint("MC is smaller than MR", lambda c, d, s: c["MC"] >= c["MR"]))
    if letters >= {"NC", "NR"}:
        rules.append(Constraint("NC is smaller than NR", lambda c, d, s: c["NC"] >= c["NR"]))
        rules.append(
            Constraint(
                "block of A exceeds the second level cache",
                lambda c, d, s: c["MC"] * c["KC"] * max(4, s["ITEMSIZE"]) <= d.l2_bytes,
            )
        )
    if "SPLIT" in letters:
        rules.append(
            Constraint(
                "slabs are shorter than 64", lambda c, d, s: s["K"] >= 64 * c["SPLIT"] or c["SPLIT"] == _SPLIT.values[0]
            )
        )
    for param in params:
        if size := {"MC": "M", "NC": "N", "KC": "K"}.get(param.name):
            reason = f"{param.name} is larger than {size} needs"
            rules.append(Constraint(reason, covers(param, size)))
    return tuple(rules)


_ROW_RULES = (
    Constraint(
        "rows need more vector registers than the device has",
        lambda c, d, s: c["MR"] * c["KR"] + c["MR"] + 1 <= d.vector_registers,
    ),
    Constraint("MR is larger than M needs", covers(_ROWS, "M")),
)
_DOT_RULES = (
    Constraint("KR is not a whole number of vectors", lambda c, d, s: c["KR"] % _lanes(d, s) == 0),
    Constraint(
        "sums need more vector registers than the device has",
        lambda c, d, s: c["MR"] * c["NR"] * (c["KR"] // _lanes(d, s)) + c["NR"] + 1 <= d.vector_registers,
    ),
    Constraint("MC is smaller than MR", lambda c, d, s: c["MC"] >= c["MR"]),
    Constraint("MC is larger than M needs", covers(_ROW_JOB, "M")),
    Constraint("MR is larger than M needs", covers(_DOT_ROWS, "M")),
    Constraint("NR is larger than N needs", covers(_DOT_COLUMNS, "N")),
)


def few_rows_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """For each vector of columns KR loads of B, and a load and a store of each sum; two loads and one store a cycle.
    About half of that is reached, by the clock of a Zen 3."""
    rows, depth, n = min(config["MR"], sizes["M"]), config["KR"], sizes["N"]
    lanes = _lanes(device, sizes)
    work, traffic = rows * depth / 2, max((rows + depth) / 2, rows)
    return 0.5 * work / max(work, traffic) * n / (-(-n // lanes) * lanes)


def dots_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """Loads of MR rows and NR columns for MR x NR multiply-adds; adding up lanes takes some steps of each sum."""
    rows, columns, lanes = min(config["MR"], sizes["M"]), min(config["NR"], sizes["N"]), _lanes(device, sizes)
    vectors = config["KR"] // lanes
    work = rows * columns * vectors / 2
    cycles = max(work, (rows + columns) * vectors / 2, 4.0)
    depth = sizes["K"]
    return 0.9 * work / cycles * depth / (depth + 4 * lanes)


def tile_efficiency(config: Config, device: Device, sizes: Sizes, *, line_cycles: float = 2.0) -> float:
    """Share of peak of the inner loop: what its loads and latencies leave, times what ragged tiles waste.

    Two vector multiply-adds and two loads start each cycle, and a sum is ready for its next addend after four. A panel
    of B that exceeds the first level cache comes from the second for each tile, a line in `line_cycles`. What is not
    the slowest still costs a share. Fitted to a Zen 5; turns of the loop (KU) to a Zen 3 that shares its cores, where
    panels of 1.5 times the first level still found a part of themselves there and longer ones paid, the more the nearer
    their lines come to all that the second level delivers: half a line a cycle, a whole one with vectors of 64 bytes.
    """
    lanes = _lanes(device, sizes)
    across, m, n = config["NR"] / lanes, sizes["M"], sizes["N"]
    depth = min(config["KC"], sizes["K"])
    panel = depth * min(config["NR"], n) * max(4, sizes["ITEMSIZE"])
    fetched = line_cycles * across * device.vector_bytes / device.line_bytes if panel > 0.75 * device.l1d_bytes else 0.0
    work = config["MR"] * across / 2
    loads = (config["MR"] + across) / 2
    lost = max(0.0, 1 - 1.5 * device.l1d_bytes / max(panel, 1))
    pressed = fetched * min(1.0, 32 / device.vector_bytes)
    cycles = max(work, loads, 4.0, fetched) + 0.15 * loads + 0.05 * fetched + 0.6 * lost * pressed**2 / work
    down = -(-m // config["MR"]) * config["MR"]
    wide = -(-n // lanes) * lanes
    turns = 1 - 0.03 / config["KU"] - 0.0005 * config["KU"]  # counting and jumping; long bodies
    steps = depth / (depth + 12) * turns  # starting a tile, putting its sums away
    spilled = max(0, _registers(config, device, sizes) - device.vector_registers)
    kept = 1 / (1.25 + 0.02 * spilled) if spilled else 1.0
    return work / cycles * (m / down) * (n / wide) * steps * kept


def unpacked_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `tile_efficiency`; rows of B that lie apart come more slowly from the second level cache."""
    apart = config["NR"] < sizes["N"]
    crowded = _crowded(config, sizes) and sizes["M"] > config["MR"]
    return tile_efficiency(config, device, sizes, line_cycles=3.7 if apart else 2.0) * (0.8 if crowded else 1.0)


def _crowded(config: Config, sizes: Sizes) -> bool:
    """Rows of A that are read where they are and lie whole pages apart take each other's place in the caches."""
    return sizes["K"] * sizes["ITEMSIZE"] % 4096 == 0 and config["MR"] > 1


def register_tiled_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `tile_efficiency`; nothing overlaps with packing B, which with few rows is not paid back. By the clock of a
    Zen 3 packing an element takes as long as twelve multiply-adds."""
    return tile_efficiency(config, device, sizes) / (1 + _PACKING / sizes["M"])


def own_blocks_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `tile_efficiency`; B is packed between the tiles, each job packs all that it needs of the smaller operand."""
    lines = max(sizes["M"], sizes["N"]) / (4 * sizes["THREADS"])
    return 0.97 * tile_efficiency(config, device, sizes) / (1 + _PACKING / lines)


def packed_b_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `tile_efficiency`, less for reading A where it is. Measured on a Zen 3."""
    return tile_efficiency(config, device, sizes) * (0.8 if _crowded(config, sizes) else 0.95)


def packed_a_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `tile_efficiency`; rows of B that lie apart come more slowly from the second level cache."""
    apart = config["NR"] < sizes["N"]
    return tile_efficiency(config, device, sizes, line_cycles=3.7 if apart else 2.0)


def rows_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """Each multiply-add loads its row of B, and loads and stores its sums. Measured on a Zen 5."""
    lanes = _lanes(device, sizes)
    return 0.1 * sizes["N"] / (-(-sizes["N"] // lanes) * lanes)


_BLOCKS = (
    ("tile", ("M",), "block", "MC"),
    ("tile", ("N",), "block", "NC"),
    ("tile", ("K",), "serial", "KC"),
)
_REGISTERS = (
    ("tile", ("M",), "register", "MR"),
    ("tile", ("N",), "register", "NR"),
    ("keep", "acc", "registers"),
)
_PACKED = (*_BLOCKS, *_REGISTERS, ("move", "A", "pack"), ("move", "B", "pack"))
_ROWS_OF_A = "MC // MR * MR"
_WAITING = "PARTIALS * (K > KC) * M * N"  # unfinished sums, where the output may not hold them

CACHE_TILED = Template(
    name="cache_tiled",
    backend="cpu",
    what="blocks that fit a cache, read from the operands where they are",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/c/01_cache_tiled.c",
    entry="gemm_cache_tiled",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=_BLOCKS,
    params=(_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH),
    constraints=_rules(_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH),
    scratch="THREADS * MC * NC * ITEMSIZE + 64",
    efficiency=rows_efficiency,
)
REGISTER_TILED = Template(
    name="register_tiled",
    backend="cpu",
    what="packed A and B, a tile of the output in registers",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/c/02_register_tiled.c",
    entry="gemm_register_tiled",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=_PACKED,
    params=(_MC, _NC, _KC, _MR, _NR),
    knobs=(_KU,),
    constraints=_rules(_MC, _NC, _KC, _MR, _NR),
    scratch=f"ITEMSIZE * (THREADS * (min({_ROWS_OF_A}, up(M, MR)) * min(KC, K) + 16)"
    f" + min(NC, up(N, NR)) * min(KC, K) + {_WAITING}) + 256",
    efficiency=register_tiled_efficiency,
)
UNPACKED = Template(
    name="unpacked",
    backend="cpu",
    what="a tile of the output in registers, operands read where they are: for skinny and tiny shapes",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/c/04_unpacked.c",
    entry="gemm_unpacked",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=(_BLOCKS[0], _BLOCKS[2], *_REGISTERS),
    params=(_MC, _KC, _FEW, _WIDE),
    knobs=(_KU,),
    constraints=_rules(_MC, _KC, _FEW, _WIDE),
    scratch=f"ITEMSIZE * THREADS * ({_ROWS_OF_A} * NR + (MR + NR) * min(KC, K) + 16) + 64",
    efficiency=unpacked_efficiency,
)
SPLIT_K = Template(
    name="split_k",
    backend="cpu",
    what="slabs of the reduced axis in parallel, partial sums to memory",
    roots=(hole("D", dot("A", "B", slab=True)),),
    source="gemm/c/03_split_k.c",
    entry="gemm_split_k",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=_PACKED,
    params=(_SPLIT, _MC, _NC, _KC, _MR, _NR),
    knobs=(_KU,),
    constraints=_rules(_SPLIT, _MC, _NC, _KC, _MR, _NR),
    scratch=f"ITEMSIZE * (THREADS * (({_ROWS_OF_A} + min(NC, up(N, NR))) * min(KC, K) + 16) + {_WAITING} * B) + 256",
    efficiency=tile_efficiency,
)
OWN_BLOCKS = replace(
    SPLIT_K,
    name="own_blocks",
    what="packed A and B, each thread for itself right before use: for few rows or columns",
    roots=(hole("D", dot("A", "B")),),
    ann=(*_PACKED, ("grid", "persistent")),
    params=(_MC, _NC, _KC, _MR, _NR),
    constraints=_rules(_MC, _NC, _KC, _MR, _NR),
    efficiency=own_blocks_efficiency,
)
PACKED_B = replace(
    REGISTER_TILED,
    name="packed_b",
    what="as register_tiled, A read where it is: for few columns",
    ann=(*_BLOCKS, *_REGISTERS, ("move", "B", "pack")),
    flags=("-DKS_UNPACKED_A",),
    efficiency=packed_b_efficiency,
)
PACKED_A = replace(
    REGISTER_TILED,
    name="packed_a",
    what="as register_tiled, B read where it is: for few rows",
    ann=(*_BLOCKS, *_REGISTERS, ("move", "A", "pack")),
    flags=("-DKS_UNPACKED_B",),
    efficiency=packed_a_efficiency,
)
UNPACKED_SLABS = replace(
    UNPACKED,
    name="unpacked_k",
    what="as unpacked, for slabs of the reduced axis in parallel: a small output and a long k",
    roots=(hole("D", dot("A", "B", slab=True)),),
    params=(_SPLIT, *UNPACKED.params),
    constraints=_rules(_SPLIT, *UNPACKED.params),
)
FEW_ROWS = Template(
    name="few_rows",
    backend="cpu",
    what="B streamed past the sums of a few rows, which wait in the first level cache",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/c/05_few_rows.c",
    entry="gemm_few_rows",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=(*_BLOCKS, ("tile", ("M",), "register", "MR")),
    params=(_ROW_BLOCK, _STRETCH, _DEPTH, _ROWS),
    knobs=(_KR,),
    constraints=_rules(_ROW_BLOCK, _STRETCH, _DEPTH, _ROWS) + _ROW_RULES,
    scratch="ITEMSIZE * THREADS * MC * NC + 64",
    efficiency=few_rows_efficiency,
)
DOTS = Template(
    name="dots",
    backend="cpu",
    what="sums along vectors of k: for a vector, and for operands that are contiguous along k",
    roots=(hole("D", dot("A", "B")),),
    source="gemm/c/06_dots.c",
    entry="gemm_dots",
    groups="M1 N1 K1 B*",
    dtypes=_DTYPES,
    ann=(
        _BLOCKS[0],
        ("tile", ("M",), "register", "MR"),
        ("tile", ("N",), "register", "NR"),
        ("tile", ("K",), "register", "KR"),
        ("keep", "acc", "registers"),
    ),
    params=(_ROW_JOB, _DOT_ROWS, _DOT_COLUMNS, _DOT_DEPTH),
    constraints=_DOT_RULES,
    efficiency=dots_efficiency,
)
FEW_ROWS_SLABS = replace(
    FEW_ROWS,
    name="few_rows_k",
    what="as few_rows, for slabs of the reduced axis in parallel, so that each thread reads whole rows of B",
    roots=(hole("D", dot("A", "B", slab=True)),),
    params=(_SPLIT, *FEW_ROWS.params),
    constraints=(*_rules(_SPLIT), *FEW_ROWS.constraints),
)


def templates() -> tuple[Template, ...]:
    packed = (REGISTER_TILED, OWN_BLOCKS, PACKED_B, PACKED_A, SPLIT_K)
    return (CACHE_TILED, *packed, UNPACKED, UNPACKED_SLABS, FEW_ROWS, FEW_ROWS_SLABS, DOTS)
