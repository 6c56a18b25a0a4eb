"""Case studies: optimizations that look strong, what the model says of them, and what happens.

A case names arms (candidates) and comparisons between them. Its prediction is written down before anything is
measured; the verdict is computed from the raw samples alone, so that other samples give another verdict.
"""

from . import recordings
from .case import Arm, Case, Comparison, cases, find, listed
from .run import run
from .verdict import judged, recording

__all__ = ["Arm", "Case", "Comparison", "cases", "find", "judged", "listed", "recording", "recordings", "run"]
