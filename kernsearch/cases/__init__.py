"""Case studies: optimizations that look strong, what the model says of them, and what happens.

A case names arms (candidates) and comparisons between them. Its prediction is written down before anything is
measured; the verdict is computed from the raw samples alone, so that other samples give another verdict.
"""

from typing import Any

from . import recordings
from .case import Arm, Case, Comparison, cases, find, listed
from .verdict import judged, recording, wrong

__all__ = ["Arm", "Case", "Comparison", "cases", "find", "judged", "listed", "recording", "recordings", "run", "wrong"]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .running import run  # with all that compiles and measures, which looking at recordings does without

    return run
