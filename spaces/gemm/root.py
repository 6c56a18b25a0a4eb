"""The textbook program of gemm.

    D = act(alpha * op(A) op(B) + bias + beta * C)

Accumulate, scale by alpha, add the bias (one value a column), add beta * C, apply the activation; each step is a value
of its own, and an epilogue names the steps it wants. `none` is alpha * op(A) op(B). alpha and beta are run-time
scalars; beta = 0 does not look at C.
"""

from __future__ import annotations

from kernsearch.problem import Problem
from kernsearch.program import Program
from kernsearch.program.body import scalar
from kernsearch.program.sketch import Handle, Sketch

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
ACCUMULATE = {"float64": "float64"}  # everything else accumulates in float32


def root(problem: Problem, batch: str = "") -> Program:
    """The textbook program. Inputs A, B, and bias and C where the epilogue wants them; output D.

    `batch` is the size letter of a leading axis b that all but the bias have, "" for none.

    Options: `layout`, letters n or t, first A then B: t means that the operand is stored transposed, so with "tn" the
    caller's A has shape (K, M); `epilogue`, "none" or a comma list of bias, residual and an activation.
    """
    layout = str(problem.option("layout"))
    steps = set(str(problem.option("epilogue")).split(",")) - {"none"}
    lead, extents = ("b", {"b": batch}) if batch else ("", {})
    sketch = Sketch({**extents, "m": "M", "n": "N", "k": "K"}, acc=ACCUMULATE.get(problem.dtype, "float32"))
    a = sketch.input("A", lead + ("mk" if layout[0] == "n" else "km"), problem.dtype)
    b = sketch.input("B", lead + ("kn" if layout[1] == "n" else "nk"), problem.dtype)

    values: list[tuple[str, object]] = [("scaled", lambda x: ("mul", scalar("alpha"), x))]
    if "bias" in steps:
        bias = sketch.input("bias", "n", problem.dtype)
        values.append(("biased", lambda x: ("add", x, bias)))
    if "residual" in steps:
        c = sketch.input("C", lead + "mn", problem.dtype)
        values.append(("summed", lambda x: ("add", x, ("weigh", scalar("beta"), c))))
    for name in ACTIVATIONS:
        if name in steps:
            values.append(("activated", lambda x, name=name: (name, x)))

    value: Handle = sketch.dot("acc", a, b, over="k")
    for position, (name, step) in enumerate(values):
        last = position == len(values) - 1
        value = sketch.map(name, step(value), axes=lead + "mn", dtype=problem.dtype if last else "")  # type: ignore[operator]
    return sketch.build(D=value)
