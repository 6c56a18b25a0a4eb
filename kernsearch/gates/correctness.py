"""The correctness gate: outputs agree with the float64 reference, element by element, and do not move."""

from __future__ import annotations

import numpy as np

from ..errors import Rejected
from ..worker.arena import OUTSIDE, STALE, UNWRITTEN, pattern_bits

_TOLD = {
    UNWRITTEN: "is unwritten, or was read before it was written",
    OUTSIDE: "is NaN read from outside an input",
    STALE: "is NaN read from workspace or scratch that was not written",
}


def agrees(
    name: str,
    actual: np.ndarray,
    expected: np.ndarray,
    allowed: np.ndarray,
    *,
    exact: bool = False,
    origin: tuple[int, ...] = (),
) -> float:
    """Compare an output with its reference; returns the largest error as a share of what is allowed.

    actual    in the problem's dtype
    expected  float64, of the same shape
    allowed   absolute error, elementwise
    exact     the reference is made of whole numbers that every order of summation gives: then no error is allowed
    origin    index of actual[0, ...] in the whole output, for the message

    Raises Rejected. Non-finite values are compared first, by place and sign: no NaN is ever within a bound.
    """
    wide = actual if actual.dtype.kind == "f" else actual.astype(np.float32)
    if not expected.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(wide - expected)
        if not exact:
            worst = (error / allowed).max()
            if worst <= 1:  # so there is no NaN
                return float(worst)
        stored = expected.astype(actual.dtype)  # what overflows the output's dtype is infinite there
        finite = np.isfinite(wide) & np.isfinite(stored)
        strange = ~finite & ~((wide == stored) | (np.isnan(wide) & np.isnan(stored)))
        if strange.any():
            raise Rejected(_strange(name, actual, stored, strange, origin), gate="correctness")
        error[~finite] = 0
        if exact and (expected[finite] == np.rint(expected[finite])).all():
            allowed = np.zeros((1,) * error.ndim)  # one rounding to the output's dtype is all that happens
            error[finite] = np.abs(wide[finite] - stored[finite].astype(np.float64))
        over = error > allowed
        if over.any():
            at = np.unravel_index(int(np.where(over, error, -1).argmax()), error.shape)
            limit = float(np.broadcast_to(allowed, error.shape)[at])
            raise Rejected(
                f"{_at(name, at, origin)} is {float(wide[at]):.8g}, should be {float(expected[at]):.8g}: "
                f"off by {float(error[at]):.2e}, allowed {limit:.2e}{_share(over)}",
                gate="correctness",
            )
    return 0.0


def repeats(name: str, at: tuple[int, ...], before: float, after: float) -> Rejected:
    """The refusal of an output that moves between runs on the same inputs."""
    return Rejected(f"two runs differ: {name}{list(at)} is {before:.9g}, then {after:.9g}", gate="correctness")


def _strange(name: str, actual: np.ndarray, stored: np.ndarray, strange: np.ndarray, origin: tuple[int, ...]) -> str:
    """Words for a NaN or infinity where the reference has none, or the reverse."""
    at = np.unravel_index(int(strange.argmax()), strange.shape)
    where, share = _at(name, at, origin), _share(strange)
    width = 8 * actual.dtype.itemsize
    bits = int(actual[at].view(f"u{actual.dtype.itemsize}")) & ((1 << (width - 1)) - 1)
    for pattern, words in _TOLD.items():
        if bits == pattern_bits(actual.dtype, pattern):
            return f"{where} {words}{share}"
    return f"{where} is {float(actual[at]):.8g} where the reference has {float(stored[at]):.8g}{share}"


def _at(name: str, at: tuple, origin: tuple[int, ...]) -> str:
    index = [int(i) + (origin[axis] if axis < len(origin) else 0) for axis, i in enumerate(at)]
    return f"{name}{index}"


def _share(which: np.ndarray) -> str:
    count = int(which.sum())
    return f" ({count} of {which.size} elements)" if count > 1 else ""
