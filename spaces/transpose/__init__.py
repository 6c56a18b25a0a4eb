"""transpose: Y[n,m] = X[m,n]. Nothing is computed, so what counts is how memory is walked.

Light: the textbook program and what the gates need are loaded when first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernsearch import space

if TYPE_CHECKING:
    import numpy as np

    from kernsearch.problem import Problem
    from kernsearch.program import Program

DTYPES = {"cpu": ("float32", "float64", "bfloat16"), "cuda": ("float32", "float64", "float16", "bfloat16")}


def _root(problem: Problem) -> Program:
    """Y from X by one map, whose axes come in another order than those of what it reads."""
    from kernsearch.program.sketch import Sketch

    sketch = Sketch({"m": "M", "n": "N"}, acc=problem.dtype)
    x = sketch.input("X", "mn", problem.dtype)
    return sketch.build(Y=sketch.map("y", x, axes="nm"))


def _moves(problem: Problem) -> float:
    """An element that is moved counts as an operation."""
    m, n = problem.shape
    return float(m * n)


def _bytes(problem: Problem) -> float:
    from kernsearch.launch import itemsize

    return 2.0 * _moves(problem) * itemsize(problem.dtype)


def _exact(problem: Problem, inputs: Any, scalars: Any, reference: Any) -> dict[str, np.ndarray]:
    """Nothing is rounded, so nothing may be off."""
    from kernsearch.namespace import namespace

    return {name: namespace(array).zeros_like(array) for name, array in reference.items()}


def _textbook(problem: Problem, inputs: Any, scalars: Any) -> dict[str, np.ndarray]:
    import numpy as np

    m, n = problem.shape
    return {"Y": np.array([[inputs["X"][i, j] for i in range(m)] for j in range(n)], np.float64)}


def _edges(problem: Problem, config: space.Config) -> tuple[tuple[int, ...], ...]:
    """Single rows and columns, shapes around the tiles of the config, and last one of several ragged tiles."""
    tall, wide = (config.get(f"B{letter}", config.get(f"{letter}C", 32)) for letter in "MN")
    near = [(tall + d, wide + e) for d, e in ((-1, 0), (0, -1), (0, 0), (1, 0), (0, 1), (1, 1))]
    shapes = [(1, 1), (1, 257), (257, 1), (3, 5), (31, 33), (64, 64), *near]
    largest = (min(2 * tall + 3, 700), min(3 * wide + 5, 700))
    found = dict.fromkeys(shape for shape in shapes if min(shape) >= 1 and shape != largest and max(shape) <= 1100)
    return (*found, largest)


OP = space.Op(
    name="transpose",
    letters=("M", "N"),
    dtypes=DTYPES,
    options=(),
    root=_root,
    flops=_moves,
    useful_bytes=_bytes,
    bound=_exact,
    inputs=space.InputSets(f"{__name__}.inputs"),
    edges=_edges,
    textbook=_textbook,
    what="Y[n,m] = X[m,n], bit for bit",
    typical={"cpu": ((4096, 4096), (1000, 777)), "cuda": ((4096, 4096), (8192, 512), (1000, 777))},
    public=("transpose",),
)
