"""Turns of shared memory, counted from the addresses that the threads of a warp touch.

Shared memory has 32 banks of 4 bytes; in a turn each bank gives or takes one of its words, which all threads that want
that word share. Accesses of 8 bytes go by half warps, those of 16 by quarters. Memory passes the same unit a line of
128 bytes a turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..space import Access, Config, Sizes

if TYPE_CHECKING:
    from ..derive import Variant

BANKS, WORD, LINE = 32, 4, 128


@dataclass(frozen=True)
class Turns:
    """Of the accesses of a block: how many there are, the turns that they take and the fewest that they could."""

    accesses: int
    turns: int
    least: int

    @property
    def conflicts(self) -> int:
        """Turns that a layout without conflicts would save."""
        return self.turns - self.least


def turns(access: Access) -> int:
    """Turns that one access of a warp takes."""
    if access.memory:
        return len({at // LINE for at in access.addresses})
    together = max(1, len(access.addresses) * WORD // max(access.itemsize, WORD))
    found = 0
    for start in range(0, len(access.addresses), together):
        words: dict[int, set[int]] = defaultdict(set)
        for at in access.addresses[start : start + together]:
            for word in range(at // WORD, -(-(at + access.itemsize) // WORD)):
                words[word % BANKS].add(word)
        found += max(map(len, words.values()))
    return found


def least(access: Access) -> int:
    """The fewest turns that as many bytes can take."""
    bytes_each = max(access.itemsize, 1)
    return max(1, -(-len(access.addresses) * bytes_each // LINE))


def counted(accesses: Iterable[Access]) -> Turns:
    """The sum over accesses; of those that are alike but for where they begin one is counted."""
    known: dict[Access, int] = {}
    number = taken = fewest = 0
    for access in accesses:
        first = access.addresses[0] // LINE * LINE
        alike = Access(tuple(at - first for at in access.addresses), access.itemsize, access.memory)
        if alike not in known:
            known[alike] = turns(alike)
        number, taken, fewest = number + 1, taken + known[alike], fewest + least(alike)
    return Turns(number, taken, fewest)


def shared_turns(variant: Variant, config: Config, sizes: Sizes) -> dict[str, dict[str, int]]:
    """By access, what the kernels of a variant ask of shared memory in a block; of those whose templates tell."""
    found = {}
    for matched in variant.kernels:
        if matched.template.accesses is not None:
            for name, accesses in matched.template.accesses(config, matched.sizes(sizes)).items():
                told = counted(accesses)
                found[name] = {"accesses": told.accesses, "turns": told.turns, "conflicts": told.conflicts}
    return found
