"""Chained contractions: a reduction over values that another contraction of the same kernel has just made.

A binding whose fields run over an operand that holds the result of an anchor asks for it: scores = Q K^T, then
m = max scores, l = sum exp(scores - m), o = sum exp(scores - m) V in one pass over the keys. What is here is the same
for every C-like backend: which operand is chained, and what a mask says of the part of the reduced axis that a row
sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..binding import Binding, Expr
from .expressions import leaves


def is_chained(binding: Binding) -> bool:
    """Does an operand of the fields hold the result of a contraction?"""
    return bool(binding.fields) and any(True for expr in binding.operands.values() for _ in leaves(expr, "acc"))


@dataclass(frozen=True)
class Chained:
    """A binding seen as two contractions.

    role    the chained operand, `scores` its expression over ("acc", inner)
    free    the scores without the outermost masks, of which `sees` speaks
    sees    (row axis, offset): a row sees element k of the reduced axis where k <= index along the row axis + offset
    """

    role: str
    inner: str
    scores: Expr
    free: Expr
    sees: tuple[tuple[str, str], ...]


def chained_of(binding: Binding) -> Chained:
    """Raises ValueError where several operands are chained, or none."""
    found = [(role, acc) for role, e in binding.operands.items() for acc in dict.fromkeys(leaves(e, "acc"))]
    if len(found) != 1:
        raise ValueError(f"{len(found)} operands are results of a contraction: want one")
    (role, (_, inner)), scores = found[0], binding.operands[found[0][0]]
    rows, columns = binding.groups.get("M", ()), binding.groups.get("K", ())
    sees: dict[tuple[str, str], None] = {}

    free = scores
    while free[0] == "mask" and free[2] in rows and (free[3],) == columns:
        sees[free[2], free[4]] = None
        free = free[1]
    return Chained(role, inner, scores, free, tuple(sees))
