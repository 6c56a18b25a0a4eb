"""Bench results against earlier ones: what got faster or slower since, in the same problems on the same device.

Both are what `bench --json` prints. A machine is not the same on two days, so our times are compared twice: as they
are, and divided by those of a library that has not changed. A problem counts as changed only when all of these say so:
their intervals lie apart, and by more than SAME.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import json_text, registry
from ..errors import CacheError
from ..measure.stats import geometric_mean
from ..problem import Problem

SAME = 0.02  # differences below this are none: the same comparison in another process differs by as much
_FIELDS = ("device", "cache", "threads")  # in which the two must agree

Interval = tuple[float, float]


def read(path: str) -> dict[str, Any]:
    """Earlier results from a file. Raises CacheError in one line for anything else."""
    try:
        return json_text.read(Path(path), json_text.holding("results"), "results", nan=True)
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CacheError(f"{path}: {error}; want what `kernsearch bench --json` printed") from error


def check(then: Mapping[str, Any], device: str, warm: bool | None = None) -> None:
    """Raise CacheError unless results may be compared with ones from this device, taken now."""
    if not isinstance(then.get("results"), list) or "device" not in then:
        raise CacheError("what to compare with: want what `kernsearch bench --json` printed")
    if then["device"] != device:
        raise CacheError(f"what to compare with was measured on {then['device']}, this is {device}")
    cache = {True: "warm", False: "cold", None: None}[warm]
    if cache and then.get("cache") != cache:
        raise CacheError(f"what to compare with was measured with {then.get('cache')} caches, now they are {cache}")


def problems(then: Mapping[str, Any]) -> list[Problem]:
    """The problems of earlier results, in order. Raises CacheError for keys that are none, ProblemError for unknown
    ops."""
    found = []
    for row in then["results"]:
        words = str(row.get("problem", "")).split(" ")
        if len(words) < 3:
            raise CacheError(f"what to compare with: {row.get('problem')!r} is no problem")
        named = dict(option.partition("=")[::2] for option in words[3:])
        found.append(registry.problem(*words[:3], **named))
    return found


def libraries(then: Mapping[str, Any]) -> tuple[str, ...]:
    """The libraries of earlier results."""
    return tuple(dict.fromkeys(name for row in then["results"] for name in row.get("peers", {})))


def compared(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """{"problems": [{"problem", "then_s", "now_s", "ratio", "beside": {library: ratio}, "verdict", "busy"}],
    "geomean": ratio, "slower": count}.

    Ratios are time now / time then, below 1 is faster. `verdict`: faster, slower, same, or new for a problem that was
    not timed then. `beside`: the same of our time divided by the library's.
    """
    for field in _FIELDS:
        if then.get(field) != now.get(field):
            raise CacheError(f"what to compare with has {field} {then.get(field)!r}, this has {now.get(field)!r}")
    before = {row.get("problem"): row for row in then["results"] if "ours" in row}
    rows = [_row(row, before.get(row["problem"])) for row in now["results"] if "ours" in row]
    return {
        "problems": rows,
        "geomean": geometric_mean([row["ratio"] for row in rows if "ratio" in row]),
        "slower": sum(row["verdict"] == "slower" for row in rows),
    }


def _row(now: Mapping[str, Any], then: Mapping[str, Any] | None) -> dict[str, Any]:
    told = {"problem": now["problem"], "now_s": now["ours"]["median_s"]}
    if then is None:
        return {**told, "verdict": "new"}
    pairs = [(tuple(then["ours"]["ci_s"]), tuple(now["ours"]["ci_s"])), *(pair for _, pair in _beside(now, then))]
    return {
        **told,
        "then_s": then["ours"]["median_s"],
        "ratio": now["ours"]["median_s"] / then["ours"]["median_s"],
        "beside": {name: then["peers"][name]["ratio"] / now["peers"][name]["ratio"] for name, _ in _beside(now, then)},
        "verdict": _verdict(pairs),
        "busy": bool(now.get("busy") or then.get("busy")),
    }


def _beside(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Interval, Interval]]]:
    """Of each library that is the same in both: its name, our time by its time then and now."""
    for name, peer in sorted(now.get("peers", {}).items()):
        old = then.get("peers", {}).get(name, {})
        if "ratio_ci" in peer and "ratio_ci" in old and peer.get("library") == old.get("library"):
            yield name, (_inverse(old["ratio_ci"]), _inverse(peer["ratio_ci"]))


def _inverse(bounds: Sequence[float]) -> Interval:
    return 1 / bounds[1], 1 / bounds[0]


def _verdict(pairs: Sequence[tuple[Interval, Interval]]) -> str:
    """Faster or slower when every pair (then, now) lies apart by more than SAME."""
    if all(then[1] * (1 + SAME) < now[0] for then, now in pairs):
        return "slower"
    if all(now[1] * (1 + SAME) < then[0] for then, now in pairs):
        return "faster"
    return "same"
