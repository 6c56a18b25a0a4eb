"""A notebook without Jupyter: its code cells run in order in one namespace, and what they print is their output.

python tests/notebook.py examples/gemm.ipynb            prints the outputs, a JSON list
python tests/notebook.py examples/gemm.ipynb --write    writes them into the notebook instead
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(cell: dict[str, Any]) -> str:
    """What the notebook shows as a cell's output."""
    return "".join(line for output in cell["outputs"] for line in output["text"])


def run(notebook: dict[str, Any]) -> list[str]:
    """What each code cell prints. What a cell raises is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    said = []
    for number, cell in enumerate(code_cells(notebook), 1):
        with redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        said.append(out.getvalue())
    return said


def main(path: Path, write: bool) -> None:
    notebook = json.loads(path.read_text())
    os.chdir(path.parent)  # as Jupyter does
    said = run(notebook)
    if not write:
        print(json.dumps(said))
        return
    for number, (cell, text) in enumerate(zip(code_cells(notebook), said, strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    Path(path.name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), "--write" in sys.argv)
