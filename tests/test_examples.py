"""The examples run as they stand, each in a process and a cache of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(home: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "KERNSEARCH_CACHE": str(home / "cache")},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def test_every_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    assert not [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in here]


def test_a_tuned_plan_is_loaded_and_right(home: Path) -> None:
    said = run(home, str(EXAMPLES / "tune_and_use.py"), "4")
    assert "plan: exact" in said
    assert "the same bits: True" in said


def test_the_cache_tells_what_would_run_and_why(home: Path) -> None:
    said = run(home, str(EXAMPLES / "read_the_cache.py"))
    assert re.search("gemm 64x64x64 float32 epilogue=none layout=nn: (default|nearest)", said)  # near a shipped record
    assert "never measured" in said


def test_a_template_from_outside_is_tuned_and_loaded(home: Path) -> None:
    said = run(home, str(EXAMPLES / "shared_rows.py"), "2")
    assert said.startswith("shared_rows {'RM': ")
    assert "exact: shared_rows.c" in said


def test_an_op_from_outside_is_derived_by_its_own_rule_too(home: Path) -> None:
    options = ("row_energy", "--shape", "16x40", "--space", str(EXAMPLES / "row_energy.py"))
    drawn = run(home, "-m", "kernsearch.cli", "graph", *options, "--format", "dot")
    assert 'label="factor_out_scalar"' in drawn
    said = run(home, "-m", "kernsearch.cli", "tune", *options, "--trials", "3", "--timeout", "30")
    assert "3 measured" in said


def test_a_program_uses_what_was_tuned(home: Path) -> None:
    said = run(home, str(EXAMPLES / "use_the_cache.py"))
    assert "eigenvalues 1.0000 0.8000 0.6400 0.5120" in said and "kernsearch tune gemm --shape 384x8x384" in said


def test_a_model_of_pytorch_switches_to_kernsearch(home: Path) -> None:
    pytest.importorskip("torch")
    said = run(home, str(EXAMPLES / "torch_model.py"))
    assert "layers: 512 relu, 512 silu, 10 plain" in said
    (difference,) = re.findall(r"largest difference (\S+)", said)
    assert float(difference) < 1e-2


def test_without_pytorch_the_model_says_so_in_a_line(home: Path) -> None:
    without = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(EXAMPLES / 'torch_model.py')!r})"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, cwd=home)
    assert (done.returncode, done.stderr) == (1, "this example wants PyTorch: pip install torch\n")


def test_the_readme_can_be_typed_in(home: Path) -> None:
    text = (EXAMPLES.parent / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    run(home, "-c", code)


def test_links_between_pages_lead_somewhere() -> None:
    root = EXAMPLES.parent
    for page in (root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/*.md"))):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
