"""Templates: what one kernel source implements, as patterns, and matching them against kernels."""

from .folder import in_folder
from .pattern import anything, as_, comb, dot, hole, red, turned
from .template import Launch, Matched, Template, TileMap

__all__ = [
    "Launch", "Matched", "Template", "TileMap", "anything", "as_", "comb", "dot", "hole", "in_folder", "red", "turned",
]  # fmt: skip
