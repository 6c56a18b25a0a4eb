"""Sites: where a rule was applied, in words that survive renaming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Annotation = tuple  # ("tile", ("m",), "block", "MC"), see rules.schedule


@dataclass(frozen=True)
class Site:
    """Where a rule was applied, in words that survive renaming: keys, axes and choices, never node names."""

    values: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    choice: str | Annotation = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "values": list(self.values),
            "kernels": list(self.kernels),
            "axes": list(self.axes),
            "choice": _listed(self.choice),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Site:
        return cls(tuple(data["values"]), tuple(data["kernels"]), tuple(data["axes"]), _tupled(data["choice"]))


def _listed(part: Any) -> Any:
    return [_listed(p) for p in part] if isinstance(part, tuple) else part


def _tupled(part: Any) -> Any:
    return tuple(_tupled(p) for p in part) if isinstance(part, list) else part
