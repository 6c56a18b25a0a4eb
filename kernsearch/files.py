"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from .errors import OutputError

DRAFT = ".new-"  # how names of drafts begin


def put(path: Path, data: bytes | str, *, durable: bool = False) -> None:
    """Write a file in a folder that exists so that others see all of it or what was there before, also where the disk
    is full or the process is killed: to a draft beside it that then takes its place. `durable`: it is on disk when this
    returns.

    An older file gives the new one its permissions; a symbolic link stays, and the file that it names is replaced. What
    is there and is no regular file, as a pipe, is written as it is. Raises OSError.
    """
    put_all({path: data}, durable=durable)


def put_all(files: Mapping[Path, bytes | str], *, durable: bool = False) -> None:
    """As `put` of several files; no file takes its place before all are written."""
    drafts: list[tuple[Path, Path]] = []
    try:
        for path, data in files.items():
            content = data.encode() if isinstance(data, str) else data
            if path.exists() and not path.is_file():
                path.write_bytes(content)
                continue
            there = Path(os.path.realpath(path))
            drafts.append((there.with_name(DRAFT + uuid.uuid4().hex), there))
            _write(*drafts[-1], content, durable)
        for draft, there in drafts:
            os.replace(draft, there)
    finally:
        for draft, _ in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    if durable:
        for folder in {there.parent for _, there in drafts}:
            _sync(folder)


def hand(files: Mapping[Path, bytes | str]) -> None:
    """Write files that a person asked for, their folders too, all or none of them. Raises OutputError in one line."""
    try:
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        put_all(files, durable=True)
    except OSError as error:
        first = next(iter(files))
        named = first if len(files) == 1 else first.parent
        raise OutputError(f"{str(named)!r}: cannot be written: {error.strerror or error}") from error


def _write(draft: Path, there: Path, content: bytes, durable: bool) -> None:
    with open(draft, "xb") as file:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), there.stat().st_mode & 0o777)
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
