"""grouped_attention: attention whose heads of queries share heads of keys and values, G with each of H.

Options, numerics and templates are those of attention, with one more axis of the queries and the output.
`kernsearch.attention` uses it where k has fewer heads than q; on the command line `attention --option kv_heads=4` names
a problem of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernsearch.spaces.attention import OP as ATTENTION
from kernsearch.spaces.attention import check

if TYPE_CHECKING:
    from kernsearch.problem import Problem
    from kernsearch.program import Program


def _root(problem: Problem) -> Program:
    from kernsearch.spaces.attention.root import root

    check(problem)
    return root(problem, grouped=True)


OP = replace(
    ATTENTION,
    name="grouped_attention",
    letters=("B", "H", "G", "Q", "K", "D", "E"),
    root=_root,
    spellings=(),
    spelled=None,
    what="attention of G heads of queries for each head of keys and values",
    typical={
        "cpu": ((1, 8, 4, 1024, 1024, 128, 128), (1, 8, 4, 1, 4096, 128, 128)),
        "cuda": (
            (4, 8, 4, 4096, 4096, 128, 128),
            (1, 8, 4, 1, 4096, 128, 128),
            (4, 8, 4, 2048, 2048, 64, 64),
            (1, 8, 4, 4096, 4096, 256, 256),
        ),
    },
    public=(),
)
