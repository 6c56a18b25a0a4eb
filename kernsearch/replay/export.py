"""Writing the trials of our own studies down: T4, CSV, or one JSON object a line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import files, settings
from ..errors import SpaceError
from ..search.study import Studies, Trial
from .formats import EXPORT, VARIANT

_INVALID = {"compile": "compile", "execution": "runtime", "correctness": "correctness"}  # our gates in T4's words
_KNOWN = ("status", "gate", "reason", "origin", "compile_s", "verify_s", "benchmark_s", "predicted_s")


def text_of(study: str, form: str, storage: str | None = None) -> str:
    """A study in a format: "t4", "csv" or "jsonl". `study` is its name or a part that no other has; `storage` as in
    `tune`. Raises SpaceError and StorageError in one line."""
    writers: dict[str, Callable[[dict[str, Any], list[Trial]], str]] = {"t4": _t4, "csv": _csv, "jsonl": _jsonl}
    if form not in writers:
        raise SpaceError(f"--format {form!r}: want one of {', '.join(writers)}")
    studies = Studies(storage or str(settings.data_dir() / "studies.db"))
    found = [study] if study in studies.names else [name for name in studies.names if study in name]
    if len(found) != 1:
        one = f"{len(found)} studies have it in their names, such as {found[0]!r}" if found else "no study of that name"
        raise SpaceError(f"study {study!r}: {one}, want a name that one study has")
    trials = [t for t in studies.trials(found[0]) if t.state == "measured" or _refused(t)]
    if not trials:
        raise SpaceError(f"study {found[0]!r}: holds no trial that was measured or refused by a gate")
    about = {"study": found[0], **studies.attrs(found[0])}
    return writers[form](about, trials)


def write(path: Path, text: str) -> None:
    """Raises OutputError when the file cannot be written."""
    files.hand({path: gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text})


def _refused(trial: Trial) -> bool:
    return trial.state == "refused" and trial.attrs.get("gate") in _INVALID


def _row(trial: Trial) -> dict[str, Any]:
    known = {name: trial.attrs[name] for name in _KNOWN if name in trial.attrs}
    row = {"number": trial.number, VARIANT: trial.variant, "config": trial.config, "seconds": trial.seconds, **known}
    return {**row, "status": "measured" if trial.state == "measured" else "rejected"}


def _jsonl(about: dict[str, Any], trials: list[Trial]) -> str:
    lines = [{"format": EXPORT, **about}, *map(_row, trials)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _csv(about: dict[str, Any], trials: list[Trial]) -> str:
    letters = sorted({letter for trial in trials for letter in trial.config})
    told = io.StringIO()
    writer = csv.DictWriter(told, ["number", VARIANT, *letters, "seconds", *_KNOWN], restval="", lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        row = _row(trial)
        writer.writerow({**{name: value for name, value in row.items() if name != "config"}, **trial.config})
    return told.getvalue()


def _t4(about: dict[str, Any], trials: list[Trial]) -> str:
    """As Kernel Tuner writes it, times in milliseconds; the variant is one more parameter."""
    results = []
    for trial in trials:
        row = _row(trial)
        measured = [] if trial.seconds is None else [{"name": "time", "value": 1e3 * trial.seconds, "unit": "ms"}]
        if "predicted_s" in row:
            measured.append({"name": "predicted", "value": 1e3 * row["predicted_s"], "unit": "ms"})
        times = {"compilation": 1e3 * row.get("compile_s", 0.0), "validation": 1e3 * row.get("verify_s", 0.0),
                 "benchmark": 1e3 * row.get("benchmark_s", 0.0), "framework": 0.0, "search_algorithm": 0.0,
                 "runtimes": [] if trial.seconds is None else [1e3 * trial.seconds]}  # fmt: skip
        results.append({
            "timestamp": "" if trial.start is None else trial.start.isoformat(timespec="milliseconds"),
            "configuration": {VARIANT: trial.variant, **trial.config},
            "times": times,
            "invalidity": "correct" if trial.seconds is not None else _INVALID[row["gate"]],
            "correctness": 0 if row.get("gate") == "correctness" else 1,
            "measurements": measured,
            "objectives": ["time"],
        })  # fmt: skip
    return json.dumps({"schema_version": "1.0.0", "metadata": about, "results": results}, ensure_ascii=False) + "\n"
