"""Tuning a problem: the request, what there is to try, the run over it, and the finals."""

from .outcome import Event, Result
from .request import Request, parse_fix
from .run import run, tune

__all__ = ["Event", "Request", "Result", "parse_fix", "run", "tune"]
