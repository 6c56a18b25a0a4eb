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
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        ArrayError,
        CacheError,
        CompilerError,
        DeviceError,
        DtypeError,
        KernsearchError,
        NothingSurvived,
        ProblemError,
        Rejected,
    )
    from .problem import Problem
    from .records import Record
    from .runtime import get_threads, load, set_threads
    from .spaces.gemm.public import matmul
    from .tune import tune

__version__ = "0.1.0"

# A source tree has `spaces`, `kernels` and `cache` beside this package, an installation has them inside. Python started
# in the tree finds the tree's package first, whatever is installed.
_tree = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not os.path.isdir(os.path.join(__path__[0], "spaces")) and os.path.isdir(os.path.join(_tree, "spaces")):
    __path__.append(_tree)

__all__ = [
    "ArrayError",
    "CacheError",
    "CompilerError",
    "DeviceError",
    "DtypeError",
    "KernsearchError",
    "NothingSurvived",
    "Problem",
    "ProblemError",
    "Record",
    "Rejected",
    "get_threads",
    "load",
    "matmul",
    "set_threads",
    "tune",
]

# Public name to the module that defines it. The functions of an op live with the op: see `registry.public`.
_HOMES = {
    "ArrayError": "errors",
    "CacheError": "errors",
    "CompilerError": "errors",
    "DeviceError": "errors",
    "DtypeError": "errors",
    "KernsearchError": "errors",
    "NothingSurvived": "errors",
    "Problem": "problem",
    "ProblemError": "errors",
    "Record": "records",
    "Rejected": "errors",
    "get_threads": "runtime",
    "load": "runtime",
    "set_threads": "runtime",
    "tune": "tune",
}


class _Package(ModuleType):
    """`kernsearch.tune` is the function also after something has imported the module of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


# A fork waits until other threads have loaded what they use first: the child could never finish what they began.
_loading = threading.RLock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _is_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(f"{__name__}.{name}") is not None


def __getattr__(name: str) -> Any:
    with _loading:
        return _load(name)


def _load(name: str) -> Any:
    if name in _HOMES:
        home: str | None = f"{__name__}.{_HOMES[name]}"
    elif name.startswith("_") or _is_module(name):
        home = None
    else:
        from .registry import public

        home = public().get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from .registry import public

    return sorted({"__version__", *_HOMES, *public()})
