"""Records: the winner for a problem on a device, one JSON file each.

`<folder>/<device key>/gemm_2304x1544x4096_float32_epilogue=none_layout=nn.json`. A record that must not replace the one
of that name, because the two conflict, stands beside it with the hash of its fingerprint before `.json`.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from .. import files, json_text, launch
from ..errors import CacheError
from ..plan import Plan
from ..problem import Problem
from .fingerprint import Fingerprint

SCHEMA = 1
LOCK_TIMEOUT_S = 30.0


class Measured(msgspec.Struct, frozen=True):
    """A `measure.Measurement` as records keep it, seconds a call."""

    median_s: float
    ci_s: tuple[float, float]
    confidence: float = 0.0
    samples: tuple[float, ...] = ()
    cpu_s: float = 0.0
    wait_s: float = 0.0
    clean: float = 0.0
    busy: bool = False
    policy: str = ""

    @classmethod
    def of(cls, measurement: Any) -> Measured:
        """The fields of a Measurement that records keep."""
        return msgspec.convert(msgspec.to_builtins(measurement), cls)


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """All that the runtime needs to launch a winner, and all that made it. Fields it does not know are passed over."""

    problem: Problem
    fingerprint: Fingerprint
    plan: Plan
    variant: str
    config: dict[str, int]
    derivation: tuple[dict[str, Any], ...]  # {"rule", "site"} in order
    measurement: Measured | None = None  # None: a default that was never measured
    default_measurement: Measured | None = None
    tie: bool = False  # another candidate was as fast
    evidence: dict[str, Any] = {}  # by gate
    counts: dict[str, Any] = {}  # of the search that found it
    created: str = ""  # UTC, ISO 8601
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain data, as in the file."""
        return {"schema": self.schema, "problem": self.problem.to_json()} | {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name not in ("schema", "problem")
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The record of plain data. Raises ValueError in one line for anything that is not one of this schema."""
        return json_text.made(data, cls._of_this_schema, "a record")

    @classmethod
    def _of_this_schema(cls, data: Any) -> Record:
        if not isinstance(data, dict):
            raise ValueError("it is not a record (not a JSON object)")
        if data["schema"] != SCHEMA:
            age = "a newer" if data["schema"] > SCHEMA else "an older"
            raise ValueError(f"it has schema {data['schema']}, of {age} version; this one reads {SCHEMA}")
        return msgspec.convert({**data, "problem": Problem.from_json(data["problem"])}, cls)

    @classmethod
    def usable(cls, data: dict[str, Any]) -> Record:
        """As `from_json`, of a record whose plan can be launched. Raises ValueError for a damaged one too."""
        record = cls.from_json(data)
        if flaw := launch.flaw(record.plan, record.problem.shape):
            raise ValueError(f"its plan is damaged ({flaw})")
        return record


def now() -> str:
    """The time as records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(path: Path) -> Record:
    """The record in a file. Raises ValueError when it holds none of this schema, OSError when it cannot be read."""
    return json_text.read(path, Record.usable, "a record")


def try_read(path: Path) -> Record | str:
    """The record in a file, or why there is none. A file that cannot be used stays, with one warning a process."""
    try:
        stamp = path.stat()
        return _read_once(path, stamp.st_mtime_ns, stamp.st_size)
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _warn(path, reason)
        return reason


@cache
def _read_once(path: Path, mtime_ns: int, size: int) -> Record:
    return read(path)


@cache
def _warn(path: Path, reason: str) -> None:
    warnings.warn(f"record {str(path)!r} is skipped: {reason}", stacklevel=4)


def stem(problem: Problem) -> str:
    """The readable name of a problem's file, without ending."""
    return f"{problem.op}_{'x'.join(map(str, problem.shape))}_{rest(problem)}"


def rest(problem: Problem) -> str:
    """The part of a file's name after the shape. Characters that a file name should not hold are replaced."""
    said = "_".join([problem.dtype, *(f"{name}={value}" for name, value in problem.options)])
    clean = re.sub(r"[^A-Za-z0-9_.,=+-]", "-", said)
    if clean == said and len(said) <= 120:
        return said
    return f"{clean[:100]}~{hashlib.sha256(said.encode(errors='surrogateescape')).hexdigest()[:8]}"


_listeners: list[Callable[[], None]] = []


def on_write(listener: Callable[[], None]) -> None:
    """Have a function called after this process has written a record or set one aside."""
    _listeners.append(listener)


def check(folder: Path, device: str) -> None:
    """Raise CacheError when records of a device cannot be written below `folder`."""
    with _changing(folder / device), tempfile.TemporaryFile(dir=folder / device):
        pass


def write(record: Record, folder: Path) -> Path:
    """Keep a record below `folder`; the path it got. All of it is on disk when this returns, or none of it.

    A file that conflicts with it, cannot be read or is of another schema is left alone. Raises CacheError when the
    folder cannot be written, is locked for too long, or the disk is full.
    """
    home = folder / record.fingerprint.device
    with _changing(home):
        # Left behind by a writer that was killed: who holds the lock is the only one.
        for left_behind in home.glob(f"{files.DRAFT}*"):
            left_behind.unlink()
        path = _target(record, home)
        files.put(path, msgspec.json.format(msgspec.json.encode(record.to_json()), indent=1), durable=True)
    return path


def set_aside(path: Path) -> Path:
    """Keep a record's file under a name that lookup passes over, `.rejected` added; the new path. Raises CacheError."""
    with _changing(path.parent):
        return path.replace(path.with_name(f"{path.name}.rejected"))


def remove(path: Path) -> None:
    """Delete a record's file. Raises CacheError."""
    with _changing(path.parent):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _changing(home: Path) -> Iterator[None]:
    """Hold the lock of a folder, made if missing; tell the listeners when all went well."""
    import filelock

    try:
        home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home / ".lock", timeout=LOCK_TIMEOUT_S):
            yield
    except filelock.Timeout as error:
        raise CacheError(f"{str(home)!r} is locked by another process for {LOCK_TIMEOUT_S:g} s") from error
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CacheError(f"record in {str(home)!r} cannot be written: {why}; the old one, if any, is whole") from error
    for listener in _listeners:
        listener()


def _target(record: Record, home: Path) -> Path:
    """A file of this problem that may be replaced, else the first of `stem.json`, `stem.<hash>.json`,
    `stem.<hash>.2.json` ... that is free."""
    name, hash_ = stem(record.problem), record.fingerprint.hash
    for path in sorted(home.glob(f"{glob.escape(name)}*.json")):
        with contextlib.suppress(ValueError, OSError):
            known = read(path)
            if known.problem == record.problem and record.fingerprint.supersedes(known.fingerprint):
                return path
    names = itertools.chain(
        (f"{name}.json", f"{name}.{hash_}.json"), map(f"{name}.{hash_}.{{}}.json".format, itertools.count(2))
    )
    return next(path for path in (home / each for each in names) if not path.exists())
