"""Attention in NumPy and float64, twice: as the textbook has it, and a tile of keys at a time with a running maximum.

Arrays are q (..., Q, D), k (..., K, D), v (..., K, E) with leading dimensions that broadcast. A query sees key j where
j <= its own index + offset; with an offset of None, all keys. One that sees none, or whose scores are all -inf, gives
zeros, and -inf for the logarithm of its normalizer.
"""

from __future__ import annotations

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def scores(q: np.ndarray, k: np.ndarray, scale: float, offset: int | None, first: int = 0) -> np.ndarray:
    """What softmax is taken of, (..., Q, K), when k begins at key `first`."""
    s = scale * (q @ k.swapaxes(-1, -2))
    if offset is None:
        return s
    rows, columns = np.ogrid[: s.shape[-2], first : first + s.shape[-1]]
    return np.where(columns <= rows + offset, s, -np.inf)


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float = 1.0, offset: int | None = None) -> Pair:
    """(O, L): softmax of all scores times v, and the logarithm of its normalizer."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    with np.errstate(all="ignore"):
        s = scores(q, k, scale, offset)
        top = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isneginf(top), 0.0, top))
        total = p.sum(-1, keepdims=True)
        o = p @ v / np.where(total == 0, 1.0, total)
        return o, (top + np.log(total))[..., 0]


def tiled(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, tile: int, scale: float = 1.0, offset: int | None = None
) -> Pair:
    """The same, `tile` keys at a time: maximum, normalizer and sums are carried on by exp(old - new maximum)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    rows = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]) + q.shape[-2:-1]
    top, total = np.full((*rows, 1), -np.inf), np.zeros((*rows, 1))
    o = np.zeros((*rows, v.shape[-1]))
    with np.errstate(all="ignore"):
        for start in range(0, k.shape[-2], tile):
            part = slice(start, start + tile)
            s = scores(q, k[..., part, :], scale, offset, start)
            new = np.maximum(top, s.max(-1, keepdims=True))
            finite = np.where(np.isneginf(new), 0.0, new)
            carried, p = np.exp(top - finite), np.exp(s - finite)
            total = total * carried + p.sum(-1, keepdims=True)
            o = o * carried + p @ v[..., part, :]
            top = new
        return o / np.where(total == 0, 1.0, total), (top + np.log(total))[..., 0]
