"""What a program costs: one walk over its loops gives traffic, work, launches, barriers and workspace.

The walk visits each loop of each kernel once, with symbols for the number of iterations, and notes every read, write
and operation with the loops that repeat it; numbers come in when the notes are evaluated at sizes and a config. The
claim of a rule is the difference between two programs: `claims(before, ...) - claims(after, ...)`.

    textbook softmax    reads 5MN + 2M elements, writes 3MN + 2M
    kept on chip        reads MN, writes MN
    tiled gemm          reads MK ceil(N/BN) + KN ceil(M/BM)

The tile interpreter counts what it reads and writes, and tests hold the two against each other. Two things are
estimates: tiles of several axes are counted as if they never fell into runs, and skipped tiles of a slab as if slabs
began at a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .. import sizes as expressions
from ..launch import itemsize
from ..program import Program
from .costs import Claims, KernelCost
from .walk import Walk

__all__ = ["Claims", "claims", "claims_of"]


class Scheduled(Protocol):
    """Anything with a program: a variant."""

    @property
    def program(self) -> Program: ...


def claims(what: Program | Scheduled, sizes: Mapping[str, int], config: Mapping[str, int] | None = None) -> Claims:
    """The cost of a program or variant. `sizes` gives size letters, `config` every symbol. KeyError when one is not."""
    return claims_of(what)(sizes, config or {})


Cost = Callable[[Mapping[str, int], Mapping[str, int]], Claims]
_known: dict[str, Cost] = {}
_kernels: dict[tuple, KernelCost] = {}


def claims_of(what: Program | Scheduled) -> Cost:
    """The same as a function of (sizes, config), for ranking many configs: the walk is done once."""
    program = what if isinstance(what, Program) else what.program
    cost = _known.get(program.key)
    if cost is None:
        cost = _known[program.key] = _program_cost(program)
    return cost


def _program_cost(program: Program) -> Cost:
    costs = []
    for kernel in program.kernels:
        key = (kernel.key, tuple(sorted(program.extents.items())))
        if key not in _kernels:
            _kernels[key] = Walk(program, kernel).cost()
        costs.append(_kernels[key])
    out = {(o.node, o.field) for o in program.outs}
    between = [(itemsize(program.nodes[p[0]].dtype), program.at(p).axes) for p in program.materialised - out]
    extents = dict(program.extents)

    def cost(sizes: Mapping[str, int], config: Mapping[str, int]) -> Claims:
        names = {**sizes, **config}
        length = {axis: expressions.evaluate(text, names) for axis, text in extents.items()}
        parts = tuple(kernel(length, names) for kernel in costs)
        total: dict[str, Any] = {
            name: sum(getattr(part, name) for part in parts)
            for name in ("flops", "padded_flops", "special", "atomics", "launches", "barriers", "blocks")
        }
        for name in ("reads", "writes", "read_bytes", "write_bytes"):
            levels: dict[str, int] = {}
            for part in parts:
                for level, count in getattr(part, name).items():
                    levels[level] = levels.get(level, 0) + count
            total[name] = levels
        workspace = sum(size * math.prod(length[a] for a in axes) for size, axes in between)
        return Claims(**total, workspace_bytes=workspace, kernels=parts)

    return cost
