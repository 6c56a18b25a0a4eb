"""Python started in the source tree finds the tree's package before any that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tree_is_whole_without_an_installation() -> None:
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "import kernsearch as ks\n"
        "plan = ks.load('gemm', shape=(3, 5, 7))\n"
        "print(ks.__file__, plan.hit)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(ROOT / "kernsearch"))
