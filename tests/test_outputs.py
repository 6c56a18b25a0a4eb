"""Files that a command will write are looked at before anything else is done, and are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import handmade
import pytest
from command import exit_code, know_rates

from kernsearch import backends, registry
from kernsearch.records import lookup
from kernsearch.search.study import Study

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


# What is written on a full disk --------------------------------------------------------------------------------------

H200 = "cuda-nvidia-h200-sm90a"
RECORD = "gemm_2304x1536x4096_bfloat16_epilogue=none_layout=nn"
FULL = """
import resource, sys
from kernsearch.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))  # files may not grow beyond it
main(sys.argv[2:])
"""
WRITING = {
    "explain --html": ("explain", "--from", RECORD, "--html", PATH),
    **{f"ladder --plot {form}": ("ladder", "gemm", "--from", H200, "--plot", f"{PATH}.{form}")
       for form in ("svg", "png", "pdf")},
    "ladder --out": ("ladder", "gemm", "--shape", "65x33x17", "--device", "cpu", "--out", PATH),
    "case --from --out": ("case", "split-k", "--from", H200, "--out", PATH),
    "case --out": ("case", "split-k", "--device", "cpu", "--out", PATH),
    "replay --plot": ("replay", "trials.jsonl", "--searcher", "random", "--seeds", "2", "--budget", "4",
                      "--plot", f"{PATH}.svg"),
    "export --out": ("export", "toy", "--storage", "studies.db", "--out", PATH),
    "export --out compressed": ("export", "toy", "--storage", "studies.db", "--out", f"{PATH}.gz"),
    "cache export": ("cache", "export", PATH),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with known rates, a record, a study and its export: what the commands read."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(folder))
        know_rates(folder)
        problem, device = registry.problem("gemm", (33, 17, 29)), backends.resolve("cpu")[1]
        lookup.store().write(handmade.record(problem, handmade.plan(folder), device))
        study = Study(str(folder / "studies.db"), "toy 4x4 float32 any", ("plain",), {"B": (1, 2, 4, 8)})
        study.describe({"problem": "toy 4x4 float32", "told": os.urandom(4096).hex()})  # which does not compress
        for size in (1, 2, 4, 8):
            study.add("plain", {"B": size}, "measured", {"status": "measured", "origin": "default"}, 1e-3 * size)
        study.close()
        patch.chdir(folder)
        assert exit_code("export", "toy", "--storage", "studies.db", "--out", "trials.jsonl") == 0
        yield folder


@pytest.mark.parametrize("command", WRITING)
def test_on_a_full_disk_nothing_is_half_written_and_the_old_stays(command: str, home: Path, tmp_path: Path) -> None:
    folder = command.startswith("case")
    named = next(word for word in WRITING[command] if word.startswith(PATH)).replace(PATH, str(tmp_path / "made"))
    before = {name: "what was there" for name in (("prediction.json", "data.json", "report.html") if folder else ("",))}
    for name, content in before.items():
        (path := Path(named, name)).parent.mkdir(exist_ok=True)
        path.write_text(content)
    words = [word.replace(PATH, str(tmp_path / "made")) for word in WRITING[command]]
    done = subprocess.run([sys.executable, "-c", FULL, "500", *words], capture_output=True, text=True, cwd=home,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "made" in done.stderr and "cannot be written: File too large" in done.stderr
    left = {str(path.relative_to(named)) if folder else "": path.read_text() for path in tmp_path.rglob("*")
            if path.is_file()}  # fmt: skip
    assert left == before


def test_a_file_in_a_folder_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The draft that takes its place is written beside it. Root may write anywhere, so the folder's answer is made."""
    (tmp_path / "x.svg").write_text("")
    asked = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and asked(path, mode))
    assert "cannot be written" in complaint("ladder --plot", str(tmp_path / "x.svg"), capsys)
