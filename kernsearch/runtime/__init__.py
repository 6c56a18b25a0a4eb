"""The runtime: from a problem to a plan that can be called. Needs no program, no rule and no search."""

from .plans import CallPlan, device_of, forget, get_threads, load, load_default, load_problem, set_threads, why

__all__ = [
    "CallPlan",
    "device_of",
    "forget",
    "get_threads",
    "load",
    "load_default",
    "load_problem",
    "set_threads",
    "why",
]
