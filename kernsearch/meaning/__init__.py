"""What programs mean: whole in float64, the ground truth, and tile by tile as their annotations say."""

from .whole import interpret, keeps_whole

__all__ = ["interpret", "keeps_whole"]
