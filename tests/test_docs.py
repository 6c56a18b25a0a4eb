"""The documentation: the site builds without a warning, and what pages say of commands, files and packages is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kernsearch.cases import cases, judged, recording, recordings
from kernsearch.cli.app import cli
from kernsearch.registry import ops

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:^ {4}(?:\$ )?|`|&& )(kernsearch [^`\n]+)", re.M)
FILE = re.compile(r"`((?:kernsearch|kernels|spaces|tests|benchmarks|cache|examples)/[\w./-]*\w/?)`")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command on a page, as far as its comment, its pipe or the end of the command."""
    for line in COMMAND.findall(text):
        words = shlex.split(re.split(r" && | \| | … ", line)[0], comments=True)
        yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    of_ops = {f"--{spec.name}".replace("_", "-") for op in ops().values() for spec in (*op.options, *op.spellings)}
    for words in commands(page.read_text()):
        command: click.Command = cli
        for word in list(words):
            below = command.commands if isinstance(command, click.Group) else {}
            if word not in below:
                break
            command = below[word]
            words = words[1:]
        assert command is not cli or all(word.startswith("-") or "|" in word for word in words), f"{page.name}: {words}"
        known = {"--help", "--version", "-h"} | {opt for param in command.params for opt in param.opts}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known | of_ops, f"{page.name}: {command.name} has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_on_a_page_exists(page: Path) -> None:
    missing = [path for path in FILE.findall(page.read_text()) if "NAME" not in path and not (ROOT / path).exists()]
    assert missing == [], page.name


def test_the_page_of_the_architecture_names_every_package_and_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    there = {p.parent.name for p in ROOT.glob("kernsearch/*/__init__.py")} | {
        p.stem for p in ROOT.glob("kernsearch/[a-z]*.py")
    }
    assert {name for name in there if f"`{name}`" not in text} == set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error, unless `--quiet` hides it."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return out


def test_every_case_has_a_page_with_the_verdict_of_every_recording(site: Path) -> None:
    overview = (site / "cases" / "index.html").read_text()
    for name, case in cases().items():
        text = (site / "cases" / name / "index.html").read_text()
        assert case.claim.split("'")[0].split("&")[0] in text and f"{name}/" in overview
        for device in recordings.shipped(name):
            told = judged(recording(recordings.read(device, name, "arms"), name))
            assert f"Verdict: {told['verdict']['verdict']} (" in text and told["device"]["name"] in text
            for figure in ("changes", "times"):
                assert f'src="../{name}-{device}-{figure}.svg"' in text
                assert (site / "cases" / f"{name}-{device}-{figure}.svg").read_text().endswith("</svg>\n")


def test_the_site_loads_nothing_from_elsewhere_and_keeps_no_stray_escapes(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", text), page
        if page.parent.parent.name == "cases":
            assert not re.findall(r"\\[`*_{}\[\]<>#|~&!]", text), page


def test_files_that_pages_link_to_are_on_the_site(site: Path) -> None:
    assert (site / "source" / "examples" / "row_energy.py").exists()
    assert 'href="../source/examples/row_energy.py"' in (site / "adding" / "index.html").read_text()
    assert not (site / "hooks.py").exists()
