"""Timing one candidate, and choosing between near-best ones.

Both work on a timer: a callable that runs a candidate `repeat` times and returns a `Timing`. What is cold or warm,
which process runs and which buffers rotate is the timer's affair.

* `quick` is for the search: few samples, fewer for hopeless candidates, more for one that looks like a new best.
* `playoff` is for the end: rounds in random order and a sequential test; `verdict` says what may be cached.
"""

from .look import quick
from .playoff import Playoff, Ratio, Verdict, playoff, verdict
from .samples import POLICY, Measurement, Sample, Timer, Timing, policy

__all__ = [
    "POLICY", "Measurement", "Playoff", "Ratio", "Sample", "Timer", "Timing", "Verdict", "playoff", "policy", "quick",
    "verdict",
]  # fmt: skip
