"""From the URL of a storage to Optuna's object for it, and what its failures are called."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from ..errors import StorageError
from ..settings import data_dir
from .storage import Storage

_BUSY_S = 30.0  # how long SQLite waits for another writer
_GRACE_S = 5  # after which a journal's lock belongs to a dead process
_BROKEN: tuple[type[Exception], ...] = (
    optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, ImportError,
    json.JSONDecodeError,
)  # fmt: skip


def file_of(url: str) -> Path | None:
    """The file that a storage is, or None where it is none. Raises StorageError for what is no URL."""
    if "://" not in url:
        return Path(url)
    with guarded(url, ValueError):
        parsed = sqlalchemy.make_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def artifacts_of(url: str) -> Path:
    """The folder of the files of a storage's trials: beside an SQLite file or a journal, else in the data folder."""
    file = file_of(url)
    return data_dir() / "artifacts" if file is None else file.absolute().with_suffix(".artifacts")


def opened(url: str | None, *, to_write: bool = True) -> optuna.storages.BaseStorage:
    """`to_write=False`: nothing is written to an SQLite file or a journal, not even a lock."""
    if url is None:
        return optuna.storages.InMemoryStorage()
    if "://" not in url:
        url = os.path.abspath(url)  # the lock of a journal is a link to its target
        if url.endswith(".log"):
            lock = JournalFileSymlinkLock(url, grace_period=_GRACE_S)
            if to_write:
                _mend(Path(url), lock)
            return optuna.storages.JournalStorage(JournalFileBackend(url, lock_obj=lock))
        url = f"sqlite:///{url}"
    parsed = sqlalchemy.make_url(url)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parsed.get_backend_name() == "sqlite":
        args, kwargs = parsed.get_dialect()().create_connect_args(parsed)
        connect = _connect_sqlite if to_write else _connect_to_read
        options = {"creator": partial(connect, *args, **{**kwargs, "timeout": _BUSY_S})}
    for last in (False, False, False, True):
        try:
            return Storage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=dict(options))
        except sqlalchemy.exc.DBAPIError as error:  # another process may create the same tables in this moment
            if last or not ("already exists" in str(error) or isinstance(error, sqlalchemy.exc.IntegrityError)):
                raise
            time.sleep(0.2)
    raise AssertionError


def _connect_sqlite(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    """A write-ahead log: readers never wait for a writer, and what was told survives a killed process."""
    connection = sqlite3.connect(*args, **kwargs)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _connect_to_read(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    connection = sqlite3.connect(*args, **kwargs)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _mend(journal: Path, lock: JournalFileSymlinkLock) -> None:
    """Cut a half-written last line, which a full disk leaves, so that the next line is not glued to it."""
    if not journal.exists() or not journal.stat().st_size:
        return
    lock.acquire()
    try:
        with journal.open("rb+") as file:
            tail_at = max(0, file.seek(0, os.SEEK_END) - (1 << 20))
            file.seek(tail_at)
            tail = file.read()
            if not tail.endswith(b"\n"):
                file.truncate(tail_at + tail.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def guarded(url: str | None, *also: type[Exception]) -> Iterator[None]:
    """Turns what a storage raises into a StorageError of one line."""
    try:
        yield
    except (*_BROKEN, *also) as error:
        raise StorageError(f"storage {_shown(url)!r}: {_cause(error)}") from error


def _shown(url: str | None) -> str:
    """The URL without its password."""
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True) if url and "://" in url else str(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return str(url)


def _cause(error: BaseException) -> str:
    """The innermost message in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna announces studies and experimental features; whoever tunes did not ask."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module="optuna")
            yield
    finally:
        logger.setLevel(level)
