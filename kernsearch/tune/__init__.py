"""Tuning a problem: the request, the run, the finals."""

from .request import Event, Request, Result, parse_fix, run, tune

__all__ = ["Event", "Request", "Result", "parse_fix", "run", "tune"]
