"""Files that a command will write are looked at before anything else is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import exit_code

PATH = "<path>"
# Each would fail later anyway, for there is no such op, case, study or file: what it says shows what came first.
COMMANDS = {
    "ladder --plot": ("ladder", "nothing", "--shape", "1x1x1", "--plot", PATH),
    "ladder --out": ("ladder", "nothing", "--shape", "1x1x1", "--out", PATH),
    "case --out": ("case", "nothing", "--out", PATH),
    "explain --html": ("explain", "nothing", "--shape", "1x1x1", "--html", PATH),
    "replay --plot": ("replay", "nothing.json", "--plot", PATH),
    "export --out": ("export", "nothing", "--out", PATH),
    "cache export": ("cache", "export", PATH, "nothing"),
}
PICTURES = ("ladder --plot", "replay --plot")
MAKE_FOLDERS = ("ladder --out", "case --out", "cache export")


def complaint(command: str, path: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert exit_code(*(path if word == PATH else word for word in COMMANDS[command])) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and not told.out
    return told.err


@pytest.mark.parametrize("command", PICTURES)
@pytest.mark.parametrize("name", ["x.foo", "x", "x.svg.gz"])
def test_a_picture_of_no_known_kind_is_refused_first(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(command, str(tmp_path / name), capsys)
    assert "--plot" in said and name in said and "want a name that ends in .svg, .png or .pdf" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_written_is_refused_first(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.svg").mkdir()
    assert "there is no folder" in complaint(command, str(tmp_path / "file" / "x.svg"), capsys)
    wrong, says = ("file", "is a file, want a folder") if command == "case --out" else ("folder.svg", "want a file")
    assert says in complaint(command, str(tmp_path / wrong), capsys)
    missing = complaint(command, str(tmp_path / "no" / "such" / "x.svg"), capsys)
    assert ("there is no folder" in missing) == (command not in MAKE_FOLDERS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.svg"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_can_be_written_is_taken(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "x.svg" not in complaint(command, str(tmp_path / "x.svg"), capsys)  # it goes on to what is wrong else
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused_before_anything_is_derived(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("graph", "nothing", "--shape", "1x1x1", "--format", "png"),
        ("export", "nothing", "--format", "x"),
    ):
        assert exit_code(*arguments) == 2
        assert "--format" in capsys.readouterr().err
