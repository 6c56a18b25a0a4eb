"""What a tuning run tells while it goes on, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import Record


@dataclass(frozen=True)
class Event:
    """Something to show: kind `note` is said once, `step` moves the progress line."""

    kind: str
    text: str
    done: int = 0
    total: int = 0
    rejected: int = 0
    best_s: float | None = None
    best_rate: float = 0.0  # of `unit` a second: FLOP, or B where an op computes nothing
    unit: str = "FLOP"
    best_name: str = ""
    elapsed_s: float = 0.0
    eta_s: float = 0.0


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Result:
    """What a run found and did.

    path          the record's file; when `recorded` is false, the file of the faster record that was kept
    default_kept  nothing beat the default candidate with confidence, so the default is the winner
    refusals      "gate: reason" to how often, in this run
    """

    record: Record
    path: Path
    recorded: bool
    counts: dict[str, Any]
    resumed: int
    elapsed_s: float
    interrupted: bool
    default_kept: bool
    refusals: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """The object that `tune --json` prints."""
        record = self.record
        measured, default = record.measurement, record.default_measurement
        assert measured is not None and default is not None  # a tuned record holds both
        return {
            "problem": record.problem.key,
            "device": record.fingerprint.device,
            "variant": record.variant,
            "config": record.config,
            "derivation": list(record.derivation),
            "median_s": measured.median_s,
            "ci_s": list(measured.ci_s),
            "default_median_s": default.median_s,
            "default_kept": self.default_kept,
            "tie": record.tie,
            "busy": measured.busy,
            "counts": self.counts,
            "refusals": self.refusals,
            "record": str(self.path),
            "recorded": self.recorded,
            "resumed": self.resumed,
            "interrupted": self.interrupted,
            "elapsed_s": round(self.elapsed_s, 3),
        }
