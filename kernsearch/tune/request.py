"""Tuning: ask the search, compile, gate, measure, tell; then choose among the best and write the record.

`tune` is the public function, `run` the same with everything a command line wants to show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SpaceError

if TYPE_CHECKING:
    from ..records import Record


@dataclass(frozen=True)
class Request:
    """How to search. The command line's `tune --help` says what each means."""

    trials: int = 200
    timeout: float = 120.0  # seconds
    searcher: str = "tpe"
    seed: int = 0
    jobs: int | None = None
    fix: dict[str, int] = field(default_factory=dict)
    variant: str | None = None
    max_workspace: int | None = None  # bytes
    deterministic: bool = False
    warm_start: bool = True
    storage: str | None = None
    compile_timeout: float = 20.0  # seconds
    run_timeout: float = 10.0  # seconds

    def check(self) -> None:
        """Raise SpaceError for a number that makes no sense."""
        from ..search import SEARCHERS

        if self.searcher not in SEARCHERS:
            raise SpaceError(f"searcher {self.searcher!r}: want one of {', '.join(SEARCHERS)}")
        for name in ("trials", "timeout", "compile_timeout", "run_timeout"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise SpaceError(f"--{name.replace('_', '-')} {value}: want a number above 0")
        if self.jobs is not None and self.jobs < 1:
            raise SpaceError(f"--jobs {self.jobs}: want at least 1")
        if self.max_workspace is not None and self.max_workspace < 0:
            raise SpaceError(f"--max-workspace {self.max_workspace}: want bytes, at least 0")


@dataclass(frozen=True)
class Event:
    """Something to show: kind `note` is said once, `step` moves the progress line."""

    kind: str
    text: str
    done: int = 0
    total: int = 0
    rejected: int = 0
    best_s: float | None = None
    best_gflops: float = 0.0
    best_name: str = ""
    elapsed_s: float = 0.0
    eta_s: float = 0.0


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Result:
    """What a tuning run found and did."""

    record: Record
    path: Path
    counts: dict[str, Any]
    resumed: int
    elapsed_s: float
    interrupted: bool
    default_kept: bool  # nothing beat the default with confidence, so the default was recorded
    refusals: dict[str, int]  # "gate: reason" to how often

    def to_json(self) -> dict[str, Any]:
        """The object that `tune --json` prints."""
        record = self.record
        measured, default = record.measurement, record.default_measurement
        assert measured is not None and default is not None  # a tuned record holds both
        return {
            "problem": record.problem.key,
            "device": record.fingerprint.device,
            "variant": record.variant,
            "config": record.config,
            "derivation": record.derivation,
            "median_s": measured.median_s,
            "ci_s": list(measured.ci_s),
            "default_median_s": default.median_s,
            "tie": record.tie,
            "counts": self.counts,
            "record": str(self.path),
            "resumed": self.resumed,
            "elapsed_s": round(self.elapsed_s, 3),
            "default_kept": self.default_kept,
            "interrupted": self.interrupted,
            "refusals": self.refusals,
        }


def parse_fix(texts: Sequence[str]) -> dict[str, int]:
    """('BM=128',) -> {'BM': 128}. Raises SpaceError."""
    fixed: dict[str, int] = {}
    for text in texts:
        letter, equals, value = text.partition("=")
        try:
            fixed[letter.strip()] = int(value)
        except ValueError:
            equals = ""
        if not equals or not letter.strip():
            raise SpaceError(f"--fix {text!r}: want LETTER=VALUE with a whole number, like MR=8")
    return fixed


def tune(op: str, *, shape: Sequence[int], dtype: str | None = None, device: str = "auto",
         layout: str | None = None, epilogue: str | None = None, **how: Any) -> Record:  # fmt: skip
    """Search for the fastest correct kernel of a problem, record it, and return the record.

    shape       sizes in the op's order; gemm: (M, N, K)
    dtype       default: the backend's first (float32 on the CPU)
    layout, epilogue   of the op, when it has them; gemm: layout "nn", epilogue "none"
    how         trials=200, timeout=120.0 (seconds), seed=0, searcher="tpe", jobs, fix, variant, max_workspace (bytes),
                deterministic, warm_start, storage, compile_timeout, run_timeout (seconds); see `Request`. Further
                names are options of the op.

    Raises ProblemError, DeviceError, CompilerError, SpaceError, StorageError or CacheError for a request that cannot
    be met, and NothingSurvived when no candidate passes the gates.
    """
    return run(op, shape=shape, dtype=dtype, device=device, layout=layout, epilogue=epilogue, **how).record


def run(op: str, *, shape: Sequence[int], dtype: str | None = None, device: str = "auto",
        listener: Listener | None = None, **how: Any) -> Result:  # fmt: skip
    """As `tune`, telling `listener` how it goes, and returning counts and times beside the record."""
    started = time.monotonic()
    from .. import backends, registry
    from .session import Session

    names = {f for f in Request.__dataclass_fields__}
    request = Request(**{name: value for name, value in how.items() if name in names})
    request.check()
    backend, where = backends.resolve(device)
    options = {name: value for name, value in how.items() if name not in names}
    problem = registry.problem(op, shape, dtype, backend=where.backend, **options)
    tell = listener or (lambda event: None)
    with Session(registry.op(op), problem, backend, where, request, tell, started) as session:
        return session.run()
