"""Recorded runs of cases and ladders: those that are shipped, a folder a device, and any that is read or kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .. import json_text
from ..errors import CacheError
from ..records.lookup import shipped_folder

FOLDER = "recordings"


def shipped(name: str) -> dict[str, Path]:
    """Where the recordings of a case (or "ladder-gemm") lie, by the key of the device that they were made on."""
    return {path.parent.name: path for path in sorted((shipped_folder() / FOLDER).glob(f"*/{name}.json"))}


def read(where: str, name: str, part: str) -> dict[str, Any]:
    """Recorded data with a list called `part`: of a file, or of a device whose recording of `name` is shipped.

    Raises CacheError in one line for anything else.
    """
    known = shipped(name)
    path = known.get(where) or Path(where)
    if not path.exists() and "/" not in where and not where.endswith(".json"):
        devices = ", ".join(known) or "none"
        raise CacheError(f"{where}: want a file, or a device with a shipped recording of {name} ({devices})")
    try:
        return json_text.read(path, json_text.holding(part), "a recording", nan=True)
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CacheError(f"{path}: {error}; want a recording with a list of {part}") from error


def keep(path: Path, data: dict[str, Any]) -> None:
    """Write a file whole or not at all. Raises CacheError where it cannot be written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise CacheError(f"{path}: cannot be written ({error.strerror})") from error
