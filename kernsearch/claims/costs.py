"""Costs as sums of notes: something happens so often for each element and each turn of the loops around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from .. import sizes as expressions
from ..program.value import Axes

MEMORY, CHIP = "global", "chip"
WHOLE, ONE = "", "1"  # in place of a tiling's symbol: the loop has one tile, or one element a tile


@dataclass(frozen=True)
class Claims:
    """What a program, or one kernel of it, costs at given sizes and parameters. Differences may be negative.

    flops           operations on elements that exist: 2 M N K for a contraction
    padded_flops    operations on whole tiles, also past the end of an axis
    special         of `flops`, those that are not an addition, multiplication or maximum
    reads, writes   elements by level: "global" is memory, "chip" the buffers that tiles are moved to and kept in
    read_bytes, write_bytes   the same in bytes
    atomics         elements combined in memory; they are among the writes, and are read as well
    launches        kernels
    barriers        waits of a block, over all blocks
    workspace_bytes bytes of values that one kernel leaves for another
    blocks          blocks of the grid, over all kernels
    kernels         the same for each kernel, in launch order
    """

    flops: int = 0
    padded_flops: int = 0
    special: int = 0
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    write_bytes: Mapping[str, int] = field(default_factory=dict)
    atomics: int = 0
    launches: int = 0
    barriers: int = 0
    workspace_bytes: int = 0
    blocks: int = 0
    kernels: tuple[Claims, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes moved to and from memory."""
        return self.read_bytes.get(MEMORY, 0) + self.write_bytes.get(MEMORY, 0)

    def __add__(self, other: Claims) -> Claims:
        return self._with(other, 1)

    def __sub__(self, other: Claims) -> Claims:
        return self._with(other, -1)

    def _with(self, other: Claims, sign: int) -> Claims:
        found: dict[str, Any] = {}
        for f in fields(self):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if f.name == "kernels":
                continue
            if isinstance(a, int):
                found[f.name] = a + sign * b
            else:
                found[f.name] = {level: a.get(level, 0) + sign * b.get(level, 0) for level in {**a, **b}}
        return Claims(**found)


@dataclass(frozen=True)
class Turns:
    """How one loop variable repeats a note.

    axes    the axes that the variable runs over, as one
    chain   symbols of the tilings that cut it, outermost first
    bound   those of its axes that the note's elements have: they count once each, else the note counts once a tile
    slab    the slab axis that cuts it first
    """

    axes: Axes
    chain: tuple[str, ...]
    bound: Axes
    slab: str | None

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool) -> int:
        total = math.prod([length[axis] for axis in self.axes])
        last = self.axes[-1] in self.bound
        if last and not padded:
            return total
        tiles = [1 if symbol == ONE else names[symbol] for symbol in self.chain]
        if self.bound and not last:
            return runs(total, length[self.axes[-1]], tiles)
        cuts = [-(-total // length[self.slab]), *tiles] if self.slab is not None and total else tiles
        if not self.bound:
            return trips(total, cuts)
        return trips(total, cuts) * tiles[-1] if tiles else total


@dataclass(frozen=True)
class Skipping:
    """Masked tiles of `columns` that are left out: those past the last row of a tile of `rows` plus `off`."""

    rows: Turns
    columns: Turns
    off: str

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool) -> int:
        off = expressions.evaluate(self.off, names)
        rows, row = math.prod([length[a] for a in self.rows.axes]), length[self.rows.axes[-1]]
        columns = math.prod([length[a] for a in self.columns.axes])
        tile = names[self.rows.chain[0]] if self.rows.chain else max(1, rows)
        wide = names[self.columns.chain[-1]] if self.columns.chain else max(1, columns)
        inside = [names[symbol] for symbol in self.rows.chain[1:]]
        across = [names[symbol] for symbol in self.columns.chain]
        if self.columns.slab is not None and columns:
            across = [-(-columns // length[self.columns.slab]), *across]
        total = 0
        for start in range(0, rows, tile):
            end = min(rows, start + tile)
            last = (end - 1) % row if start // row == (end - 1) // row else row - 1
            seen = min(columns, -(-max(0, last + off + 1) // wide) * wide)
            down = tile if padded and self.rows.chain else end - start
            side = -(-seen // wide) * wide if padded and self.columns.chain else seen
            total += (down if self.rows.bound else trips(end - start, inside)) * (
                side if self.columns.bound else trips(seen, across)
            )
        return total


def trips(total: int, tiles: list[int]) -> int:
    """How many innermost tiles nested loops have: a ragged outer tile holds fewer inner ones."""
    if not tiles:
        return 1 if total else 0
    whole, rest = divmod(total, tiles[0])
    if len(tiles) == 1:
        return whole + (rest > 0)
    return (whole * trips(tiles[0], tiles[1:]) if whole else 0) + (trips(rest, tiles[1:]) if rest else 0)


def runs(total: int, run: int, tiles: list[int]) -> int:
    """Into how many pieces tiles of several axes fall when they are also cut wherever the last axis, of length `run`,
    begins anew."""
    if not total:
        return 0
    if not tiles:
        return total // run
    even = all(outer % inner == 0 for outer, inner in pairwise(tiles))
    if even or total // run > 4096:
        both = -(-total // math.lcm(run, tiles[-1])) - 1
    else:
        both = sum(_begins(row * run, tiles) for row in range(1, total // run))
    return trips(total, tiles) + total // run - 1 - both


def _begins(at: int, tiles: list[int]) -> bool:
    for tile in tiles:
        at %= tile
    return at == 0


@dataclass(frozen=True)
class Note:
    """Something that happens `weight` times for each element, each turn of the loops around it."""

    weight: int
    turns: tuple[Turns | Skipping, ...]

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool = False) -> int:
        total = self.weight
        for turn in self.turns:
            total *= turn.count(length, names, padded)
        return total


@dataclass
class KernelCost:
    """The notes of one kernel: by what is counted, the level and the bytes of an element."""

    reads: list[tuple[str, int, Note]] = field(default_factory=list)
    writes: list[tuple[str, int, Note]] = field(default_factory=list)
    work: list[tuple[bool, Note]] = field(default_factory=list)
    barriers: list[Note] = field(default_factory=list)
    atomics: list[Note] = field(default_factory=list)
    blocks: Note = Note(1, ())

    def __call__(self, length: Mapping[str, int], names: Mapping[str, int]) -> Claims:
        moved: list[dict[str, int]] = []
        for notes in (self.reads, self.writes):
            elements: dict[str, int] = {}
            size: dict[str, int] = {}
            for level, itemsize, note in notes:
                count = note.count(length, names)
                elements[level] = elements.get(level, 0) + count
                size[level] = size.get(level, 0) + count * itemsize
            moved += [elements, size]
        flops = padded = special = 0
        for is_special, note in self.work:
            count = note.count(length, names)
            flops += count
            special += count if is_special else 0
            padded += note.count(length, names, padded=True)
        return Claims(
            flops=flops,
            padded_flops=padded,
            special=special,
            reads=moved[0],
            read_bytes=moved[1],
            writes=moved[2],
            write_bytes=moved[3],
            atomics=sum(note.count(length, names) for note in self.atomics),
            launches=1,
            barriers=sum(note.count(length, names) for note in self.barriers),
            blocks=self.blocks.count(length, names),
        )
