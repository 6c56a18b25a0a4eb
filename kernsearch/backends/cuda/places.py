"""Where bulk-tensor maps and packed copies find an operand: its contiguous group, its rows, its batches.

A map or a copy has three dimensions: inner (contiguous), outer (rows), and third (batches, or slabs of an output).
Copies of packed operands come first in a kernel's scratch, in the order of the roles; each row of a copy starts at a
multiple of `PITCH` elements and each copy at a multiple of 256 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...binding import Binding, Expr
from ...errors import Rejected
from ...launch import BASE_BYTES, SCRATCH, itemsize
from ...plan import TensorMap
from ...sizes import evaluate
from ...template import Template, TileMap
from ..expressions import fold
from ..views import c_name

PITCH = 64  # elements; 128 bytes of a 16-bit type
MOST_BOX = 256  # elements of a box along one dimension
ALIGNED = 16  # bytes, of addresses and pitches that a map takes
INT32 = 2**31


@dataclass(frozen=True)
class Place:
    """A role's array as a kernel walks over it. `inner`, `outer`, `third` are group letters; third may be ""."""

    role: str
    array: str
    dtype: str
    axes: Mapping[str, str]  # group letter -> program axis
    strides: Mapping[str, str]  # group letter -> the array's own name of the dimension
    inner: str
    outer: str
    third: str

    @property
    def bytes(self) -> int:
        return itemsize(self.dtype)


def packed_roles(binding: Binding, template: Template) -> tuple[str, ...]:
    """Operands that are copied to scratch before they are read, in the order of the binding."""
    moved = {step[1] for step in template.ann if step[0] == "move" and step[2] == "pack"}
    return tuple(role for role in binding.operands if role in moved)


def place(binding: Binding, role: str, pair: str = "") -> Place:
    """The place of an operand, or of the first output for a role that is no operand; `pair`: its two group letters.

    Raises Rejected when the role is computed rather than read, or has more axes than a map has dimensions.
    """
    expr: Expr = binding.operands.get(role) or ("load", binding.roots[0].array, binding.roots[0].axes)
    if expr[0] != "load":
        raise Rejected(f"operand {role} is computed as it is read, so it cannot be moved in bulk", gate="space")
    array = next(a for a in binding.arrays if a.name == expr[1])
    groups = {**binding.groups, "S": tuple(binding.slabs.values())}
    axes, strides = {}, {}
    for group, members in groups.items():
        own = [(axis, name) for axis, name in zip(expr[2], array.axes, strict=True) if axis in members]
        if len(own) > 1:
            raise Rejected(f"{role} has {len(own)} axes of {group}: want one, to move it in bulk", gate="space")
        if own:
            axes[group], strides[group] = own[0]
    pair = pair or "".join(group for group in "MKN" if group in axes)
    more = [group for group in axes if group not in pair]
    if len(pair) != 2 or len(more) > 1 or not set(pair) <= set(axes):
        raise Rejected(f"{role} has groups {' '.join(axes)}: want two and one more at most", gate="space")
    inner = next((group for group in pair if axes[group] == expr[2][-1]), "K" if "K" in pair else pair[-1])
    outer = pair.replace(inner, "")
    return Place(role, array.name, array.dtype, axes, strides, inner, outer, more[0] if more else "")


def copy_bytes(binding: Binding, at: Place, config: Mapping[str, int | str]) -> str:
    """Bytes of the packed copy, a size expression."""
    inner, outer, third = _extents(binding, at, config)
    return f"up(up({inner}, {PITCH}) * {outer} * {third} * {at.bytes}, {BASE_BYTES})"


def tensor_map(
    binding: Binding, tile: TileMap, config: Mapping[str, int | str], copy: str | None
) -> tuple[TensorMap, Place]:
    """A template's map for this binding; `copy` is the offset of the packed copy in scratch, None without one."""
    at = place(binding, tile.role, tile.groups)
    sizes = {g: evaluate(fold(text, config), {}) for g, text in zip(tile.groups, tile.tile, strict=True)}
    share = evaluate(fold(tile.share, config), {})
    swizzle = tile.swizzle
    over = tile.over and sizes[at.inner] * at.bytes > swizzle
    while swizzle > 32 and sizes[at.inner] % (swizzle // at.bytes) and not over:
        swizzle //= 2  # boxes are as wide as their swizzle, and fill the tile
    wide = min(sizes[at.inner], swizzle // at.bytes) if swizzle else sizes[at.inner]
    box = (wide, sizes[at.outer] // share, 1)
    whole = over or not sizes[at.inner] % wide
    if max(box) > MOST_BOX or wide * at.bytes % ALIGNED or sizes[at.outer] % share or not whole:
        reason = f"a box of {tile.role} is {box[0]}x{box[1]}: want at most {MOST_BOX}, whole, and rows of 16 bytes"
        raise Rejected(reason, gate="space")
    extents = _extents(binding, at, config)
    if copy is None:
        pitches = tuple(f"{at.array}.{at.strides[g]}" if g else "0" for g in (at.outer, at.third))
        buffer, offset = at.array, "0"
    else:
        pitch = f"up({extents[0]}, {PITCH})"
        pitches, buffer, offset = (pitch, f"{pitch} * {extents[1]}"), SCRATCH, copy
    made = TensorMap(c_name(tile.role), buffer, at.dtype, extents, (pitches[0], pitches[1]), box, swizzle, offset)
    return made, at


def assumptions(made: TensorMap, at: Place, *, written: bool = False) -> list[str]:
    """What must hold of a call for the map to be legal; nothing where it lies over a copy that the kernel makes.

    A `written` array must end with whole 16 bytes in each row: the copy engine clips no finer (seen on an H200: a
    store to 257 columns of two bytes changed 264).
    """
    inner, outer, third = made.extents
    rules = [f"{inner} < {INT32} and {outer} < {INT32} and {third} < {INT32}"]
    if made.buffer == SCRATCH:
        return rules
    rules.append(f"{at.array}.{at.strides[at.inner]} == 1 or {inner} <= 1")
    for extent, pitch in zip((outer, third), made.pitches, strict=True):
        if pitch != "0":
            rules.append(f"{pitch} > 0 and {pitch} * {at.bytes} % {ALIGNED} == 0 or {extent} <= 1")
    rules.append(f"{at.array}.base % {ALIGNED} == 0")
    if written:
        rules.append(f"{inner} * {at.bytes} % {ALIGNED} == 0")
    return rules


def _extents(binding: Binding, at: Place, config: Mapping[str, int | str]) -> tuple[str, str, str]:
    inner, outer, third = (
        f"({fold(binding.extents[at.axes[group]], config)})" if group else "1"
        for group in (at.inner, at.outer, at.third)
    )
    return inner, outer, third
