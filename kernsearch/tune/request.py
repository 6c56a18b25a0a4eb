"""What is asked of a tuning run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import SpaceError, StorageError
from ..search import DEFAULT, SEARCHERS


@dataclass(frozen=True)
class Request:
    """How to search. The command line's `tune --help` says what each means."""

    trials: int = 200
    timeout: float = 120.0  # seconds
    searcher: str = DEFAULT
    seed: int = 0
    jobs: int | None = None
    fix: dict[str, int] = field(default_factory=dict)
    variant: str | None = None
    max_workspace: int | None = None  # bytes
    deterministic: bool = False
    warm_start: bool = True
    warm_from: tuple[str, ...] = ()  # recordings, records or studies to learn from, besides what is found by itself
    early_stop: float = 0.002  # share of the time; 0 never ends a search early
    storage: str | None = None
    compile_timeout: float = 20.0  # seconds
    run_timeout: float = 10.0  # seconds

    def check(self) -> None:
        """Raise SpaceError or StorageError for what makes no sense."""
        if self.searcher not in SEARCHERS:
            raise SpaceError(f"searcher {self.searcher!r}: want one of {', '.join(SEARCHERS)}")
        for name in ("trials", "timeout", "compile_timeout", "run_timeout"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise SpaceError(f"--{name.replace('_', '-')} {value}: want a number above 0")
        if not 0 <= self.early_stop < 1:
            raise SpaceError(f"--early-stop {self.early_stop}: want a share of the time, from 0 to below 1")
        if self.storage == "":
            raise StorageError("--storage '': want an Optuna storage URL or a path")
        if self.jobs is not None and self.jobs < 1:
            raise SpaceError(f"--jobs {self.jobs}: want at least 1")
        if self.max_workspace is not None and self.max_workspace < 0:
            raise SpaceError(f"--max-workspace {self.max_workspace}: want bytes, at least 0")

    @property
    def explores(self) -> bool:
        """It looks at a part of the space on purpose, so what it finds need not be the best there is."""
        return self.variant is not None or bool(self.fix)


def parse_fix(texts: Sequence[str]) -> dict[str, int]:
    """('BM=128',) -> {'BM': 128}. Raises SpaceError."""
    fixed: dict[str, int] = {}
    for text in texts:
        letter, equals, value = (part.strip() for part in text.partition("="))
        if not (letter and equals and value.isascii() and value.isdigit()):
            raise SpaceError(f"--fix {text!r}: want LETTER=VALUE with a whole number, like MR=8")
        if letter in fixed:
            raise SpaceError(f"--fix {text!r}: {letter}={fixed[letter]} is given too, want each letter once")
        fixed[letter] = int(value)
    return fixed
