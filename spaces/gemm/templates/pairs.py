"""Templates of gemm on CPUs that multiply pairs of bfloat16: AVX-512 BF16 and AMX."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.backends.cpu.device import UNIT_FLAGS
from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Template, anything, as_, dot, hole

_MC = Param("MC", (32, 64, 128, 256, 384, 512, 768), "rows of a block of sums, rounded down to whole register tiles")
_NC = Param("NC", (64, 128, 256, 512, 1024), "columns of a block of sums, rounded down to whole register tiles")
_KC = Param("KC", (256, 512, 1024, 2048, 4096), "steps of k that are added to a block of sums at a time")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 16), "slabs of the reduced axis")
_TILE_ROWS = Param("MR", (16, 32, 64), "rows of the register tile")
_TILE_COLUMNS = Param("NR", (16, 32, 64), "columns of the register tile")
_MR = Param("MR", (1, 2, 4, 6, 8, 12, 14), "rows of the register tile")
_NR = Param("NR", (16, 32, 48, 64), "columns of the register tile")
_KU = Param("KU", (1, 2, 4, 8), "steps of k per turn of the inner loop")

TILE = 16  # rows of a tile register, and columns of sums
PAIR_LANES = 16  # sums of a vector
STEP = 32  # of k, of one product of tiles
TILE_CLOCKS = 16.0  # that a product of tiles keeps the unit busy
TILE_LATENCY = 52.0  # until its sums can be added to
LOAD_CLOCKS = 8.0  # of a tile register from the first level cache
FAR_CLOCKS = 32.0  # and from the second, by the clock of a Xeon with AMX
REMOTE_CLOCKS = 60.0  # and from the third, as far as fetching ahead does not hide it
NARROW_CLOCKS = 1.6  # to pack an element of B, divided by the lines of a row that are read at a time
FINISH_CLOCKS = 1.0  # to convert and store a sum, all steps of its depth together


def _takes(unit: str, name: str) -> tuple[Constraint, ...]:
    return (Constraint(f"the CPU has no {name}", lambda c, d, s: bool(d.facts.get(unit))),)


def _piece_bytes(config: Config, sizes: Sizes) -> int:
    """Of what is packed of the larger operand at a time; 0 where that is all of its depth, for several strips."""
    rows_first = sizes["M"] >= sizes["N"]
    piece, strip = (config["MC"], config["NC"]) if rows_first else (config["NC"], config["MC"])
    once = strip >= min(sizes["M"], sizes["N"])
    return 2 * min(config["KC"], sizes["K"]) * min(piece, max(sizes["M"], sizes["N"])) if once else 0


def _common(split: bool) -> tuple[Constraint, ...]:
    rules = (
        Constraint("MC is smaller than MR", lambda c, d, s: c["MC"] >= c["MR"]),
        Constraint("NC is smaller than NR", lambda c, d, s: c["NC"] >= c["NR"]),
        Constraint(
            "block of sums exceeds the second level cache",
            lambda c, d, s: c["KC"] >= s["K"] or 4 * c["MC"] * c["NC"] <= d.l2_bytes,
        ),
        Constraint(
            "what is packed for one strip exceeds the second level cache",
            lambda c, d, s: _piece_bytes(c, s) <= d.l2_bytes,
        ),
        Constraint("MC is larger than M needs", covers(_MC, "M")),
        Constraint("NC is larger than N needs", covers(_NC, "N")),
        Constraint("KC is larger than K needs", covers(_KC, "K")),
    )
    if not split:
        return rules
    return (
        *rules,
        Constraint(
            "slabs are shorter than 128", lambda c, d, s: s["K"] >= 128 * c["SPLIT"] or c["SPLIT"] == _SPLIT.values[0]
        ),
    )


_AMX_RULES = (
    *_takes("amx_bf16", "AMX tiles of bfloat16, or the system does not grant them"),
    Constraint("sums take more than four tiles", lambda c, d, s: c["MR"] * c["NR"] <= 4 * TILE * TILE),
    Constraint(
        "a single tile of sums waits for itself, where the output has more",
        lambda c, d, s: c["MR"] * c["NR"] > TILE * TILE or (s["M"] <= TILE and s["N"] <= TILE),
    ),
    Constraint("MR is larger than M needs", covers(_TILE_ROWS, "M")),
    Constraint("NR is larger than N needs", covers(_TILE_COLUMNS, "N")),
)
_VECTOR_RULES = (
    *_takes("avx512_bf16", "products of bfloat16 pairs (AVX-512 BF16)"),
    Constraint(
        "register tile needs far more vector registers than the device has",
        lambda c, d, s: (c["MR"] + 1) * (c["NR"] // PAIR_LANES) + 1 <= d.vector_registers + 8,
    ),
    Constraint(
        "register tile is too small to hide the latency of its sums",
        lambda c, d, s: c["MR"] * c["NR"] >= 6 * PAIR_LANES or c["MR"] >= s["M"],
    ),
    Constraint("MR is larger than M needs", covers(_MR, "M")),
    Constraint("NR is larger than N needs", covers(_NR, "N")),
)


def _remote(config: Config, device: Device, sizes: Sizes) -> float:
    """Clocks of a step for panels from beyond the second level cache: of the smaller operand for each piece of the
    larger, of a piece for each strip of the smaller; each panel serves all panels of the other side of its block. And
    for packing pieces of B whose rows are short."""
    small, large = sorted((sizes["M"], sizes["N"]))
    rows_first = sizes["M"] >= sizes["N"]
    (piece, own), (strip, other) = (config["MC"], config["MR"]), (config["NC"], config["NR"])
    if not rows_first:
        (piece, own), (strip, other) = (strip, other), (piece, own)
    piece, strip = min(piece, large), min(strip, small)
    clocks, half = 0.0, device.l2_bytes / 2
    if 2 * sizes["K"] * small > half:
        clocks += REMOTE_CLOCKS * (other / TILE) / max(1, piece // own)
    depth = sizes["K"] if strip < small else min(config["KC"], sizes["K"])  # what one strip needs is packed by passes
    if 2 * depth * piece > half:
        clocks += REMOTE_CLOCKS * (own / TILE) / max(1, strip // other)
    if not rows_first:
        lines = max(1, 2 * piece / device.line_bytes)
        clocks += NARROW_CLOCKS / lines * STEP * own / -(-small // other)
    return clocks


def tiles_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """Share of the rate of the unit: what loading tiles, waiting for sums and converting them leave of it, times what
    ragged tiles waste."""
    m, n = sizes["M"], sizes["N"]
    down, across = min(config["MR"], -(-m // TILE) * TILE) // TILE, min(config["NR"], -(-n // TILE) * TILE) // TILE
    depth = -(-sizes["K"] // STEP) * STEP
    pass_depth = min(config["KC"], depth)
    near = 2 * pass_depth * config["NR"] <= device.l1d_bytes // 2  # the panel of B stays in the first level cache
    loads = FAR_CLOCKS * down + (LOAD_CLOCKS if near else FAR_CLOCKS) * across
    work = TILE_CLOCKS * down * across
    step = max(work, loads, TILE_LATENCY) + 0.15 * min(work, loads) + _remote(config, device, sizes)
    passes = -(-depth // pass_depth)
    tile = depth / STEP * step + passes * (TILE_LATENCY + 32.0 * down * across)
    tile += FINISH_CLOCKS * TILE * down * TILE * across
    used = (m / (-(-m // TILE) * TILE)) * (n / (-(-n // TILE) * TILE)) * sizes["K"] / depth
    return work * depth / STEP / tile * used


def vectors_efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """Share of the rate of vdpbf16ps, which starts as often as a load of a vector."""
    m, n, k = sizes["M"], sizes["N"], sizes["K"]
    across = config["NR"] // PAIR_LANES
    work, loads = config["MR"] * across, (config["MR"] + across) / 2
    cycles = max(work, loads, 6.0) + 0.1 * loads
    spilled = max(0, (config["MR"] + 1) * across + 1 - device.vector_registers)
    kept = 1 / (1.25 + 0.02 * spilled) if spilled else 1.0
    padded = m / (-(-m // config["MR"]) * config["MR"]) * n / (-(-n // PAIR_LANES) * PAIR_LANES)
    depth = min(k, config["KC"])
    turns = 1 - 0.03 / config["KU"] - 0.0005 * config["KU"]
    return work / cycles * padded * depth / (depth + 40) * turns * kept


_DOT = dot(as_("A", anything()), as_("B", anything()))
_SLAB = dot(as_("A", anything()), as_("B", anything()), slab=True)
_DEEP = "up(K, 32)"
_SLAB_DEEP = "up(ceil(K, SPLIT), 32)"


def _schedule(unit: str) -> tuple[tuple, ...]:
    return (
        ("tile", ("M",), "block", "MC"),
        ("tile", ("N",), "block", "NC"),
        ("tile", ("K",), "serial", "KC"),
        ("tile", ("M",), "register", "MR"),
        ("tile", ("N",), "register", "NR"),
        ("keep", "acc", "registers"),
        ("move", "A", "pack"),
        ("move", "B", "pack"),
        ("unit", "acc", unit),
    )


def _scratch(deep: str, slabs: str) -> str:
    """The smaller operand, and for each thread a piece of the larger one and a block of sums; bytes."""
    rows, columns = f"(2 * MR * {deep} + 64)", f"(2 * NR * {deep} + 64)"
    smaller = f"(ceil(N, NR) * {columns} if M >= N else ceil(M, MR) * {rows})"
    piece = f"(min(MC // MR, ceil(M, MR)) * {rows} if M >= N else min(NC // NR, ceil(N, NR)) * {columns})"
    copies = f"(THREADS if {slabs} * B >= THREADS else 1)"
    return f"{copies} * ({smaller} + 64) + THREADS * ({piece} + 4 * MC * NC + MC // MR * (NC // NR) + 128) + 64"


AMX_PAIRS = Template(
    name="amx_pairs",
    backend="cpu",
    what="AMX tiles of bfloat16, both operands packed once",
    roots=(hole("D", _DOT),),
    source="gemm/c/07_bf16_pairs.c",
    entry="gemm_bf16_pairs",
    groups="M1 N1 K1 B*",
    dtypes=("bfloat16",),
    ann=_schedule("amx_bf16"),
    params=(_MC, _NC, _KC, _TILE_ROWS, _TILE_COLUMNS),
    constraints=(*_AMX_RULES, *_common(split=False)),
    scratch=_scratch(_DEEP, "1"),
    efficiency=tiles_efficiency,
    flags=UNIT_FLAGS["amx_bf16"],
)
VECTOR_PAIRS = replace(
    AMX_PAIRS,
    name="avx512_pairs",
    what="vectors of pairs of bfloat16 (AVX-512 BF16), both operands packed once",
    ann=_schedule("avx512_bf16"),
    params=(_MC, _NC, _KC, _MR, _NR),
    knobs=(_KU,),
    constraints=(*_VECTOR_RULES, *_common(split=False)),
    efficiency=vectors_efficiency,
    flags=UNIT_FLAGS["avx512_bf16"],
)


def _slabs(template: Template, name: str, rules: tuple[Constraint, ...]) -> Template:
    return replace(
        template,
        name=name,
        what=f"as {template.name}, slabs of the reduced axis in parallel, partial sums to memory",
        roots=(hole("D", _SLAB),),
        dtypes=("bfloat16", "float32"),
        reads=("bfloat16",),
        params=(_SPLIT, *template.params),
        constraints=(*rules, *_common(split=True)),
        scratch=_scratch(_SLAB_DEEP, "SPLIT"),
    )


AMX_PAIRS_K = _slabs(AMX_PAIRS, "amx_pairs_k", _AMX_RULES)
VECTOR_PAIRS_K = _slabs(VECTOR_PAIRS, "avx512_pairs_k", _VECTOR_RULES)


def templates() -> tuple[Template, ...]:
    return (AMX_PAIRS, AMX_PAIRS_K, VECTOR_PAIRS, VECTOR_PAIRS_K)
