"""The environment, and the folders that follow from it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kernsearch import settings
from kernsearch.errors import CacheError, DeviceError

FOLDERS = "from kernsearch import settings; print(ascii(str(settings.data_dir())), ascii(str(settings.cache_dir())))"


def run(code: str, **environment: str | bytes) -> subprocess.CompletedProcess[str]:
    """A Python with nothing in its environment but what is named."""
    return subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False)


def test_nothing_in_the_environment_means_nothing_is_set(monkeypatch):
    for name in settings.NAMES:
        monkeypatch.delenv(name, raising=False)
    assert settings.get() == settings.Settings(None, None, None)


def test_an_empty_variable_says_nothing(monkeypatch):
    for name in settings.NAMES:
        monkeypatch.setenv(name, "")
    assert settings.get() == settings.Settings(None, None, None)


def test_settings_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNSEARCH_CC", "clang")
    monkeypatch.setenv("KERNSEARCH_THREADS", "3")
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    assert settings.get() == settings.Settings("clang", tmp_path, 3)
    monkeypatch.setenv("KERNSEARCH_THREADS", "4")
    assert settings.get().threads == 4


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "9" * 30, "²"])
def test_a_senseless_thread_count_is_refused_in_one_line(monkeypatch, text):
    monkeypatch.setenv("KERNSEARCH_THREADS", text)
    with pytest.raises(DeviceError, match="want a whole number") as told:
        settings.get()
    assert "\n" not in str(told.value)


def test_one_folder_holds_all_when_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "deep" / "er"))
    assert settings.data_dir() == settings.cache_dir() == tmp_path / "deep" / "er"
    assert settings.data_dir().is_dir()


def test_a_relative_folder_is_the_same_one_after_a_change_of_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNSEARCH_CACHE", "mine")
    assert settings.data_dir() == tmp_path / "mine"


@pytest.mark.parametrize("name", [b"with space", b"not utf-8 \xff\xfe", "größe".encode()])
def test_a_folder_may_have_any_name(tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    told = run(FOLDERS, KERNSEARCH_CACHE=path)
    assert told.returncode == 0, told.stderr
    assert Path(os.fsdecode(path)).is_dir()


def test_a_folder_that_cannot_be_used_is_an_error_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing"), tmp_path / ("n" * 300)):
        monkeypatch.setenv("KERNSEARCH_CACHE", str(path))
        for folder in (settings.data_dir, settings.cache_dir):
            with pytest.raises(CacheError, match=r"KERNSEARCH_CACHE=.*want a folder that can be written") as told:
                folder()
            assert "\n" not in str(told.value)


def test_the_default_folders_are_the_users_own(tmp_path):
    told = run(FOLDERS, HOME=str(tmp_path))
    assert told.stderr == ""
    data, cache = told.stdout.replace("'", "").split()
    assert data == str(tmp_path / ".local/share/kernsearch")
    assert cache == str(tmp_path / ".cache/kernsearch")


def test_a_home_that_cannot_be_written_gives_way_to_a_temporary_folder_with_one_warning(tmp_path):
    home = "/proc/no/home/data"
    told = run(f"{FOLDERS}; {FOLDERS}", HOME=home, XDG_DATA_HOME=home, XDG_CACHE_HOME=home, TMPDIR=str(tmp_path))
    assert told.returncode == 0, told.stderr
    folders = set(told.stdout.replace("'", "").split())
    assert len(folders) == 1 and folders.pop().startswith(str(tmp_path))
    assert told.stderr.count("UserWarning") == 1
    assert "KERNSEARCH_CACHE" in told.stderr


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path):
    (tmp_path / f"kernsearch-{os.getuid()}").symlink_to(tmp_path)
    told = run(FOLDERS, HOME="/proc/no/home", TMPDIR=str(tmp_path))
    assert f"kernsearch-{os.getuid()}" not in told.stdout
    assert str(tmp_path) in told.stdout


def test_importing_the_package_reads_nothing_and_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = run("import kernsearch", KERNSEARCH_CACHE="/proc/nothing", KERNSEARCH_THREADS="none")
    assert (told.returncode, told.stderr) == (0, "")
