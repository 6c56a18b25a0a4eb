"""bmm: D = activation(alpha * op(A) @ op(B) + beta * C + bias) for a batch of matrices in one launch.

Options, numerics and templates are those of gemm, with one more axis; the bias is one row for all matrices.
`kernsearch.matmul` uses it for leading dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernsearch.spaces.gemm import OP as GEMM

if TYPE_CHECKING:
    from kernsearch.problem import Problem
    from kernsearch.program import Program
    from kernsearch.space import Config


def _root(problem: Problem) -> Program:
    from kernsearch.spaces.gemm.root import root

    return root(problem, batch="BATCH")


def _flops(problem: Problem) -> float:
    batch, *sizes = problem.shape
    return batch * GEMM.flops(problem.at(tuple(sizes)))


def _edges(problem: Problem, config: Config) -> tuple[tuple[int, ...], ...]:
    """Those of gemm, in batches of three, one and two, the last one of two."""
    *shapes, largest = GEMM.edges(problem.at(problem.shape[1:]), config)
    return (*((3 - i % 3, *shape) for i, shape in enumerate(shapes)), (2, *largest))


OP = replace(
    GEMM,
    name="bmm",
    letters=("BATCH", "M", "N", "K"),
    root=_root,
    flops=_flops,
    edges=_edges,
    what="D[b] = activation(alpha * op(A[b]) @ op(B[b]) + beta * C[b] + bias), one bias for all b",
    typical={
        "cpu": ((8, 512, 512, 512),),
        "cuda": ((8, 512, 512, 512), (128, 64, 64, 64), (32, 2048, 2048, 128), (32, 1, 4096, 128)),
    },
    public=(),
)
