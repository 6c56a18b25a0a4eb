"""Templates of softmax on the CPU."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.device import Device
from kernsearch.space import Config, Constraint, Param, Sizes, covers
from kernsearch.template import Template

from .patterns import MAXIMUM, REDUCTIONS, STATISTICS, Reduction

_ROWS = Param("ROWS", (1, 4, 16, 64, 256), "rows of a task")
_KC = Param("KC", (256, 512, 1024, 2048), "elements of a piece of a row")
_KU = Param("KU", (1, 2, 4, 8), "vectors per turn of the loop over a row")
_VK = Param("VK", (1, 2, 4, 8), "vectors of a row that are added up side by side")
_SPLIT = Param("SPLIT", (2, 3, 4, 6, 8, 16), "slabs of a row")


def _passes(config: Config, device: Device, sizes: Sizes) -> float:
    """Turns of few vectors wait for their sums; long bodies do not fit what is decoded at once."""
    return {1: 0.92, 2: 0.97, 4: 1.0, 8: 0.97}[config["KU"]]


def _streamed(config: Config, device: Device, sizes: Sizes) -> float:
    """A row more to write and to read. Measured on a Zen 3."""
    return 0.9 * _passes(config, device, sizes)


def _online(config: Config, device: Device, sizes: Sizes) -> float:
    """Two exponentials for each element. Measured on a Zen 3."""
    return 0.65 * _passes(config, device, sizes)


_BALANCED = Constraint(
    "fewer tasks than threads, where rows are enough for more",
    lambda c, d, s: c["ROWS"] == 1 or -(-s["M"] // c["ROWS"]) >= 2 * s["THREADS"],
)
_PIECE = Constraint("KC is larger than N needs", covers(_KC, "N"))
_TURN = Constraint(
    "a turn of the loop is longer than a row",
    lambda c, d, s: c["KU"] == 1 or c["KU"] * d.vector_bytes <= s["N"] * max(4, s["ITEMSIZE"]),
)
_BESIDE = Constraint(
    "a turn of the loop is longer than a row",
    lambda c, d, s: c["VK"] == 1 or c["VK"] * d.vector_bytes <= s["N"] * max(4, s["ITEMSIZE"]),
)
_SLABS = Constraint("slabs are shorter than 1024", lambda c, d, s: c["SPLIT"] == 2 or s["N"] >= 1024 * c["SPLIT"])
_BLOCK = ("tile", ("M",), "block", "ROWS")


def _family(of: Reduction) -> tuple[Template, ...]:
    """Templates of one reduction, those that all have."""
    passes = Template(
        name=f"row_passes{of.suffix}",
        backend="cpu",
        what="a pass over the row for each field, one that stores; the row stays in the caches",
        roots=of.fused(),
        source="softmax/c/01_row_passes.c",
        entry="softmax_row_passes",
        groups="M* K1",
        ann=(_BLOCK,),
        params=(_ROWS,),
        knobs=(_KU,),
        constraints=(_BALANCED, _TURN),
        efficiency=_passes,
    )
    streamed = replace(
        passes,
        name=f"row_streamed{of.suffix}",
        what="as row_passes, what is kept in a row of the thread's own, stores around the caches",
        source="softmax/c/02_row_streamed.c",
        entry="softmax_row_streamed",
        ann=(_BLOCK, *(("keep", role, "shared") for role in of.operands)),
        efficiency=_streamed,
        scratch="THREADS * ceil(K + 64, 64) * 64 * max(4, ITEMSIZE) + 64",
    )
    states = Template(
        name=f"row_states{of.suffix}",
        backend="cpu",
        what="the fields of each row, to memory",
        roots=of.states(slab=False),
        source="softmax/c/04_row_states.c",
        entry="softmax_row_states",
        groups="M* K1",
        ann=(_BLOCK, ("tile", ("K",), "register", "VK")),
        params=(_ROWS, _VK),
        constraints=(_BALANCED, _BESIDE),
    )
    slabs = replace(
        states,
        name=f"row_slabs{of.suffix}",
        what="the fields of each slab of each row, to memory: threads share a row",
        roots=of.states(slab=True),
        params=(_SPLIT, _ROWS, _VK),
        constraints=(_SLABS, _BALANCED, _BESIDE),
    )
    return passes, streamed, states, slabs


_ONLINE = Template(
    name="row_online",
    backend="cpu",
    what="maximum and sum in one pass over pieces of the row, then one that stores",
    roots=STATISTICS.fused(),
    source="softmax/c/03_row_online.c",
    entry="softmax_row_online",
    groups="M* K1",
    ann=(_BLOCK, ("tile", ("K",), "serial", "KC")),
    params=(_ROWS, _KC),
    knobs=(_KU,),
    constraints=(_BALANCED, _PIECE, _TURN),
    efficiency=_online,
)


def templates() -> tuple[Template, ...]:
    (*_, maximum, _) = _family(MAXIMUM)
    return (_ONLINE, maximum, *(template for of in REDUCTIONS for template in _family(of)))
