"""An op of your own, and a rule, in one file: E[m] = sum over n of scale * X[m,n]^2.

    kernsearch graph row_energy --shape 64x500 --space examples/row_energy.py --format dot
    kernsearch tune row_energy --shape 64x500 --space examples/row_energy.py --trials 8

The kernels are the generic ones. The rule pulls the scalar out of the sum, which gives more programs to choose from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kernsearch.problem import Problem
from kernsearch.program import Program, Site
from kernsearch.program.body import arg
from kernsearch.program.sketch import Sketch
from kernsearch.program.value import Field, Node, Use, fresh
from kernsearch.rules import rule
from kernsearch.space import InputSet, Op


def root(problem: Problem) -> Program:
    """The definition: one value after another, each a kernel of its own."""
    sketch = Sketch({"m": "M", "n": "N"}, acc="float32")
    x = sketch.input("X", "mn", "float32")
    squares = ("mul", sketch.scalar("scale"), ("mul", x, x))
    return sketch.build(E=sketch.reduce("energy", "sum", squares, over="n"))


def bound(problem: Problem, inputs: dict, scalars: dict, reference: dict) -> dict[str, np.ndarray]:
    """All terms have one sign, so the error is a share of the result."""
    depth = problem.shape[1]
    return {"E": (2 * np.sqrt(depth) + 4) * 2.0**-24 * np.abs(reference["E"]) + depth * 2.0**-149}


def normal(problem: Problem, rng: np.random.Generator) -> tuple[dict, dict]:
    return {"X": rng.standard_normal(problem.shape, np.float32)}, {"scale": 0.5}


def whole(problem: Problem, rng: np.random.Generator) -> tuple[dict, dict]:
    return {"X": rng.integers(-3, 4, problem.shape).astype(np.float32)}, {"scale": 2.0}


OP = Op(
    name="row_energy",
    what="E[m] = sum over n of scale * X[m,n]^2",
    letters=("M", "N"),
    dtypes={"cpu": ("float32",)},
    options=(),
    root=root,
    flops=lambda problem: 3.0 * problem.shape[0] * problem.shape[1],
    bound=bound,
    inputs=(InputSet("normal", normal), InputSet("whole numbers", whole, exact=True)),
    edges=lambda problem, config: ((1, 1), (3, 1), (1, 17), (13, 31), (67, 129)),
)


@rule(phase="algebra")
def factor_out_scalar(p: Program) -> Iterator[tuple[Site, Program]]:
    """A scalar that multiplies every term of a sum multiplies the sum once.

       E[m] = sum over n of scale * x[m,n]
    -> T[m] = sum over n of x[m,n]
       E[m] = scale * T[m]
    """
    for name in p.order:
        node = p.nodes[name]
        if node.op != "red" or node.slab or len(node.fields) != 1 or node.fields[0].monoid != "sum":
            continue
        field = node.fields[0]
        if field.body[0] == "mul" and field.body[1][0] == "scalar":
            total = replace(node, fields=(replace(field, body=field.body[2]),))
            after = fresh(p.nodes, f"{name}_scaled")
            scaled = Field(after, field.axes, None, ("mul", field.body[1], arg(0)))
            reader = Node("map", (scaled,), node.dtype, (Use(name, field.name),), kernel=max(p.members) + 1)
            moved = {(name, field.name): (after, after)}
            yield p.site(values=(name,), axes=node.over), p.swapped(moved, {name: total, after: reader})
