"""A case as Markdown: what was claimed and predicted, then what was measured, why, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any

from ..cases import wrong
from ..units import duration, interval, size, spelled
from .cases import arm_rate, verdict_line, verdict_said
from .page import plain, table

_COMPILER = {  # evidence of the compiler: its key and its heading
    "registers": "registers", "vector_spills": "spilled vectors", "spill_stores": "spilled bytes",
    "stack_bytes": "stack", "vector_bytes": "vectors",
    "hot_loop_instructions": "instructions of the inner loop", "hot_loop_stack_accesses": "its stack accesses",
}  # fmt: skip
_BYTES = {"stack_bytes", "vector_bytes"}
_LEAST_QUARTILES = 2


def markdown(data: Mapping[str, Any], figures: Sequence[str]) -> str:
    """The report of judged data. `figures` are the files of `case_plot.pictures`, beside it."""
    return "\n".join(_lines(data, figures)) + "\n"


def _lines(data: Mapping[str, Any], figures: Sequence[str]) -> Iterator[str]:
    device = data["device"]
    yield f"# Case {plain(data['case'])} on {plain(device['name'])}\n"
    yield f"**Claim.** {plain(data['claim'])}\n"
    yield f"**What may go wrong.** {plain(data['mechanism'])}\n"
    yield "## Prediction\n"
    yield "By the model, written down before anything was measured.\n"
    changes = data["comparisons"]
    yield from table(
        ("change", "ratio of times", "so it"),
        [(c["label"], f"{c['predicted']:.3f}", c["predicted_verdict"]) for c in changes],
    )
    yield from table(
        ("arm", "problem", "variant", "config", "how", "predicted", "bound by"),
        [(a["label"], a.get("problem", ""), a["variant"], spelled(a["config"]), ", ".join(a.get("how", ())),
          duration(a["predicted_s"]), a.get("predicted_bound", "")) for a in data["arms"]],
    )  # fmt: skip
    yield "## Measurement\n"
    rounds = len(data["arms"][0]["samples_s"])
    yield f"All arms in the same {rounds} rounds, in an order drawn anew each round. Intervals are of 99 %.\n"
    yield from _figures(figures, "changes")
    yield from table(
        ("change", "predicted", "measured", "99 %", "verdict"),
        [(c["label"], f"{c['predicted']:.3f}", f"{c['measured']:.3f}", interval(*c["ci"]),
          verdict_said(c)) for c in changes],
    )  # fmt: skip
    yield from _figures(figures, "times")
    yield from table(
        ("arm", "predicted", "median", "quartiles", "rate"),
        [(a["label"], duration(a["predicted_s"]), duration(a["median_s"]), _quartiles(a["samples_s"]),
          arm_rate(a)) for a in data["arms"]],
    )  # fmt: skip
    yield "## Evidence\n"
    yield from _evidence(data["arms"])
    yield "## Verdict\n"
    yield f"**{plain(verdict_line(data))}**\n"
    yield "## Wrong predictions\n"
    yield from _wrong(data)
    yield "## Where and how\n"
    facts = {"device": device.get("key"), "driver": device.get("driver"), "compiler": device.get("compiler"),
             "kernsearch": device.get("kernsearch"), "date": data["date"], "timed by": data.get("policy")}  # fmt: skip
    yield from table(("", ""), [(name, str(value)) for name, value in facts.items() if value])
    yield "The samples are in data.json; everything here is computed from them."


def _figures(names: Sequence[str], wanted: str) -> Iterator[str]:
    alt = {"changes": "ratio of times of each change, measured and predicted", "times": "times of each arm"}
    for name in names:
        if name.startswith(wanted):
            yield f"![{alt[wanted]}]({name})\n"


def _evidence(arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A column for whatever any arm has."""
    rows: list[dict[str, str]] = []
    for arm in arms:
        compiled = arm.get("evidence", {}).get("compile", [])
        gates = arm.get("evidence", {}).get("gates", {})
        row = {"arm": str(arm["label"])}
        for key, heading in _COMPILER.items():
            values = [int(part[key]) for part in compiled if key in part]
            if values:
                row[heading] = size(max(values)) if key in _BYTES else str(max(values))
        if "shared_bytes" in (found := arm.get("evidence", {})):  # with what the launch asks for
            row["shared memory"] = size(found["shared_bytes"])
        if "occupancy" in found:
            row["blocks of a multiprocessor"] = str(found["occupancy"])
        if arm.get("waves") is not None:
            row["waves"] = f"{arm['waves']:.2f}"
        for access, counted in arm.get("turns", {}).items():
            row[f"turns of shared memory: {access}"] = f"{counted['turns']} ({counted['conflicts']} conflicts)"
        if gates.get("workspace_bytes"):
            row["workspace"] = size(gates["workspace_bytes"])
        if gates.get("error") is not None:
            row["error by what is allowed"] = f"{gates['error']:.2f}"
        refused = arm.get("refused")
        row["gates"] = f"refused: {refused['gate']}" if refused else "passed" if gates else ""
        rows.append(row)
    columns = [*dict.fromkeys(key for row in rows for key in row if key != "gates"), "gates"]
    yield from table(columns, [[row.get(column, "") for column in columns] for row in rows])
    for arm in arms:
        if refused := arm.get("refused"):
            yield f"{plain(arm['label'])} is refused by the gate {refused['gate']}: {plain(refused['reason'])}\n"
        for part in arm.get("evidence", {}).get("compile", []):
            if part.get("warnings"):
                yield f"{plain(arm['label'])}: the compiler warns: {plain(str(part['warnings']))}\n"


def _wrong(data: Mapping[str, Any]) -> Iterator[str]:
    found = wrong(data)
    if not found:
        yield "None: no change went another way than the model said.\n"
    for c in found:
        note = f" Why: {plain(c['note'])}." if c.get("note") else " No explanation is recorded."
        yield (f"- {plain(c['label'])}: the model said {c['predicted_verdict']}, {c['predicted']:.3f} of the time; "
               f"measured {c['verdict']}, {c['measured']:.3f} {plain(interval(*c['ci']))}.{note}")  # fmt: skip
    if found:
        yield ""


def _quartiles(samples: Sequence[float]) -> str:
    if len(samples) < _LEAST_QUARTILES:
        return ""
    first, _, third = quantiles(samples, n=4)
    return f"{duration(max(first, min(samples)))} to {duration(min(third, max(samples)))}"
