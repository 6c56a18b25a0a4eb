"""Tiles, loops and moves: what the tile interpreter runs on.

A tile along an axis is a range; a box has one for each axis of a value. Frames stand for the current iteration of each
loop around and hold the values at hand there. Tiles that are moved come through a queue of slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..program import Place

Array = np.ndarray


class TileError(Exception):
    """A schedule that no machine could run right: a value used before its move completed, an element left unwritten."""


@dataclass(frozen=True)
class Range:
    """A tile along one axis: `size` elements from `lo`, of which those below `stop` exist.

    `frame` is the iteration it belongs to, `axis` the name it has there. `variable` tells the loops over the same axis
    apart: what one loop has read is not at hand in another.
    """

    lo: int
    size: int
    stop: int
    frame: Frame
    axis: str = ""
    variable: object = None

    @property
    def valid(self) -> int:
        return max(0, min(self.size, self.stop - self.lo))

    def only(self, index: int, frame: Frame) -> Range:
        """One element of it."""
        return replace(self, lo=index, size=1, stop=index + 1, frame=frame)

    def holds(self, other: Range) -> bool:
        """Is all of the other's at hand with this one?"""
        return (
            self.variable == other.variable and self.lo <= other.lo and other.lo + other.valid <= self.lo + self.valid
        )


Box = dict[str, Range]


@dataclass(eq=False)
class Frame:
    """One iteration of a loop, and the values at hand until it ends. `part` tells inner tiles of a block apart."""

    depth: int
    inner: bool = False
    part: tuple = ()
    loop: Loop | None = None
    values: dict[Place, list[tuple[Box, Array]]] = field(default_factory=dict)


@dataclass(eq=False)
class Loop:
    """A serial loop: all its tiles, the current one, and the moves that run ahead of it."""

    tiles: list[Box]
    at: int = 0
    queues: dict[tuple, Queue] = field(default_factory=dict)


@dataclass(eq=False)
class Slot:
    tile: int
    buffer: Array  # NaN until the copy is complete
    copy: Callable[[], Array]
    complete: bool = False


class Queue:
    """Copies in flight: `stages` slots, used in turn. Copies complete in the order in which they were issued."""

    def __init__(self, stages: int, asynchronous: bool, tiles: int, faults: frozenset[str]):
        self.stages, self.asynchronous, self.tiles, self.faults = stages, asynchronous, tiles, faults
        self.slots: dict[int, Slot] = {}
        self.next: int | None = None
        self.reading: int | None = None

    def use(self, tile: int, copy: Callable[[int], tuple[tuple[int, ...], Callable[[], Array]]]) -> Array:
        """The tile, after issuing as many later ones as there are free slots. Raises TileError when it is not there."""
        self.reading = None
        self.next = tile if self.next is None else self.next
        self._issue(max(tile + 1, tile + self.stages - 1), copy)
        if "no wait" not in self.faults:
            for slot in sorted(self.slots.values(), key=lambda slot: slot.tile):
                if slot.tile <= tile:
                    self._finish(slot)
        slot = self.slots[tile % self.stages]
        if slot.tile != tile or not slot.complete:
            raise TileError(f"tile {tile} is used before its move completed")
        self.reading = tile
        self._issue(tile + self.stages + ("early issue" in self.faults), copy)
        return slot.buffer

    def _issue(self, end: int, copy: Callable[[int], tuple[tuple[int, ...], Callable[[], Array]]]) -> None:
        assert self.next is not None
        while self.next < min(end, self.tiles):
            if self.reading is not None and self.next % self.stages == self.reading % self.stages:
                raise TileError(f"the move of tile {self.next} overwrites tile {self.reading}, which is being read")
            shape, fill = copy(self.next)
            slot = Slot(self.next, np.full(shape, np.nan), fill)
            self.slots[self.next % self.stages] = slot
            if not self.asynchronous:
                self._finish(slot)
            self.next += 1

    @staticmethod
    def _finish(slot: Slot) -> None:
        if not slot.complete:
            slot.buffer[...] = slot.copy()
            slot.complete = True
