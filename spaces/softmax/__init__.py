"""softmax: Y = softmax(scale * X + bias, masked) along the rows of a matrix, or its logarithm.

Light: the textbook program and what the gates need are loaded when first called.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kernsearch import errors, space

if TYPE_CHECKING:
    import numpy as np

    from kernsearch.problem import Problem
    from kernsearch.program import Program

LAYOUTS = ("n", "t")
RESULTS = ("softmax", "log")
STEPS = ("scale", "bias", "mask")
PROLOGUES = tuple(
    ",".join(filter(None, steps)) or "none" for steps in itertools.product(("", "scale"), ("", "bias"), ("", "mask"))
)
DTYPES = {"cpu": ("float32", "float64", "bfloat16"), "cuda": ("bfloat16", "float16", "float32", "float64")}


def parse_prologue(value: Any) -> str:
    """'mask, Scale' -> 'scale,mask': a comma list in one order, or 'none'."""
    like = f"want none, or a comma list of {', '.join(STEPS)}"
    words = [word.strip().lower() for word in ("none" if value is None else str(value)).split(",")]
    if words == ["none"]:
        return "none"
    if unknown := [word for word in words if word not in STEPS]:
        raise errors.ProblemError(f"prologue {value!r}: {unknown[0]!r} is unknown; {like}")
    if len(set(words)) != len(words):
        raise errors.ProblemError(f"prologue {value!r}: {like}, each once")
    return ",".join(word for word in STEPS if word in words)


LAYOUT = space.OptionSpec(
    "layout", "n", space.one_of("layout", LAYOUTS), "n: rows are contiguous; t: columns are", LAYOUTS
)
RESULT = space.OptionSpec(
    "result", "softmax", space.one_of("result", RESULTS), "softmax, or log for its logarithm", RESULTS
)


def _root(problem: Problem) -> Program:
    from .root import forward

    return forward(problem)


def _flops(problem: Problem) -> float:
    """A maximum, a difference, an exponential, a sum and a quotient for each element."""
    m, n = problem.shape
    return 5.0 * m * n


def _bound(problem: Problem, inputs: Any, scalars: Any, reference: Any) -> dict[str, np.ndarray]:
    from .numerics import bound

    return bound(problem, inputs, scalars, reference)


def _textbook(problem: Problem, inputs: Any, scalars: Any) -> dict[str, np.ndarray]:
    from .numerics import textbook

    return textbook(problem, inputs, scalars)


def _edges(problem: Problem, config: space.Config) -> tuple[tuple[int, ...], ...]:
    from .edges import edges

    return edges(problem, config)


TYPICAL = {
    "cpu": ((4096, 4096), (65536, 128), (8, 262144), (1823, 781), (1, 131072)),
    "cuda": ((4096, 4096), (65536, 128), (128, 262144), (8192, 32768), (16384, 1024), (16, 4096), (1, 131072)),
}

OP = space.Op(
    name="softmax",
    letters=("M", "N"),
    dtypes=DTYPES,
    options=(
        LAYOUT,
        RESULT,
        space.OptionSpec(
            "prologue",
            "none",
            parse_prologue,
            "none, or a list of scale, bias, mask: what happens to X first",
            PROLOGUES,
        ),
    ),
    root=_root,
    flops=_flops,
    bound=_bound,
    inputs=space.InputSets(f"{__name__}.inputs"),
    edges=_edges,
    textbook=_textbook,
    what="Y = softmax(scale * X + bias, masked) along each row, or its logarithm",
    typical=TYPICAL,
    public=("softmax", "log_softmax"),
)
