"""The notebooks run as they stand, and show what is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import notebook
import pytest
from command import know_rates

EXAMPLES = Path(__file__).parent.parent / "examples"
RECORDED = "recorded"  # the tag of cells that read recordings: they say the same everywhere


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_recorded(path: Path, tmp_path: Path) -> None:
    know_rates(tmp_path)
    done = subprocess.run(
        [sys.executable, notebook.__file__, str(path)], capture_output=True, text=True, timeout=240,
        env={**os.environ, "KERNSEARCH_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = notebook.code_cells(written(path))
    recorded = 0
    for cell, said in zip(cells, json.loads(done.stdout), strict=True):
        assert bool(said) == bool(notebook.stored(cell)), (
            "a cell has lost its output, or has one that it does not print"
        )
        if RECORDED in cell["metadata"].get("tags", ()):
            assert said == notebook.stored(cell), f"run python tests/notebook.py examples/{path.name} --write"
            recorded += 1
    assert recorded >= 2 and "H200" in path.read_text()


def test_what_a_cell_raises_ends_the_run() -> None:
    def cell(source: str) -> dict[str, Any]:
        return {"cell_type": "code", "source": [source], "outputs": []}

    assert notebook.run({"cells": [cell("x = 1"), {"cell_type": "markdown"}, cell("print(x)")]}) == ["", "1\n"]
    with pytest.raises(ZeroDivisionError):
        notebook.run({"cells": [cell("1 / 0")]})
