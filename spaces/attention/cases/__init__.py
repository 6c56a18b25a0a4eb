"""Case studies of attention, one module each."""

from . import overlap_ablation

CASES = (overlap_ablation.CASE,)
