"""Bulk-tensor maps over operands of chained contractions, whose batches and rows may be several axes.

A map has a dimension for each axis of its array: the contiguous one, then that of rows that follow each other, then the
others. Where that group has several axes, as rows of several heads have, a box lies along the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...binding import Binding
from ...errors import Rejected
from ...launch import itemsize
from ...plan import TensorMap
from ...sizes import evaluate
from ...template import TileMap
from ..expressions import fold
from ..views import c_name
from .places import ALIGNED, INT32, MOST_BOX

LEAST_RANK, MOST_RANK = 3, 5


@dataclass(frozen=True)
class Box:
    """A map, and the program's axes of its dimensions past the first two."""

    role: str
    made: TensorMap
    others: tuple[str, ...]


def box(binding: Binding, tile: TileMap, config: Mapping[str, int | str]) -> Box:
    """A template's map for this binding; `tile.groups` are the groups of rows and of the contiguous dimension.

    Raises Rejected when the operand is computed rather than read, does not end with the contiguous axis, or has more
    axes than a map has dimensions.
    """
    expr, rows, columns = binding.operands[tile.role], tile.groups[0], tile.groups[1]
    if expr[0] != "load":
        raise Rejected(f"operand {tile.role} is computed as it is read, so it cannot be moved in bulk", gate="space")
    array = next(a for a in binding.arrays if a.name == expr[1])
    named = dict(zip(expr[2], array.axes, strict=True))  # program axis -> the array's own name
    inner, outer = binding.groups[columns][-1], binding.groups[rows][-1]
    if expr[2][-1] != inner or outer not in named:
        raise Rejected(f"{tile.role} lies along {expr[2][-1]}: want {inner}, to move it in bulk", gate="space")
    others = tuple(axis for axis in expr[2] if axis not in (inner, outer))
    if len(others) + 2 > MOST_RANK:
        raise Rejected(f"{tile.role} has {len(others) + 2} axes: want {MOST_RANK} at most", gate="space")
    high, wide = (evaluate(fold(text, config), {}) for text in tile.tile)
    size = itemsize(array.dtype)
    shape = (min(wide, tile.swizzle // size), high)
    if max(shape) > MOST_BOX or wide % shape[0]:
        raise Rejected(f"a box of {tile.role} is {shape[0]}x{shape[1]}: want at most {MOST_BOX}, whole", gate="space")
    axes = (inner, outer, *others)
    fill = max(0, LEAST_RANK - len(axes))
    made = TensorMap(
        c_name(tile.role),
        array.name,
        array.dtype,
        (*(f"({fold(binding.extents[axis], config)})" for axis in axes), *["1"] * fill),
        (*(f"{array.name}.{named[axis]}" for axis in axes[1:]), *["0"] * fill),
        (*shape, *[1] * (max(len(axes), LEAST_RANK) - 2)),
        tile.swizzle,
    )
    return Box(tile.role, made, others)


def assumptions(at: Box, binding: Binding) -> list[str]:
    """What must hold of a call for the map to be legal."""
    made = at.made
    array = next(a for a in binding.arrays if a.name == made.buffer)
    size, last = itemsize(made.dtype), array.axes[-1]
    rules = [" and ".join(f"{extent} < {INT32}" for extent in made.extents if extent != "1")]
    rules.append(f"{array.name}.{last} == 1 or {made.extents[0]} <= 1")
    for extent, pitch in zip(made.extents[1:], made.pitches, strict=True):
        if pitch != "0":
            rules.append(f"{pitch} > 0 and {pitch} * {size} % {ALIGNED} == 0 or {extent} <= 1")
    rules.append(f"{array.name}.base % {ALIGNED} == 0")
    return rules
