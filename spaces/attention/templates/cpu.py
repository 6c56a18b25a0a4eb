"""Templates of attention on the CPU."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Template

from .patterns import GROUPS, OUTPUTS, SLABS

_MC = Param("MC", (24, 48, 96, 192, 384), "queries of a job")
_KC = Param("KC", (32, 64, 128, 256, 512), "keys between two looks at the maxima")
_MR = Param("MR", (4, 6, 8, 12), "keys of a tile of scores, queries of a tile of the output")
_NR = Param("NR", (4, 8, 16, 24, 32, 48, 64), "queries of a tile of scores, columns of a tile of the output")
_KU = Param("KU", (1, 2, 4, 8), "steps per turn of the inner loops")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 16, 32), "slabs of the keys")


def _lanes(device: Device, sizes: Sizes) -> int:
    return device.vector_bytes // max(4, sizes["ITEMSIZE"])


def _registers(config: Config, device: Device, sizes: Sizes) -> int:
    """Vector registers of the inner loops: sums, a row of what lies along vectors, an element of the other."""
    across = -(-config["NR"] // _lanes(device, sizes))
    return config["MR"] * across + across + 1


def _wide(config: Config) -> int:
    """Queries that meet a block of keys at a time: a whole number of both tiles."""
    return config["NR"] if config["NR"] % config["MR"] == 0 else 3 * config["NR"]


def _fitting(count: int, device: Device) -> float:
    """What an inner loop keeps of its speed where so many float32 do not stay in the first level cache."""
    return min(1.0, 0.7 + 0.3 * device.l1d_bytes / (4 * count))


def packed_efficiency(config: Config, device: Device, sizes: Sizes, *, values: float = 1.0) -> float:
    """Share of the peak of the two products: two multiply-adds and two loads a cycle, starting and ending a tile, what
    does not stay near, ragged tiles. `values`: how much of it the second one reaches. Measured on a Zen 3."""
    lanes, wide = _lanes(device, sizes), _wide(config)
    across, rows, depth = config["NR"] / lanes, sizes["M"], sizes["D"]
    work, loads = config["MR"] * across / 2, (config["MR"] + across) / 2
    share = work / (max(work, loads, 4.0) + 0.15 * loads) * (1 - 0.08 / config["KU"])
    keys = min(config["KC"], sizes["K"])
    first = depth / (depth + 10) * _fitting((wide + config["MR"]) * depth + wide * config["MR"], device)
    second = values * keys / (keys + 14) * _fitting(keys * (wide + config["NR"]), device)
    used = rows / (-(-rows // config["NR"]) * config["NR"])
    spilled = max(0, _registers(config, device, sizes) - device.vector_registers)
    return share * 2 / (1 / first + 1 / second) * used / (1 + 0.1 * spilled)


def efficiency(config: Config, device: Device, sizes: Sizes) -> float:
    """As `packed_efficiency`; rows of values that lie a multiple of 256 bytes apart take each other's place."""
    crowded = sizes["N"] * sizes["ITEMSIZE"] % 256 == 0 and config["KC"] > 64
    return packed_efficiency(config, device, sizes, values=0.8 if crowded else 0.97)


_CONSTRAINTS = (
    Constraint("NR is not a whole number of vectors", lambda c, d, s: c["NR"] % _lanes(d, s) == 0),
    Constraint(
        "register tile needs more vector registers than the device has",
        lambda c, d, s: _registers(c, d, s) <= d.vector_registers + 2,
    ),
    Constraint(
        "register tile is too small to hide the latency of its sums",
        lambda c, d, s: c["MR"] * c["NR"] >= 8 * _lanes(d, s),
    ),
    Constraint("three tiles of NR queries are no whole number of MR", lambda c, d, s: 3 * c["NR"] % c["MR"] == 0),
    Constraint("KC is larger than the keys need", covers(_KC, "K")),
    Constraint("MC is larger than the queries need", covers(_MC, "M")),
)
_SLAB = Constraint("slabs are shorter than 64 keys", lambda c, d, s: c["SPLIT"] == 2 or s["K"] >= 64 * c["SPLIT"])

_ANN = (
    ("tile", ("M",), "block", "MC"),
    ("tile", ("K",), "serial", "KC"),
    ("tile", ("K",), "register", "MR"),
    ("tile", ("M",), "register", "NR"),
    ("keep", "state", "shared"),
    ("move", "Q", "pack"),
    ("skip", ("K",)),
)
# As the kernel lays it out: queries packed, sums, state, how many keys each sees; scores, keys and values of a block.
_WIDE = "(NR if NR % MR == 0 else 3 * NR)"
_HIGH = f"(max(1, MC // {_WIDE}) * {_WIDE})"
_SCRATCH = (
    f"THREADS * ITEMSIZE * ({_HIGH} * (D + up(N, NR) + 4) + up(KC, MR) * ({_WIDE} + D) + KC * up(N, NR) + 48) + 64"
)

FLASH = Template(
    name="flash",
    backend="cpu",
    what="scores, online softmax and weighted values in one pass over the keys",
    roots=OUTPUTS,
    optional=1,
    source="attention/c/01_flash.c",
    entry="attention_flash",
    groups=GROUPS,
    ann=_ANN,
    params=(_MC, _KC, _NR, _MR),
    knobs=(_KU,),
    constraints=_CONSTRAINTS,
    scratch=_SCRATCH,
    efficiency=efficiency,
)
FLASH_SLABS = replace(
    FLASH,
    name="flash_slabs",
    what="as flash, for slabs of the keys in parallel: for few queries",
    roots=SLABS,
    optional=0,
    params=(_SPLIT, *FLASH.params),
    constraints=(_SLAB, *_CONSTRAINTS),
)


def templates() -> tuple[Template, ...]:
    found = (FLASH, FLASH_SLABS)
    ann = (*_ANN[:-1], ("move", "K", "pack"), ("move", "V", "pack"), _ANN[-1])
    packed = (
        replace(
            t,
            name=f"{t.name}_packed",
            what=f"{t.what}; keys and values packed",
            ann=ann,
            flags=("-DKS_PACKED",),
            efficiency=packed_efficiency,
        )
        for t in found
    )
    return (*found, *packed)
