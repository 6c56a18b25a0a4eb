"""What to try next: ask and tell over one durable study for each problem and device.

Optuna is imported with the first use of `Search`, not with this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcome import Ask, Counts, Past
    from .search import Search

SEARCHERS = ("expected", "tpe", "genetic", "local", "random", "exhaustive")
DEFAULT = SEARCHERS[0]

__all__ = ["DEFAULT", "SEARCHERS", "Ask", "Counts", "Past", "Search"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import search

    return getattr(search, name)
