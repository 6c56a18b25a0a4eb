"""Where values between the kernels of a call lie: those that are never there at the same time share memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

ALIGNMENT = 256  # bytes


class Workspace(NamedTuple):
    """`offsets` in bytes by name, multiples of ALIGNMENT; `size` is where the last value ends."""

    offsets: dict[str, int]
    size: int


class _Placed(NamedTuple):
    first: int  # kernel
    last: int
    start: int  # byte
    end: int


def laid_out(sizes: Mapping[str, int], kernels: Sequence[Collection[str]]) -> Workspace:
    """Places for values of these sizes in bytes, when the kernels, in this order, use those that each one names.

    A value is there from the first kernel that uses it to the last. Largest first, each is laid at the lowest place
    that is free for so long: greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference" (2020).
    """
    offsets = dict.fromkeys(sizes, 0)
    placed: list[_Placed] = []
    for name in sorted(filter(sizes.__getitem__, sizes), key=lambda name: -sizes[name]):
        users = [at for at, used in enumerate(kernels) if name in used] or [0]
        first, last = users[0], users[-1]
        start = 0
        for begin, end in sorted((p.start, p.end) for p in placed if p.first <= last and first <= p.last):
            if start + sizes[name] <= begin:
                break
            start = max(start, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[name] = start
        placed.append(_Placed(first, last, start, start + sizes[name]))
    return Workspace(offsets, max((each.end for each in placed), default=0))
