"""Textbook programs of softmax, forward and backward: one value after another.

    x = where(scale * X + bias, mask)          each only where the problem has it
    m = max over n of x                        rowmax
    shifted = x - m
    e = exp(shifted)
    l = sum over n of e                        rowsum
    Y = e / l                                  or, for log: shifted - log l

    DX = Y * (DY - sum over n of DY * Y)       or, for log: DY - exp(Y) * sum over n of DY

A row that is -inf all over, as one that is masked all over, gives zeros; -inf for log. `scale` is a run-time scalar.
"""

from __future__ import annotations

from kernsearch.problem import Problem
from kernsearch.program import Program
from kernsearch.program.sketch import Handle, Sketch

STATISTICS = {"float64": "float64"}  # dtype of maxima and sums; float32 for everything else


def _sketch(problem: Problem) -> tuple[Sketch, str]:
    """The sketch, and the axes of arrays in the order of the caller's dimensions."""
    sketch = Sketch({"m": "M", "n": "N"}, acc=STATISTICS.get(problem.dtype, "float32"))
    return sketch, "mn" if problem.option("layout") == "n" else "nm"


def forward(problem: Problem) -> Program:
    """Y from X, of shape (M, N), or (N, M) where `layout` is t; with `bias` and `mask` alike if there are.

    Options: `result` softmax or log; `prologue` none, or a comma list of scale, bias and mask.
    """
    sketch, axes = _sketch(problem)
    steps = set(str(problem.option("prologue")).split(","))
    x: Handle = sketch.input("X", axes, problem.dtype)
    if "scale" in steps:
        x = sketch.map("scaled", ("mul", sketch.scalar("scale"), x), axes=axes)
    if "bias" in steps:
        x = sketch.map("biased", ("add", x, sketch.input("bias", axes, problem.dtype)), axes=axes)
    if "mask" in steps:
        x = sketch.map("masked", ("where", x, sketch.input("mask", axes, "uint8")), axes=axes)
    m = sketch.reduce("m", "max", x, over="n")
    shifted = sketch.map("shifted", ("shift", x, m), axes=axes)
    e = sketch.map("e", ("exp", shifted), axes=axes)
    total = sketch.reduce("l", "sum", e, over="n")
    value = ("normalize", e, total) if problem.option("result") == "softmax" else ("shift", shifted, ("log", total))
    return sketch.build(Y=sketch.map("y", value, axes=axes, dtype=problem.dtype))


def backward(problem: Problem) -> Program:
    """DX from DY and Y, the output of the forward pass; shapes and layout as in `forward`."""
    sketch, axes = _sketch(problem)
    dy, y = (sketch.input(name, axes, problem.dtype) for name in ("DY", "Y"))
    if problem.op == "softmax_backward":
        total = sketch.dot("total", dy, y, over="n")
        value: tuple[object, ...] = ("mul", y, ("sub", dy, total))
    else:
        total = sketch.reduce("total", "sum", dy, over="n")
        value = ("sub", dy, ("mul", ("exp", y), total))
    return sketch.build(DX=sketch.map("dx", value, axes=axes, dtype=problem.dtype))
