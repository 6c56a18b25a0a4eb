"""The textbook program of attention: one value after another.

    s = sum over d of Q * K
    x = scale * s, masked where causal          -inf past the last key that a query sees
    m = max over k of x
    e = exp(x - m)
    l = sum over k of e
    p = e / l
    O = sum over k of p * V
    L = m + log l                               where `lse` wants it

A query that sees no key gives zeros, and -inf for L. `scale` is a run-time scalar. Grouped: the `g` query heads of a
group read the same head of K and V, which lack that axis.
"""

from __future__ import annotations

from kernsearch.problem import Problem
from kernsearch.program import Program
from kernsearch.program.sketch import Handle, Sketch

ACCUMULATE = {"float64": "float64"}  # everything else accumulates in float32


def root(problem: Problem, *, grouped: bool = False) -> Program:
    """O, and L in the accumulation's dtype, from Q, K and V.

    Q of shape (B, H, Q, D), with `grouped` (B, H, G, Q, D); K (B, H, K, D), V (B, H, K, E), O like Q with E, L like O
    without its last axis. Options: `layout` bshd has the heads after the queries or keys in all but L; `causal`, which
    keys a query sees (see `offset`); `lse`.
    """
    extents = {"b": "B", "h": "H", "g": "G", "q": "Q", "k": "K", "d": "D", "e": "E"}
    heads = "hg" if grouped else "h"
    if not grouped:
        del extents["g"]
    acc = ACCUMULATE.get(problem.dtype, "float32")
    sketch = Sketch(extents, acc=acc)

    def array(heads: str, length: str, dim: str) -> str:
        return "b" + (heads + length if problem.option("layout") == "bhsd" else length + heads) + dim

    def given(name: str, axes: str) -> Handle:
        return sketch.input(name, axes, problem.dtype)

    q, k, v = given("Q", array(heads, "q", "d")), given("K", array("h", "k", "d")), given("V", array("h", "k", "e"))
    rows = "b" + heads + "q"
    s = sketch.reduce("s", "sum", ("mul", q, k), over="d", axes=rows + "k")
    x = sketch.map("scaled", ("mul", sketch.scalar("scale"), s), axes=rows + "k")
    if (off := offset(problem)) is not None:
        x = sketch.map("masked", ("mask", x, "q", "k", off), axes=rows + "k")
    m = sketch.reduce("m", "max", x, over="k", axes=rows)
    e = sketch.map("e", ("exp", sketch.map("shifted", ("shift", x, m), axes=rows + "k")), axes=rows + "k")
    total = sketch.reduce("l", "sum", e, over="k", axes=rows)
    p = sketch.map("p", ("normalize", e, total), axes=rows + "k", dtype=problem.dtype)
    o = sketch.reduce("o", "sum", ("mul", p, v), over="k", axes=array(heads, "q", "e"))
    if problem.dtype != acc:
        o = sketch.map("stored", o, axes=o.axes, dtype=problem.dtype)
    outs = {"O": o}
    if problem.option("lse") == "yes":
        outs["L"] = sketch.map("logsum", ("add", m, ("log", total)), axes=rows)
    return sketch.build(**outs)


def offset(problem: Problem) -> str | None:
    """How far past its own place among the keys a query sees: key k where k <= q + offset. None: all of them."""
    causal, first = problem.option("causal"), problem.option("query_offset")
    if causal == "none":
        return None
    if first != "none":
        return str(first)
    return "K - Q" if causal == "bottom-right" else "0"
