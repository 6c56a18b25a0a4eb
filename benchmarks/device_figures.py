"""What tables of figures on the device machine share: groups of problems, a process each; figures with a floor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from device_run import Deadline, json_of, log, python, table

LEAST_S = 30.0  # seconds that a group wants


class Row(NamedTuple):
    """A figure, and what is wanted of it."""

    what: str
    value: float | None
    floor: float
    target: float
    least: bool = True  # more is better

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        reached = [self.value >= limit if self.least else self.value <= limit for limit in (self.target, self.floor)]
        return "target" if reached[0] else "floor" if reached[1] else "BELOW THE FLOOR"


def in_turn(
    deadline: Deadline, named: str, known: Iterable[str], command: Callable[[str], Sequence[str]], logged: str
) -> dict[str, Any]:
    """What the groups have found, each in a process of its own; what is there when time is over is the table.

    named    comma list of groups; all of `known` when empty
    command  of a group: the arguments of Python, which prints one JSON object
    """
    found: dict[str, Any] = {}
    logs = {}
    for name in [name for name in named.split(",") if name] or known:
        if deadline.left < LEAST_S:
            found[name] = {"error": "no time left"}
            continue
        done = python(command(name), deadline.left - 5)
        text = json_of(done.text)
        found[name] = json.loads(text) if text else {"error": done.last if done.code is not None else "time over"}
        logs[name] = done.text
    log(logged, logs)
    return found


def show_figures(found: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Groups that failed, then each figure with its floor and target."""
    print()
    for name, group in found.items():
        if "error" in group:
            print(f"{name}: {group['error']}")
    figures = [(r.what, "-" if r.value is None else f"{r.value:.3f}", r.floor, r.target, r.verdict) for r in rows]
    table(("figure", "measured", "floor", "target", "reached"), figures)


def by_ours(row: Mapping[str, Any], peer: str) -> float | None:
    """The peer's time by ours, where both were timed."""
    found: float | None = row.get("peers", {}).get(peer, {}).get("ratio")
    return found


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
