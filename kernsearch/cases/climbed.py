"""Ladders that were climbed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import CacheError

SCHEMA = 1  # of what `ladder --json` prints


def recording(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded ladder if it has all that is printed. Raises CacheError."""
    lacking = [key for key in ("schema", "problem", "device", "date", "floor_s", "flops") if key not in data]
    if lacking or data["schema"] != SCHEMA:
        raise CacheError(f"want a ladder of schema {SCHEMA}" + (f", {lacking[0]!r} is missing" if lacking else ""))
    for number, row in enumerate(data["rungs"], 1):
        if not isinstance(row, dict):
            raise CacheError(f"rung {number} of the ladder: want an object")
        wanted = ("rung", "predicted_s", "of_floor", "config") if "median_s" in row else ("rung",)
        if absent := [key for key in wanted if key not in row]:
            raise CacheError(f"rung {number} of the ladder: {absent[0]!r} is missing")
    return data
