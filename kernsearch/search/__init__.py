"""What to try next: ask and tell over one durable study for each problem and device."""

from .search import SEARCHERS, Ask, Counts, Past, Search

__all__ = ["SEARCHERS", "Ask", "Counts", "Past", "Search"]
