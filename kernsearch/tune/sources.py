"""Where a run finds measurements of near shapes and of other devices to learn from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..device import Device
from ..errors import RecordingError, SpaceError, StorageError
from ..feasible import FeasibleSpace
from ..problem import Problem
from ..records import Record, lookup, record
from ..replay import read
from ..search.study import Studies
from ..search.transfer import Source

NEAREST = 3  # studies of one storage that are learned from
LEAST = 8  # measured trials without which a study teaches little


def found(problem: Problem, device: Device, storage: str) -> list[Source]:
    """Studies of near shapes on this device in the run's own storage; nothing when there is none yet."""
    if "://" not in storage and not os.path.isfile(storage):
        return []
    try:
        return list(_studies(Studies(storage), problem, device.key))
    except StorageError:
        return []  # the search says so itself


def named(problem: Problem, store: lookup.Store, where: Sequence[str]) -> dict[str, list[Source]]:
    """What `--warm-from` names, by name: a recording, a record, the key of a device that has records, or a storage of
    studies. Raises SpaceError for anything else, StorageError for a storage that cannot be read."""
    return {name: _named(problem, store, name) for name in where}


def within(
    told: Mapping[str, Sequence[Source]], problem: Problem, variants: Mapping[str, FeasibleSpace]
) -> list[Source]:
    """What was named, of these variants. Raises SpaceError for a name that holds nothing of them."""
    found: list[Source] = []
    for name, sources in told.items():
        of_these = [source for source in (source.within(variants) for source in sources) if source.rows]
        if not of_these:
            raise _nothing(name, problem)
        found += of_these
    return found


def _named(problem: Problem, store: lookup.Store, name: str) -> list[Source]:
    told: list[Source] = []
    if "://" in name or name.endswith((".db", ".log")):
        told = list(_studies(Studies(name), problem, None))
    elif os.path.isfile(name):
        told = [_file(name)]
    else:
        records = [kept for _, place in store.places() for path in store.files(place, name, f"{problem.op}_")
                   if isinstance(kept := record.try_read(path), Record) and _alike(kept.problem, problem)]  # fmt: skip
        records.sort(key=lambda kept: lookup.distance(kept.problem.shape, problem.shape))
        told = [_record(kept) for kept in records]
    if not told:
        raise _nothing(name, problem)
    return told


def _nothing(name: str, problem: Problem) -> SpaceError:
    return SpaceError(f"--warm-from {name!r}: want a recording, a record, a storage, or the key of a device with "
                      f"records, that holds a variant of {problem.op} {problem.dtype}")  # fmt: skip


def _file(name: str) -> Source:
    try:
        return _record(record.read(Path(name)))
    except (ValueError, OSError):
        pass  # no record, so a recording or nothing
    try:
        return read(name).source()
    except RecordingError as error:
        raise SpaceError(f"--warm-from {error}") from error


def _record(kept: Record) -> Source:
    seconds = kept.measurement.median_s if kept.measurement is not None else 1.0
    return Source(kept.problem.key, [(kept.variant, kept.config, seconds)])


def _studies(studies: Studies, problem: Problem, device: str | None) -> Iterator[Source]:
    """The nearest studies of problems that differ in shape at most, on one device or on any."""
    near: list[tuple[float, str]] = []
    for name in studies.names:
        words = name.rpartition(" #")[0].split(" ")
        shape = tuple(int(n) for n in words[1].split("x") if n.isdecimal()) if len(words) > 1 else ()
        if len(shape) != len(problem.shape) or not all(shape):
            continue
        key = problem.at(shape).key
        there = " ".join(words)[len(key) + 1 :]
        same = device is not None and there == device
        if " ".join(words).startswith(key + " ") and (device is None or (same and shape != problem.shape)):
            near.append((lookup.distance(shape, problem.shape), name))
    for _, name in sorted(near)[:NEAREST]:
        rows = [(t.variant, t.config, t.seconds) for t in studies.trials(name) if t.seconds is not None]
        if len(rows) >= LEAST:
            yield Source(name, rows)


def _alike(one: Problem, other: Problem) -> bool:
    return len(one.shape) == len(other.shape) and one.at(other.shape) == other and all(one.shape)
