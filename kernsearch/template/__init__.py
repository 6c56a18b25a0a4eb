"""Templates: what one kernel source implements, as patterns, and matching them against kernels."""

from .pattern import anything, as_, comb, dot, hole, red
from .template import Matched, Template

__all__ = ["Matched", "Template", "anything", "as_", "comb", "dot", "hole", "red"]
