"""The correctness gate: outputs agree with the float64 reference, element by element, and do not move."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Rejected
from ..namespace import namespace, widened
from ..worker.arena import OUTSIDE, STALE, UNWRITTEN, pattern_bits

MANY = 1000  # elements, from which their mean error says something
_TOLD = {
    UNWRITTEN: "is unwritten, or was read before it was written",
    OUTSIDE: "is NaN read from outside an input",
    STALE: "is NaN read from workspace or scratch that was not written",
}


def agrees(
    name: str,
    actual: Any,
    expected: Any,
    allowed: Any,
    *,
    exact: bool = False,
    mean: float | None = None,
    origin: tuple[int, ...] = (),
) -> float:
    """Compare an output with its reference; returns the largest error as a share of what is allowed.

    actual    in the problem's dtype
    expected  float64, of the same shape
    allowed   absolute error, elementwise; 0 where the output must be the reference
    exact     the reference is made of whole numbers that every order of summation gives: then no error is allowed
    mean      the most that the mean of errors, as shares of what is allowed, may be where there are MANY
    origin    index of actual[0, ...] in the whole output, for the message

    All three are NumPy's, or all lie on one device. Raises Rejected. Non-finite values are compared first, by place and
    sign: no NaN is ever within a bound.
    """
    xp, wide = namespace(actual), widened(actual)
    if not expected.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        error = xp.abs(wide - expected)
        if not exact:
            shares = error / allowed
            worst = shares.max()
            if worst <= 1:  # so there is no NaN
                if mean is not None and shares.size >= MANY and (common := float(shares.mean())) > mean:
                    raise Rejected(
                        f"{name} is off by {common:.2g} of what is allowed in the mean of {shares.size} elements: "
                        f"random errors take at most {mean:g}",
                        gate="correctness",
                    )
                return float(worst)
        stored = _stored(expected, actual.dtype)  # what overflows the output's dtype is infinite there
        finite = xp.isfinite(wide) & xp.isfinite(stored)
        strange = ~finite & ~((wide == stored) | (xp.isnan(wide) & xp.isnan(stored)))
        if strange.any():
            raise Rejected(_strange(name, actual, stored, strange, origin), gate="correctness")
        error = xp.where(finite, error, 0)
        if exact and (~finite | (expected == xp.rint(expected))).all():
            allowed = xp.zeros((1,) * error.ndim)  # one rounding to the output's dtype is all that happens
            error = xp.where(finite, xp.abs(wide - stored.astype(np.float64)), 0)
        over = error > allowed
        if over.any():
            at = np.unravel_index(int(xp.where(over, error, -1).argmax()), error.shape)
            limit = float(xp.broadcast_to(allowed, error.shape)[at])
            raise Rejected(
                f"{_at(name, at, origin)} is {float(wide[at]):.8g}, should be {float(expected[at]):.8g}: "
                f"off by {float(error[at]):.2e}, allowed {limit:.2e}{_share(over)}",
                gate="correctness",
            )
    return 0.0


def _stored(expected: Any, dtype: np.dtype) -> Any:
    """Float64 numbers as rounded to a dtype; on a device they stay float64 or become float32, which hold them."""
    if dtype.kind == "f" or isinstance(expected, np.ndarray):
        return expected.astype(dtype)
    # bfloat16: to nearest even, by way of float32 and its bits.
    xp = namespace(expected)
    near = expected.astype(np.float32)
    bits = near.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return xp.where(xp.isnan(near), near, rounded.astype(np.uint32).view(np.float32))


def repeats(name: str, at: tuple[int, ...], before: float, after: float) -> Rejected:
    """The refusal of an output that moves between runs on the same inputs."""
    return Rejected(f"two runs differ: {name}{list(at)} is {before:.9g}, then {after:.9g}", gate="correctness")


def _strange(name: str, actual: Any, stored: Any, strange: Any, origin: tuple[int, ...]) -> str:
    """Words for a NaN or infinity where the reference has none, or the reverse."""
    at = np.unravel_index(int(strange.argmax()), strange.shape)
    where, share = _at(name, at, origin), _share(strange)
    width = 8 * actual.dtype.itemsize
    bits = int(actual[at].view(f"u{actual.dtype.itemsize}")) & ((1 << (width - 1)) - 1)
    for pattern, words in _TOLD.items():
        if bits == pattern_bits(actual.dtype, pattern):
            return f"{where} {words}{share}"
    return f"{where} is {float(widened(actual[at])):.8g} where the reference has {float(stored[at]):.8g}{share}"


def _at(name: str, at: tuple, origin: tuple[int, ...]) -> str:
    index = [int(i) + (origin[axis] if axis < len(origin) else 0) for axis, i in enumerate(at)]
    return f"{name}{index}"


def _share(which: Any) -> str:
    count = int(which.sum())
    return f" ({count} of {which.size} elements)" if count > 1 else ""
