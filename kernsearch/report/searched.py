"""What a record keeps of the search that found it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..candidate import Candidate
from ..records import Record


def measured(record: Record | None, variant: str, config: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Seconds of a variant's best, and what tells: "play-off", where finalists took turns, or "search", whose looks are
    short. With `config` of that one alone."""
    if record is None:
        return {"measured_s": None, "measured_in": None}
    finalists: dict[str, float] = dict(record.evidence.get("finalists", {}))
    if record.measurement is not None:
        finalists[_name(record.variant, record.config)] = record.measurement.median_s
    if config is not None:
        seconds = finalists.get(_name(variant, config))
    else:
        seconds = min((s for name, s in finalists.items() if name.split(" ")[0] == variant), default=None)
    if seconds is not None:
        return {"measured_s": seconds, "measured_in": "play-off"}
    seen = _searched(record).get("variants", {}).get(variant) if config is None else None
    return {"measured_s": seen, "measured_in": None if seen is None else "search"}


def kept_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """What a record keeps of the steps that `explain --measure` has timed side by side, in their order."""
    return [
        {"variant": row["candidate"], "config": row["config"], "seconds": row["measured_s"]}
        if row.get("measured_in") == "rounds" else None
        for row in rows
    ]  # fmt: skip


def kept_step(record: Record | None, at: int, variant: str) -> tuple[dict[str, int], float] | None:
    """Config and seconds that the record keeps of a step, if it is still of this variant."""
    rows = [] if record is None else record.evidence.get("steps", [])
    row = rows[at] if at < len(rows) else None
    return (row["config"], row["seconds"]) if row is not None and row["variant"] == variant else None


def runner_up(record: Record) -> dict[str, Any] | None:
    """The finalist next to the winner; `significant` says whether the play-off told them apart, None where the record
    does not."""
    name = _name(record.variant, record.config)
    others = sorted((s, other) for other, s in dict(record.evidence.get("finalists", {})).items() if other != name)
    if not others or record.measurement is None:
        return None
    seconds, second = others[0]
    told: dict[str, Any] = {"name": second, "median_s": seconds, "ratio": seconds / record.measurement.median_s}
    return told | {"significant": _differs(record, second)}


def _differs(record: Record, other: str) -> bool | None:
    if "tied" in record.evidence:
        return other not in record.evidence["tied"]
    if not record.tie:
        return True
    named = str(record.evidence.get("verdict") or "").partition("; tied with ")[2]  # of records without the list
    return other not in named.split(", ") if named else None


def importances(record: Record) -> dict[str, float]:
    """Letters of the winner's variant by the share of the variation that each explains."""
    return dict(_searched(record).get("importances", {}))


def refused(record: Record) -> dict[str, Any]:
    """How many each gate refused, and why. Records without what their search saw know reasons without gates."""
    reasons = _searched(record).get("refused")
    if reasons is not None:
        by_gate: Counter[str] = Counter()
        for row in reasons:
            by_gate[row["gate"]] += row["count"]
        return {"by_gate": dict(sorted(by_gate.items())), "reasons": reasons}
    counted = {gate: n for gate, n in record.counts.get("rejected", {}).items() if n and gate != "space"}
    found = sorted(record.evidence.get("refusals", {}).items())
    return {"by_gate": counted, "reasons": [{"gate": None, "reason": why, "count": n} for why, n in found]}


def _searched(record: Record) -> dict[str, Any]:
    return dict(record.evidence.get("searched", {}))


def _name(variant: str, config: Mapping[str, int]) -> str:
    """As candidates are named in records."""
    return Candidate.of(variant, config).name
