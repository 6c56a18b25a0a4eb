"""Records on the move: into one file, from files and folders of other caches, and out of the way.

An exported file is one JSON object: {"kernsearch": "records", "schema": 1, "records": [...]}, each record as in its own
file. What is taken in is checked like any file of the store. Where the store has a record of the same problem on the
same device, made from sources that have not changed since, the better one stays: the faster, where both were measured
under the same policy on a machine that was not busy, else the newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import backends, files, json_text
from ..errors import CacheError
from . import fingerprint, lookup
from . import record as records
from .record import SCHEMA, Record

KIND = "records"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")  # of an op and of a device: parts of file names

Row = dict[str, str]  # record, status, reason


def export_records(path: Path, names: Sequence[str] = ()) -> list[Row]:
    """Write the user's records, all or those of the given names (as `list_records` tells them), to one file.

    One row each: exported, or skipped with the reason. Raises CacheError for a name that is not there, OutputError for
    a file that cannot be written.
    """
    found = {f"{each.parent.name}/{each.stem}": each for each in sorted(lookup.store().user.glob("*/*.json"))}
    if unknown := [name for name in names if name.removesuffix(".json") not in found]:
        raise CacheError(f"record {unknown[0]!r}: want one of yours, as `kernsearch cache list` names them")
    rows: list[Row] = []
    kept = []
    for name in [name.removesuffix(".json") for name in names] or list(found):
        record = records.try_read(found[name])
        if isinstance(record, str):
            rows.append({"record": name, "status": "skipped", "reason": record})
        else:
            kept.append(record.to_json())
            rows.append({"record": name, "status": "exported", "reason": ""})
    data = msgspec.json.encode({"kernsearch": KIND, "schema": SCHEMA, "records": kept})
    files.hand({path: msgspec.json.format(data, indent=1)})
    return rows


def import_records(path: Path) -> list[Row]:
    """Take in the records of an exported file. One row each: added, replaced, kept (the store's is better) or skipped,
    with the reason. Raises CacheError for a file that is none."""
    return [_take(name, record) for name, record in _from_file(path)]


def merge_records(place: Path) -> list[Row]:
    """Take in the records of another cache: an exported file, a data folder, or a folder of records, by device or all
    in one. Rows as of `import_records`. Raises CacheError when there is nothing of that kind."""
    if not place.is_dir():
        return import_records(place)
    own = lookup.store().user.resolve()
    folder = place / "records" if (place / "records").is_dir() else place
    if folder.resolve() == own:
        raise CacheError(f"{place}: that is your own cache; want another one")
    paths = sorted([*folder.glob("*.json"), *folder.glob("*/*.json")])
    if not paths:
        raise CacheError(f"{place}: holds no records; want a data folder, a folder of records or an exported file")
    return [_take(f"{path.parent.name}/{path.stem}", records.try_read(path)) for path in paths]


def prune_records(*, dry_run: bool = False) -> list[Row]:
    """Remove the user's records that nothing will ever use here: files that hold none of this schema, those set aside
    after a rejection, those whose kernel sources have changed or are gone, and all but the best of one problem on one
    device. Records of other devices stay. One row each: removed (`dry_run`: would be removed), and why."""
    rows: list[Row] = []
    best: dict[tuple[str, str], tuple[Path, Record]] = {}

    def remove(path: Path, reason: str) -> None:
        if not dry_run:
            records.remove(path)
        status = "would be removed" if dry_run else "removed"
        rows.append({"record": f"{path.parent.name}/{path.name}", "status": status, "reason": reason})

    for path in sorted(lookup.store().user.glob("*/*.rejected")):
        remove(path, "the gates rejected it")
    for path in sorted(lookup.store().user.glob("*/*.json")):
        record = records.try_read(path)
        if isinstance(record, str):
            remove(path, record)
        elif gone := _stale(record):
            remove(path, gone)
        else:
            key = (record.fingerprint.device, record.problem.key)
            if key not in best:
                best[key] = path, record
            elif _worse(record, best[key][1]) is None:
                remove(best[key][0], f"{path.name} is better")
                best[key] = path, record
            else:
                remove(path, f"{best[key][0].name} is better")
    return rows


def _from_file(path: Path) -> Iterator[tuple[str, Record | str]]:
    """(name, record or what is wrong with it) of an exported file."""
    try:
        data = json_text.read(path, json_text.holding("records"), "an export")
    except OSError as error:
        raise CacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CacheError(f"{path}: {error}; want a file that `kernsearch cache export` wrote") from error
    if data.get("kernsearch") != KIND:
        raise CacheError(f"{path}: want a file that `kernsearch cache export` wrote")
    for number, entry in enumerate(data["records"], 1):
        try:
            record = Record.usable(entry)
        except ValueError as error:
            yield f"record {number}", str(error)
        else:
            yield f"{record.fingerprint.device}/{records.stem(record.problem)}", record


def _take(name: str, record: Record | str) -> Row:
    """Keep a record from elsewhere, if it may be and is better than what there is."""
    if isinstance(record, str):
        return {"record": name, "status": "skipped", "reason": record}
    if odd := [word for word in (record.fingerprint.device, record.problem.op) if not _NAME.fullmatch(word)]:
        return {"record": name, "status": "skipped", "reason": f"{odd[0]!r} is no name"}
    if reason := _stale(record):
        return {"record": name, "status": "skipped", "reason": reason}
    old = _present(record)
    if old is not None and (reason := _worse(record, old)):
        return {"record": name, "status": "kept", "reason": reason}
    lookup.store().write(record)
    return {"record": name, "status": "added" if old is None else "replaced", "reason": ""}


def _present(record: Record) -> Record | None:
    """The store's record that this one would replace."""
    folder = lookup.store().user / record.fingerprint.device
    for path in sorted(folder.glob(f"{records.stem(record.problem)}*.json")):
        known = records.try_read(path)
        if isinstance(known, str) or known.problem != record.problem:
            continue
        if record.fingerprint.supersedes(known.fingerprint):
            return known
    return None


def _stale(record: Record) -> str | None:
    """Why no device may use a record any more, or None."""
    if (device := _here(record.fingerprint.device)) is not None:
        return "; ".join(fingerprint.conflicts(record.fingerprint, device)) or None
    changes = [(s, fingerprint.changed(s, tokens)) for s, tokens in sorted(record.fingerprint.sources.items())]
    return next((f"its kernel source {source!r} {change}" for source, change in changes if change), None)


def _here(key: str) -> Any:
    """The device of that key, if it is the one at hand."""
    device = backends.resolve("auto")[1]
    return device if device.key == key else None


def _worse(new: Record, old: Record) -> str | None:
    """Why a record does not replace another of the same problem and device, or None when it does."""
    if new == old:
        return "it is the same"
    mine, theirs = new.measurement, old.measurement
    if mine and theirs and mine.policy == theirs.policy and not (mine.busy or theirs.busy):
        slower = mine.median_s >= theirs.median_s
        return f"yours is as fast, {theirs.median_s:.3g} s against {mine.median_s:.3g} s" if slower else None
    if theirs and not mine:
        return "yours was measured, it was not"
    return None if new.created > old.created else "yours is not older"
