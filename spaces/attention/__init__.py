"""attention: O = softmax(scale * Q K^T, masked) V for each batch and head.

Light: the textbook program and what the gates need are loaded when first called. Heads of queries that share heads of
keys and values are another op, `grouped_attention`, to which `kv_heads` leads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kernsearch import errors, space

if TYPE_CHECKING:
    import numpy as np

    from kernsearch.problem import Problem
    from kernsearch.program import Program

LAYOUTS = ("bhsd", "bshd")
CAUSAL = ("none", "bottom-right", "top-left")
LSE = ("no", "yes")
DTYPES = {"cpu": ("float32", "float64", "bfloat16"), "cuda": ("bfloat16", "float16", "float32")}


def parse_offset(value: Any) -> str:
    """'none', or a whole number as text: the place among the keys of the first query."""
    text = str(value).strip().lower()
    if text == "none":
        return text
    try:
        return str(int(text))
    except ValueError:
        raise errors.ProblemError(f"query_offset {value!r}: want none or a whole number") from None


OPTIONS = (
    space.OptionSpec(
        "layout",
        "bhsd",
        space.one_of("layout", LAYOUTS),
        "bhsd: heads before queries and keys; bshd: after them",
        LAYOUTS,
    ),
    space.OptionSpec(
        "causal",
        "none",
        space.one_of("causal", CAUSAL, true="bottom-right", false="none"),
        "which keys a query sees: bottom-right lets the last query see all, top-left the first one the first key",
        CAUSAL,
    ),
    space.OptionSpec(
        "lse", "no", space.one_of("lse", LSE, true="yes", false="no"), "yes: L = log sum exp of scores, too", LSE
    ),
    space.OptionSpec(
        "query_offset",
        "none",
        parse_offset,
        "causal: the place of the first query among the keys, in place of an alignment",
        ("none",),
    ),
)


SPELLINGS = (
    space.OptionSpec(
        "kv_heads", "", str, "heads of keys and values, of which the heads are a multiple: leads to grouped_attention"
    ),
    space.OptionSpec("return_lse", "", str, "as lse, by the name that ks.attention has for it"),
    space.OptionSpec("scale", "", str, "the number that a call gives: kernels take any, so records are for all"),
)


def sizes_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Queries, keys, inner and outer head dimension: the last four sizes of either op."""
    return shape[-4:]


def spelled(shape: tuple[int, ...], options: dict[str, Any]) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    """From what a person writes: the head dimension once where both are equal, and `kv_heads`.

    BxHxQxKxD is BxHxQxKxDxD; `kv_heads` n of H heads is grouped_attention Bxnx(H/n)xQxKxDxE; `return_lse` is `lse`, and
    `scale` any number. Raises ProblemError.
    """
    options = dict(options)
    if (lse := options.pop("return_lse", None)) is not None:
        if "lse" in options:
            raise errors.ProblemError(f"return_lse {lse!r} beside lse {options['lse']!r}: want one or the other")
        options["lse"] = lse
    _check_scale(options.pop("scale", None))
    given = options.pop("kv_heads", None)
    if len(shape) == 5:
        shape = (*shape, shape[-1])
    if given is None or len(shape) != 6:
        return "attention", shape, options
    heads = shape[1]
    try:
        kv_heads = int(str(given))
    except ValueError:
        raise errors.ProblemError(f"kv_heads {given!r}: want a whole number") from None
    if kv_heads < 1:
        raise errors.ProblemError(f"kv_heads {kv_heads}: want at least 1")
    if heads % kv_heads:
        raise errors.ProblemError(f"kv_heads {kv_heads}: {heads} heads are no multiple of it")
    if kv_heads == heads:
        return "attention", shape, options
    return "grouped_attention", (shape[0], kv_heads, heads // kv_heads, *shape[2:]), options


def _check_scale(scale: Any) -> None:
    try:
        fine = scale is None or math.isfinite(float(scale))
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise errors.ProblemError(f"scale {scale!r}: want a number")


def check(problem: Problem) -> None:
    """Raises ProblemError for an offset without a mask, or beside the other place of the mask."""
    if problem.option("query_offset") != "none" and problem.option("causal") == "none":
        raise errors.ProblemError("query_offset without causal: want causal=bottom-right, or no offset")
    if problem.option("query_offset") != "none" and problem.option("causal") == "top-left":
        raise errors.ProblemError("query_offset beside causal=top-left: want one or the other")


def _root(problem: Problem) -> Program:
    from .root import root

    check(problem)
    return root(problem)


def flops(problem: Problem) -> float:
    """Two products; of a causal problem those of the pairs that are seen, about."""
    *heads, q, k, d, e = problem.shape
    pairs = float(q * k)
    causal, first = problem.option("causal"), problem.option("query_offset")
    if causal != "none":
        off = int(str(first)) if first != "none" else k - q if causal == "bottom-right" else 0
        pairs = float(sum(min(k, max(0, row + off + 1)) for row in range(q)))
    for n in heads:
        pairs *= n
    return 2.0 * pairs * (d + e)


def bound(problem: Problem, inputs: Any, scalars: Any, reference: Any) -> dict[str, np.ndarray]:
    from .numerics import bound as allowed

    return allowed(problem, inputs, scalars, reference)


def textbook(problem: Problem, inputs: Any, scalars: Any) -> dict[str, np.ndarray]:
    from .numerics import textbook as plain

    return plain(problem, inputs, scalars)


def edges(problem: Problem, config: space.Config) -> tuple[tuple[int, ...], ...]:
    from .edges import edges as awkward

    return awkward(problem, config)


OP = space.Op(
    name="attention",
    letters=("B", "H", "Q", "K", "D", "E"),
    dtypes=DTYPES,
    options=OPTIONS,
    root=_root,
    flops=flops,
    bound=bound,
    inputs=space.InputSets(f"{__name__}.inputs"),
    edges=edges,
    textbook=textbook,
    spellings=SPELLINGS,
    spelled=spelled,
    what="O = softmax(scale * Q K^T, masked) V for each head",
    typical={
        "cpu": (
            (1, 8, 1024, 1024, 64, 64),
            (1, 8, 2048, 2048, 128, 128),
            (1, 32, 1, 4096, 128, 128),
            (8, 12, 128, 128, 64, 64),
        ),
        "cuda": (
            (4, 16, 4096, 4096, 128, 128),
            (8, 16, 2048, 2048, 64, 64),
            (1, 32, 1, 4096, 128, 128),
            (1, 16, 4096, 4096, 256, 256),
        ),
    },
    public=("attention",),
)
