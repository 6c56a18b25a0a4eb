"""Where arrays lie, as numbers: what can be done to an array without touching what it holds.

An `ArrayView` has a shape and strides in elements, so all of this serves arrays of any library and any device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..launch import ArrayView, contiguous

Shape = tuple[int, ...]


def canonical(view: ArrayView) -> ArrayView:
    """Strides that are never taken, those of extents of 1, are as in a C-contiguous array."""
    strides, inner = [], 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        strides.append(inner if extent <= 1 else stride)
        inner *= max(extent, 1)
    return replace(view, strides=tuple(reversed(strides)))


def is_contiguous(view: ArrayView) -> bool:
    return canonical(view).strides == contiguous(view.shape)


def swapped(view: ArrayView) -> ArrayView:
    """The last two dimensions change places."""
    shape, strides = view.shape, view.strides
    return replace(view, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def lifted(view: ArrayView, axis: int) -> ArrayView:
    """One more dimension, of extent 1, before `axis`; -1 puts it last, -2 before the last."""
    at = len(view.shape) + 1 + axis if axis < 0 else axis
    return replace(
        view, shape=(*view.shape[:at], 1, *view.shape[at:]), strides=(*view.strides[:at], 0, *view.strides[at:])
    )


def broadcast(view: ArrayView, shape: Shape) -> ArrayView | None:
    """The view at a larger shape, new and stretched dimensions with stride 0; None when it does not broadcast."""
    more = len(shape) - len(view.shape)
    if more < 0 or any(have not in (1, want) for have, want in zip(view.shape, shape[more:], strict=True)):
        return None
    own = (0 if have != want else step for have, want, step in zip(view.shape, shape[more:], view.strides, strict=True))
    return replace(view, shape=shape, strides=(*(0,) * more, *own))


def broadcast_shapes(a: Shape, b: Shape) -> Shape | None:
    """The shape that both broadcast to, None when there is none."""
    pairs = itertools.zip_longest(reversed(a), reversed(b), fillvalue=1)
    both = [(x, y) for x, y in pairs]
    if any(x != y and 1 not in (x, y) for x, y in both):
        return None
    return tuple(y if x == 1 else x for x, y in reversed(both))


def merged(view: ArrayView, start: int, stop: int) -> ArrayView | None:
    """Dimensions start..stop as one, if the strides allow that; none of them gives one of extent 1."""
    lead = [(n, s) for n, s in zip(view.shape[start:stop], view.strides[start:stop], strict=True) if n != 1]
    if any(outer != inner * n for (_, outer), (n, inner) in itertools.pairwise(lead)):
        return None
    extent, step = math.prod(view.shape[start:stop]), lead[-1][1] if lead else 0
    return replace(
        view,
        shape=(*view.shape[:start], extent, *view.shape[stop:]),
        strides=(*view.strides[:start], step, *view.strides[stop:]),
    )


def parts(stacks: Sequence[ArrayView], count: int) -> Iterator[list[ArrayView]]:
    """Views with equal leading extents, at each index of the first `count` dimensions, in C order."""
    for index in itertools.product(*map(range, stacks[0].shape[:count])):
        yield [
            replace(
                view,
                address=view.address
                + view.itemsize * sum(i * s for i, s in zip(index, view.strides[:count], strict=True)),
                shape=view.shape[count:],
                strides=view.strides[count:],
            )
            for view in stacks
        ]


def span(view: ArrayView) -> tuple[int, int]:
    """(first byte, one past the last), relative to the address."""
    reach = [(n - 1) * s * view.itemsize for n, s in zip(view.shape, view.strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + view.itemsize
