"""The model: a roofline over measured ceilings, which seeds the search and picks the default candidate."""

from .ranking import Prediction, alike, foremost, predict, predict_all, rank

__all__ = ["Prediction", "alike", "foremost", "predict", "predict_all", "rank"]
