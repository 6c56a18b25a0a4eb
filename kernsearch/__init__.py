"""Search-based autotuner: rewrite rules derive kernel variants, a search on the real hardware and gates decide.

    import kernsearch as ks

    record = ks.tune("gemm", shape=(2304, 1544, 4096))     # search, gate, measure, keep the winner
    plan = ks.load("gemm", shape=(2304, 1544, 4096))       # the winner, or why there is none and the default
    c = plan(a, b)
    c = ks.matmul(a, b, bias=v, activation="gelu")         # the same, for NumPy arrays of any shape

Every name is loaded when first used: this import is light.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name to the module that defines it. The functions of an op live with the op.
_HOMES = {
    "CacheError": "kernsearch.errors",
    "CompilerError": "kernsearch.errors",
    "DeviceError": "kernsearch.errors",
    "KernsearchError": "kernsearch.errors",
    "NothingSurvived": "kernsearch.errors",
    "ProblemError": "kernsearch.errors",
    "Rejected": "kernsearch.errors",
    "Problem": "kernsearch.problem",
    "Record": "kernsearch.records",
    "load": "kernsearch.runtime",
    "get_threads": "kernsearch.runtime",
    "set_threads": "kernsearch.runtime",
    "tune": "kernsearch.tune",
}


def _home(name: str) -> str | None:
    """The module that defines a public name: a module of the engine, or the `public` of an op's folder."""
    if name in _HOMES:
        return _HOMES[name]
    from .registry import public

    return public().get(name)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or (home := _home(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from .registry import public

    return sorted({*globals(), *_HOMES, *public()})
