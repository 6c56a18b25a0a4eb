"""Settings from the environment, and where files live. No other module reads the environment.

KERNSEARCH_CC       the C compiler to use, a path or a name on PATH
KERNSEARCH_CACHE    one folder for records, studies and objects
KERNSEARCH_THREADS  how many CPU threads kernels may use
CUDA_HOME           the CUDA toolkit, where headers are looked for after the wheels (CUDA_PATH means the same)
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import CacheError, DeviceError

NAMES = ("KERNSEARCH_CC", "KERNSEARCH_CACHE", "KERNSEARCH_THREADS")


@dataclass(frozen=True)
class Settings:
    """What the environment says. None where it says nothing; an empty variable says nothing."""

    cc: str | None = None
    cache: Path | None = None
    threads: int | None = None

    def data_dir(self) -> Path:
        """Folder of `records/` and `studies.db`, made if missing. CacheError when KERNSEARCH_CACHE is unusable."""
        return _home("data") if self.cache is None else _named(self.cache)

    def cache_dir(self) -> Path:
        """Folder of `objects/`, made if missing. CacheError when KERNSEARCH_CACHE is unusable."""
        return _home("cache") if self.cache is None else _named(self.cache)


def get() -> Settings:
    """The settings in force. Follows the environment, so a test may change it. Raises DeviceError or CacheError."""
    return _parsed(*(os.environ.get(name) or None for name in NAMES))


def data_dir() -> Path:
    """`get().data_dir()`."""
    return get().data_dir()


def cache_dir() -> Path:
    """`get().cache_dir()`."""
    return get().cache_dir()


def cuda_home() -> Path | None:
    """The folder that CUDA_HOME, or else CUDA_PATH, names."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named) if named else None


@cache
def _parsed(cc: str | None, folder: str | None, threads: str | None) -> Settings:
    if threads is not None and not (threads.isascii() and threads.isdigit() and 0 < int(threads) <= 4096):
        raise DeviceError(f"KERNSEARCH_THREADS={threads!r}: want a whole number from 1 to 4096")
    return Settings(cc, None if folder is None else Path(folder).absolute(), None if threads is None else int(threads))


@cache
def _named(path: Path) -> Path:
    if error := _unusable(path):
        raise CacheError(f"KERNSEARCH_CACHE={str(path)!r}: want a folder that can be written ({_why(error)})")
    return path


def _home(kind: str) -> Path:
    """The user's own folder of a kind, "data" or "cache"; a temporary one, with a warning, if it is not writable."""
    import platformdirs

    function = platformdirs.user_data_path if kind == "data" else platformdirs.user_cache_path
    return _writable(function("kernsearch", appauthor=False))


@cache
def _writable(path: Path) -> Path:
    error = _unusable(path) if path.is_absolute() else OSError("there is no home folder")
    if error is None:
        return path
    instead = _temporary()
    warnings.warn(
        f"{str(path)!r} cannot be written ({_why(error)}); using {str(instead)!r}; KERNSEARCH_CACHE names a better one",
        stacklevel=5,
    )
    return instead


@cache
def _temporary() -> Path:
    """A folder that later processes of this user find again; a fresh one when that name is not safely ours."""
    path = Path(tempfile.gettempdir(), f"kernsearch-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="kernsearch-"))
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if ours and _unusable(path) is None else Path(tempfile.mkdtemp(prefix="kernsearch-"))


def _unusable(path: Path) -> OSError | None:
    """Why a folder cannot be made and written, or None. Permission bits lie to root and on network disks, so try."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".try-", dir=path)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        return error
    return None


def _why(error: OSError) -> str:
    return error.strerror or str(error)
