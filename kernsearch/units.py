"""Numbers as people read them. Values are kept in seconds and bytes everywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def duration(seconds: float) -> str:
    """0.00123 -> '1.23 ms'."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= scale or unit == "ns":
            return f"{three(seconds / scale)} {unit}"
    raise AssertionError("unreachable")


def size(number: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1023.5 or unit == "GiB":
            return f"{number:.4g} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def amount(number: float, unit: str) -> str:
    """In four digits and thousands: 1234567 FLOP -> '1.235 MFLOP'."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale * (1 - 5e-5):  # what is rounded to it, too
            return f"{_four(number / scale)} {prefix}{unit}"
    return f"{_four(number)} {unit}"


def three(number: float) -> str:
    """Three digits, or all before the point: 4224.3 -> '4224'."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def _four(number: float) -> str:
    return f"{number:.4g}" if number < 9999.5 else f"{number:.0f}"


def operations(number: float) -> str:
    """1234567 -> '1.235 MFLOP'."""
    return amount(number, "FLOP")


def rate(work: float, unit: str, seconds: float) -> str:
    """Work of a unit, FLOP or B, a second: 2e9 FLOP in a second -> '2 GFLOP/s'."""
    return f"{amount(work / seconds, unit)}/s"


def told_rate(evidence: Mapping[str, Any]) -> str:
    """The speed that a record's evidence holds, in bytes where the op computes nothing; "" where there is none."""
    for key, unit in (("gbytes_s", "B"), ("gflops", "FLOP")):
        if evidence.get(key):
            return rate(1e9 * evidence[key], unit, 1.0)
    return ""


def interval(low: float, high: float) -> str:
    """A confidence interval of ratios."""
    return f"[{low:.3f}, {high:.3f}]"


def spelled(config: Mapping[str, int]) -> str:
    """{'MR': 8} -> 'MR=8'."""
    return " ".join(f"{letter}={value}" for letter, value in config.items()) or "no parameters"
