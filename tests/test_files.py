"""Files are written whole or not at all."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernsearch import files
from kernsearch.errors import OutputError

BIG = "x" * 100_000


@contextmanager
def full(size: int = 10_000) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a full disk; Python ignores the signal for it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    files.put(tmp_path / "a", "text")
    files.put(tmp_path / "a", b"\x00bytes")
    files.hand({tmp_path / "b" / "c": "text", tmp_path / "b" / "d": BIG})
    assert (tmp_path / "a").read_bytes() == b"\x00bytes" and (tmp_path / "b" / "d").read_text() == BIG
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "d"]


def test_on_a_full_disk_all_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with full(), pytest.raises(OutputError, match="old': cannot be written: File too large"):
        files.hand({tmp_path / "old": BIG})
    with full(), pytest.raises(OutputError) as told:
        files.hand({tmp_path / "new": "small", tmp_path / "old": BIG})
    assert "\n" not in str(told.value) and str(tmp_path) in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_text() == "old"


def test_a_new_file_has_the_permissions_that_others_get(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        files.put(tmp_path / "new", "text")
    finally:
        os.umask(mask)
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o604)
    files.put(tmp_path / "old", "text")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "old")] == [0o640, 0o604]


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, content in (("file", "old"), ("dangling", None)):
        if content is not None:
            (tmp_path / "there" / name).write_text(content)
        (tmp_path / name).symlink_to(tmp_path / "there" / name)
        files.put(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink() and (tmp_path / "there" / name).read_text() == "new"


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.put(tmp_path / "pipe", "text")
    reader.join()
    assert read == ["text"] and (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x", tmp_path):
        with pytest.raises(OutputError, match=r"cannot be written: (File exists|Is a directory)"):
            files.hand({path: "text"})
