"""Tuning a problem, for callers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import backends, registry
from ..records import Record
from .finals import conclude
from .outcome import Listener, Result
from .request import Request
from .session import Session


def tune(
    op: str,
    *,
    shape: Sequence[int],
    dtype: str | None = None,
    device: str = "auto",
    layout: str | None = None,
    epilogue: str | None = None,
    **how: Any,
) -> Record:
    """Search for the fastest correct kernel of a problem, record it, and return the record.

    shape       sizes in the op's order; gemm: (M, N, K)
    dtype       default: the backend's first (float32 on the CPU)
    layout, epilogue   of the op, when it has them; gemm: layout "nn", epilogue "none"
    how         trials=200, timeout=120.0 (seconds), seed=0, searcher="expected", jobs, fix, variant, max_workspace
                (bytes), deterministic, warm_start, warm_from, early_stop, storage, compile_timeout, run_timeout
                (seconds); see `Request`. `space` is a Python file with more ops or templates. Further names are options
                of the op.

    Raises ProblemError, DeviceError, CompilerError, SpaceError, StorageError or CacheError for a request that cannot
    be met, and NothingSurvived when no candidate passes the gates.
    """
    return run(op, shape=shape, dtype=dtype, device=device, layout=layout, epilogue=epilogue, **how).record


def run(
    op: str,
    *,
    shape: Sequence[int],
    dtype: str | None = None,
    device: str = "auto",
    space: str | Path | None = None,
    listener: Listener = lambda event: None,
    **how: Any,
) -> Result:
    """As `tune`, telling `listener` how it goes, and returning counts and times beside the record."""
    names = Request.__dataclass_fields__
    request = Request(**{name: value for name, value in how.items() if name in names})
    request.check()
    if space is not None:
        registry.use_file(space)
    backend, where = backends.resolve(device)
    options = {name: value for name, value in how.items() if name not in names}
    problem = registry.problem(op, shape, dtype, backend=where.backend, **options)
    with Session(registry.op(problem.op), problem, backend, where, request, listener) as session:
        session.explore()
        return conclude(session)
