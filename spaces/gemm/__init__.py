"""gemm: D = activation(alpha * op(A) @ op(B) + beta * C + bias), op transposing or not.

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

LAYOUTS = ("nn", "nt", "tn", "tt")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
EPILOGUES = tuple(
    ",".join(filter(None, steps)) or "none"
    for steps in itertools.product(("", "bias"), ("", *ACTIVATIONS), ("", "residual"))
)


def parse_layout(value: Any) -> str:
    """One letter for A, one for B: n as is, t stored transposed."""
    if str(value).lower() not in LAYOUTS:
        raise errors.ProblemError(f"layout {value!r}: want one of {', '.join(LAYOUTS)}")
    return str(value).lower()


def parse_epilogue(value: Any) -> str:
    """'residual, GELU,bias' -> 'bias,gelu,residual': a comma list in one order, or 'none'."""
    like = f"want none, or a comma list of bias, one of {'|'.join(ACTIVATIONS)}, residual"
    words = [word.strip().lower() for word in ("none" if value is None else str(value)).split(",")]
    if words == ["none"]:
        return "none"
    if unknown := [word for word in words if word not in ("bias", "residual", *ACTIVATIONS)]:
        raise errors.ProblemError(f"epilogue {value!r}: {unknown[0]!r} is unknown; {like}")
    if len(set(words)) != len(words) or sum(word in ACTIVATIONS for word in words) > 1:
        raise errors.ProblemError(f"epilogue {value!r}: {like}")
    return ",".join(word for word in ("bias", *ACTIVATIONS, "residual") if word in words)


def _root(problem: Problem) -> Program:
    from .root import root

    return root(problem)


def _flops(problem: Problem) -> float:
    m, n, k = problem.shape
    return 2.0 * m * n * k


def _bound(problem: Problem, inputs: Any, scalars: Any, reference: Any) -> dict[str, np.ndarray]:
    from .numerics import bound

    return bound(problem, inputs, scalars, reference)


def _textbook(problem: Problem, inputs: Any, scalars: Any) -> dict[str, np.ndarray]:
    from .numerics import textbook

    return textbook(problem, inputs, scalars)


def _identity(problem: Problem, inputs: Any, scalars: Any, outputs: Any, rng: Any) -> float | None:
    from .numerics import identity

    return identity(problem, inputs, scalars, outputs, rng)


def _edges(problem: Problem, config: space.Config) -> tuple[tuple[int, ...], ...]:
    from .numerics import edges

    return edges(problem, config)


_TYPICAL_CPU = (
    (64, 64, 64),
    (1024, 1024, 1024),
    (4, 2048, 2048),
    (2048, 4, 2048),
    (1, 4096, 4096),
    (4096, 1, 4096),
    (64, 4096, 4096),
    (4096, 64, 4096),
    (128, 128, 4096),
    (16, 16, 16),
)
_TYPICAL_CUDA = (
    (4096, 4096, 4096),
    (256, 256, 256),
    (16, 4096, 4096),
    (4096, 64, 4096),
    (512, 512, 65536),
    (64, 64, 64),
    (1, 4096, 4096),
    (128, 4096, 4096),
    (1000, 1000, 1000),
    (2304, 1544, 4096),
    (256, 16384, 2048),
    (8192, 1024, 8192),
    (8192, 8192, 8192),
)

OP = space.Op(
    name="gemm",
    letters=("M", "N", "K"),
    dtypes={"cpu": ("float32", "float64", "bfloat16"), "cuda": ("bfloat16", "float16", "float32")},
    options=(
        space.OptionSpec(
            "layout", "nn", parse_layout, "a letter for A and one for B: n as is, t stored transposed", LAYOUTS
        ),
        space.OptionSpec(
            "epilogue", "none", parse_epilogue, "none, or a list of bias, an activation, residual", EPILOGUES
        ),
    ),
    root=_root,
    flops=_flops,
    bound=_bound,
    inputs=space.InputSets(f"{__name__}.numerics"),
    edges=_edges,
    textbook=_textbook,
    identity=_identity,
    what="D = activation(alpha * op(A) @ op(B) + beta * C + bias)",
    typical={"cpu": _TYPICAL_CPU, "cuda": _TYPICAL_CUDA},
    public=("matmul",),
)
