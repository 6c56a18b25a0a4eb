"""Reading recordings: Kernel Tuner's cache, T4, and our own export; plain or compressed by gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import json_text
from ..errors import RecordingError
from ..search.pool import Candidate, candidate
from .recording import ALONE, Entry, Recording
from .restrict import Restriction

VARIANT = "variant"
EXPORT = "kernsearch trials 1"  # what the first line of our own export says of its format
_MS = 1e-3
_INFEASIBLE = ("InvalidConfig", "constraints")  # what their writers call points that no hardware was asked about
_GATES = {"CompilationFailedConfig": "compile", "compile": "compile", "RuntimeFailedConfig": "execution",
          "runtime": "execution", "timeout": "execution", "correctness": "correctness"}  # fmt: skip

Row = tuple[dict[str, Any], Entry]  # values of parameters, and what came of them


def read(path: str | Path, restrictions: Sequence[Restriction] = ()) -> Recording:
    """The recording in a file, whose format is found out. Raises RecordingError in one line."""
    text, name = _text(Path(path)), str(path)
    if not text.strip():
        raise RecordingError(f"{path}: is empty, want a recording")
    first, *lines = text.lstrip().splitlines()
    try:
        about = _of_export(first)
        if about is not None:
            rows = list(_ours(lines))
        else:
            rows, about = json_text.parse(text, lambda data: _theirs(name, data), "a recording", nan=True)
        device = about.get("device_name") or about.get("device")
        told = device if isinstance(device, str) else ""
        return json_text.made(rows, lambda rows: _recording(name, rows, restrictions, told), "a recording")
    except ValueError as error:
        raise RecordingError(f"{name}: {error}") from error


def _of_export(line: str) -> Mapping[str, Any] | None:
    """What the first line of our own export says; None of any other."""
    try:
        first = json_text.parse(line, dict, "an export")
    except ValueError:
        return None
    return first if first.get("format") == EXPORT else None


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or ("it is truncated" if isinstance(error, EOFError) else error)
        raise RecordingError(f"{path}: cannot be read ({reason})") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{path}: it is not a recording (not text)") from error


def _theirs(path: str, data: Any) -> tuple[list[Row], Mapping[str, Any]]:
    """The rows of a recording, and the object that says where it comes from."""
    if isinstance(data, dict) and isinstance(data.get("cache"), dict):
        return list(_kernel_tuner(path, data)), data
    if isinstance(data, dict) and isinstance(data.get("results"), list) and "schema_version" in data:
        return list(_t4(path, data["results"])), data["metadata"] if isinstance(data.get("metadata"), dict) else {}
    raise RecordingError(f"{path}: want a cache of Kernel Tuner, T4, or what `kernsearch export` writes")


def _kernel_tuner(path: str, data: Mapping[str, Any]) -> Iterable[Row]:
    """Times are milliseconds; a string instead of a time names what went wrong."""
    if (objective := data.get("objective", "time")) != "time":
        raise RecordingError(f"{path}: its objective is {objective!r}, want time")
    letters = data.get("tune_params_keys") or list(data["tune_params"])
    for point in data["cache"].values():
        told = point.get("time")
        if told in _INFEASIBLE:
            continue
        took = [_number(point.get(name), 0.0) * _MS for name in ("compile_time", "verification_time", "benchmark_time")]
        yield {name: point[name] for name in letters}, _entry(told, point.get("times") or (), _MS, took, str(told))


def _t4(path: str, results: Sequence[Any]) -> Iterable[Row]:
    """As Kernel Tuner writes it: times of a result in milliseconds, the measurement that is the objective in `unit`."""
    for result in results:
        if result.get("invalidity", "correct") in _INFEASIBLE:
            continue
        found = {m["name"]: m for m in result.get("measurements", ())}
        objective = (result.get("objectives") or ["time"])[0]
        if objective not in found and result.get("invalidity", "correct") == "correct":
            raise RecordingError(f"{path}: a result lacks its objective {objective!r} among its measurements")
        measured = found.get(objective, {})
        unit = {"s": 1.0, "ms": _MS, "us": 1e-6, "ns": 1e-9, "": _MS, None: _MS}.get(measured.get("unit", "ms"))
        if unit is None:
            raise RecordingError(f"{path}: objective {objective!r} in {measured.get('unit')!r}, want a time")
        times = result.get("times", {})
        took = [_number(times.get(name), 0.0) * _MS for name in ("compilation", "validation", "benchmark")]
        valid = result.get("invalidity", "correct")
        told = measured.get("value") if valid == "correct" else valid
        predicted = _number(found.get("predicted", {}).get("value"), math.nan)
        scale = unit / _MS
        entry = _entry(told if isinstance(told, str) else _number(told, math.nan) * scale, times.get("runtimes") or (),
                       _MS, took, str(valid), predicted * _MS)  # fmt: skip
        yield dict(result["configuration"]), entry


def _ours(lines: Sequence[str]) -> Iterator[Row]:
    """Of each line after the first. Raises ValueError that names the line."""
    for number, line in enumerate(lines, 2):
        try:
            yield json_text.parse(line, _trial, "a trial", nan=True)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _trial(told: Mapping[str, Any]) -> Row:
    took = [_number(told.get(name), 0.0) for name in ("compile_s", "verify_s", "benchmark_s")]
    seconds = told["seconds"] if told["status"] == "measured" else told.get("gate") or "execution"
    entry = _entry(seconds, told.get("samples_s") or (), 1.0, took, str(told.get("reason") or ""),
                   _number(told.get("predicted_s"), math.nan))  # fmt: skip
    return {VARIANT: told["variant"], **told["config"]}, entry


def _entry(told: Any, samples: Iterable[Any], unit: float, took: Sequence[float], reason: str,
           predicted_s: float = math.nan) -> Entry:  # fmt: skip
    predicted = predicted_s if math.isfinite(predicted_s) and predicted_s > 0 else None
    compile_s, verify_s, benchmark_s = took
    seconds = _number(told, math.nan) * unit
    if math.isfinite(seconds) and seconds > 0:
        runs = tuple(s * unit for each in samples if (s := _number(each, math.nan)) > 0)
        return Entry(seconds, runs, compile_s, verify_s, benchmark_s, predicted_s=predicted)
    gate = _GATES.get(str(told), told if told in _GATES.values() else "execution")
    return Entry(None, (), compile_s, verify_s, benchmark_s, str(gate), reason, predicted)


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _recording(path: str, rows: list[Row], restrictions: Sequence[Restriction], device: str) -> Recording:
    """Variants are those of the column of that name, or else one; each has the letters of its own rows."""
    if not rows:
        raise RecordingError(f"{path}: holds no configuration")
    seen: dict[str, dict[str, dict[Any, None]]] = {}
    for config, _ in rows:
        letters = seen.setdefault(str(config.get(VARIANT, ALONE)), {})
        for name, value in config.items():
            if name != VARIANT:
                letters.setdefault(name, {})[_plain(path, name, value)] = None
    values: dict[str, dict[Any, None]] = {}
    for letters in seen.values():
        for name, found in letters.items():
            values.setdefault(name, {}).update(found)
    labels = {name: _ordered(found) for name, found in values.items() if not all(type(v) is int for v in found)}
    index = {name: {v: i for i, v in enumerate(told)} for name, told in labels.items()}

    def number(name: str, value: Any) -> int:
        return index[name][value] if name in index else int(value)

    domains = {variant: {name: tuple(sorted(number(name, v) for v in found)) for name, found in letters.items()}
               for variant, letters in seen.items()}  # fmt: skip
    entries: dict[Candidate, Entry] = {}
    for config, entry in rows:
        variant = str(config.get(VARIANT, ALONE))
        letters_of = {name: number(name, v) for name, v in config.items() if name != VARIANT}
        if absent := sorted(set(domains[variant]) - set(letters_of)):
            raise RecordingError(f"{path}: a configuration of {variant!r} lacks parameter {absent[0]!r}")
        entries[candidate(variant, letters_of)] = entry
    return Recording(path, entries, domains, labels, restrictions, device)


def _plain(path: str, name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    raise RecordingError(f"{path}: parameter {name!r} has the value {value!r}, want a number, a string, true or false")


def _ordered(found: Iterable[Any]) -> tuple[Any, ...]:
    """Numbers ascending, then strings as they come."""
    return tuple(sorted(found, key=lambda v: (isinstance(v, str), 0 if isinstance(v, str) else v)))
