"""softmax_backward: DX = Y * (DY - rowsum(DY * Y)), the gradient of softmax's input.

Layouts, awkward shapes and templates are those of softmax.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernsearch.spaces.softmax import LAYOUT
from kernsearch.spaces.softmax import OP as SOFTMAX

from kernsearch.space import InputSets

if TYPE_CHECKING:
    import numpy as np

    from kernsearch.problem import Problem
    from kernsearch.program import Program


def _root(problem: Problem) -> Program:
    from kernsearch.spaces.softmax.root import backward

    return backward(problem)


def _flops(problem: Problem) -> float:
    m, n = problem.shape
    return 4.0 * m * n


def _bound(problem: Problem, inputs: Any, scalars: Any, reference: Any) -> dict[str, np.ndarray]:
    from kernsearch.spaces.softmax.backward import bound

    return bound(problem, inputs, scalars, reference)


def _textbook(problem: Problem, inputs: Any, scalars: Any) -> dict[str, np.ndarray]:
    from kernsearch.spaces.softmax.backward import textbook

    return textbook(problem, inputs, scalars)


OP = replace(
    SOFTMAX,
    name="softmax_backward",
    options=(LAYOUT,),
    root=_root,
    flops=_flops,
    bound=_bound,
    inputs=InputSets("kernsearch.spaces.softmax.backward"),
    textbook=_textbook,
    what="DX = Y * (DY - rowsum(DY * Y)) along each row",
    public=("softmax_backward",),
)
