"""What is asked, what came of it, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import GATES
from .pool import Candidate, candidate


@dataclass(frozen=True)
class Ask:
    """A candidate to measure. `number` is its trial's; `id` belongs to the storage."""

    number: int
    variant: str
    config: dict[str, int]
    origin: str
    id: int

    @property
    def candidate(self) -> Candidate:
        return candidate(self.variant, self.config)


@dataclass
class Counts:
    """What this run has asked and been told: asked = measured + duplicates + all that was rejected."""

    measured: int = 0
    duplicates: int = 0
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GATES, 0))

    @property
    def asked(self) -> int:
        return self.measured + self.duplicates + sum(self.rejected.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "measured": self.measured,
            "duplicates": self.duplicates,
            "rejected": dict(self.rejected),
        }


@dataclass(frozen=True)
class Past:
    """A finished candidate of the study: measured (`seconds`) or refused past the space gate (`gate`, `reason`)."""

    number: int
    variant: str
    config: dict[str, int]
    status: Literal["measured", "rejected"]
    seconds: float | None
    gate: str
    reason: str
    origin: str
    attrs: dict[str, Any]
