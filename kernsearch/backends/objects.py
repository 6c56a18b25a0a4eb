"""The object cache of all backends: files that a digest written beside them vouches for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import files, json_text
from ..errors import CacheError
from ..settings import get as get_settings
from . import Compiled, Evidence


def path_for(name: str, parts: Sequence[Any], suffix: str) -> Path:
    """Where an object is kept: its name is for people, `parts` (plain data) are all that it depends on."""
    key = hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()
    return get_settings().cache_dir() / "objects" / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}-{key[:32]}{suffix}"


def cached(path: Path, entry: str) -> Compiled | None:
    """The object at a path, if it is whole: its digest must be the one written beside it."""
    try:
        kept, digest = json_text.read(path.with_suffix(".json"), _vouched, "what vouches for an object")
        return Compiled(path, entry, *kept, cached=True) if _digest(path.read_bytes()) == digest else None
    except (OSError, ValueError):
        return None


def _vouched(data: Any) -> tuple[tuple[Evidence, float], str]:
    """((evidence, seconds), digest) of what is written beside an object."""
    return (data["evidence"], float(data["seconds"])), data["sha256"]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keep(path: Path, data: bytes, evidence: Evidence, seconds: float) -> None:
    """Object first, then what vouches for it; two processes that compile the same key overwrite each other whole."""
    write_atomically(path, data)
    vouch = {"sha256": _digest(data), "seconds": seconds, "evidence": dict(evidence)}
    write_atomically(path.with_suffix(".json"), json.dumps(vouch).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that other processes see all of it or nothing. Raises CacheError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.put(path, data)
    except OSError as error:
        raise CacheError(f"cache {str(path.parent)!r}: cannot be written ({error.strerror})") from error
