"""Notes and files as optuna-dashboard keeps them: attributes of the study, so that ended trials can have them too.

A file lies in a folder under the hash of what is in it, so that what many trials share is kept once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import files

_LONGEST = 2000  # characters of a piece of a note; some databases hold little more
_LARGEST = 1 << 20  # bytes of a file that is kept


@dataclass(frozen=True)
class Page:
    """What a person reads of a study or of a trial: a note in Markdown, and files by their names."""

    note: str
    files: Mapping[str, str] = field(default_factory=dict)


def attributes(page: Page, trial: int | None, old: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a study that change with this page; `trial` is the id of its trial, None for the study's own,
    `old` what the study has."""
    found = dict(_note(page.note, "" if trial is None else f"{trial}:", old))
    if trial is not None:
        found |= _files(page.files, trial, old)
    return found


def _note(text: str, whose: str, old: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    version, piece = f"dashboard:{whose}note_ver", f"dashboard:{whose}note_str:"
    pieces = [text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)]
    had = sum(key.startswith(piece) for key in old)
    pieces += [""] * (had - len(pieces))
    if pieces != [old.get(f"{piece}{number}") for number in range(len(pieces))]:
        yield version, int(old.get(version, 0)) + 1
        yield from ((f"{piece}{number}", text) for number, text in enumerate(pieces))


def _files(files: Mapping[str, str], trial: int, old: Mapping[str, Any]) -> dict[str, str]:
    prefix = f"dashboard:artifacts:{trial}:"
    wanted = {}
    for name, text in files.items():
        told = {"artifact_id": identity(text), "filename": name, "mimetype": "text/plain", "encoding": None}
        wanted[prefix + identity(text)] = json.dumps(told)
    gone = {key: "null" for key in old if key.startswith(prefix) and key not in wanted}
    return {key: value for key, value in {**gone, **wanted}.items() if old.get(key) != value}


def identity(text: str) -> str:
    """The name under which a file is kept."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def keep(folder: Path, text: str) -> None:
    """Write a file where `attributes` says it lies, unless it is there. Raises OSError."""
    path = folder / identity(text)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    files.put(path, text)


def shortened(text: str) -> str:
    """The text of a file, cut where it is too long to be kept."""
    return text if len(text) <= _LARGEST else text[:_LARGEST] + "\n... cut here\n"
