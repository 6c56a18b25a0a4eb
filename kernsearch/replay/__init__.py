"""Searching recorded spaces: the searchers of `tune` against measurements that somebody else has paid for."""

from .formats import read
from .recording import Entry, Recording
from .restrict import read as restrictions
from .run import Budget, replay

__all__ = ["Budget", "Entry", "Recording", "read", "replay", "restrictions"]
