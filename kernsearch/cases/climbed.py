"""Ladders that were climbed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from .recordings import Amount, Device, Seconds, refused, whole

SCHEMA = 1  # of what `ladder --json` prints
_OF_A_MEASURED_RUNG = ("predicted_s", "of_floor", "config")


class _Rung(Struct):
    rung: str
    absent: str = ""
    predicted_s: Seconds | UnsetType = UNSET
    samples_s: list[Seconds] = []
    median_s: Seconds | UnsetType = UNSET
    of_floor: Amount | UnsetType = UNSET
    config: dict[str, int] | UnsetType = UNSET
    waves: float | None = None
    error: float | None = None


class _Ladder(Struct):
    """All that is printed and drawn of a ladder; what else it holds is kept as it is."""

    problem: str
    device: Device
    date: str
    floor_s: Seconds
    flops: Amount
    rungs: Annotated[list[_Rung], Meta(min_length=1)]


def recording(data: Mapping[str, Any], op: str | None = None, where: str = "the ladder") -> Mapping[str, Any]:
    """A recorded ladder if it has all that is printed, and is of the op, if one is given. Raises CacheError in one
    line; `where`: the file that it is of, or the key of a device."""
    own = str(data.get("problem", "OP")).partition(" ")[0]
    name = f"ladder-{op or own}"
    found = whole(data, _Ladder, SCHEMA, name, where)
    if op is not None and op != own:
        raise refused(f"want a ladder of {op}, this is one of {own!r}", data, SCHEMA, name, where)
    for number, row in enumerate(found.rungs, 1):
        absent = [key for key in _OF_A_MEASURED_RUNG if getattr(row, key) is UNSET]
        if row.median_s is not UNSET and absent:
            raise refused(f"rung {number} of the ladder: {absent[0]!r} is missing", data, SCHEMA, name, where)
    return data
