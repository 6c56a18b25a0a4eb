"""Textbook programs, and templates without kernels, are shared with the tests of rules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))
