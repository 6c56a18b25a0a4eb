"""What a matched kernel asks of its template: which arrays, which axes, which expressions fill the holes.

A binding is the seam between derivation and code generation. It is plain data: a backend turns it, a config and a
device into a `KernelPlan` without knowing programs or rules; derivation makes it without knowing any backend.

Expressions (`Expr`) are nested tuples:

    ("load", array, (axis, ...))   element of an array at the current indices of those axes, in the array's axis order
    ("acc", name)                  a reduction's result: a field of the anchor, named by the template's pattern
    ("scalar", name)               a run-time scalar of the call (alpha)
    ("const", 1.0)
    (function, Expr, ...)          a function of `meaning.FUNCTIONS`: add mul sub div max exp shift normalize gelu ...
    ("mask", Expr, q, k, off)      Expr where k <= q + off, else -inf; off is a size name or expression
"""

from __future__ import annotations

from dataclasses import dataclass, field

Expr = tuple


@dataclass(frozen=True)
class Array:
    """An array that the kernel reads or writes: an operand of the problem or a value between kernels."""

    name: str
    dtype: str
    axes: tuple[str, ...]  # program axes, in the dimension order of the caller's array (or of the workspace buffer)


@dataclass(frozen=True)
class Field:
    """One field of a generic reduction: `value = monoid over the reduced axes of body`."""

    name: str
    axes: tuple[str, ...]
    monoid: str  # "sum" | "max"
    body: Expr  # over loads and ("field", earlier name)


@dataclass(frozen=True)
class Root:
    """One output of the kernel: `array[axes] = value`."""

    array: str
    axes: tuple[str, ...]
    value: Expr


@dataclass(frozen=True)
class Binding:
    """How one kernel of a program fills one template.

    groups    axis letters of the template to program axes, in order: {"M": ("m",), "N": ("n",), "K": ("k",)}
    extents   program axis to its extent, an expression of size names (and of parameter letters: "ceil(K, SPLIT)")
    slabs     reduced axis to its slab axis when the reduction is split: {"k": "s"}; slab s covers
              [s * ceil(K, SPLIT), min(K, (s + 1) * ceil(K, SPLIT)))
    operands  role in the template ("A", "B", ...) to the expression that fills its hole
    fields    the anchor's fields, for generic reductions
    roots     outputs with the expressions of their holes
    arrays    every array named above
    scalars   names of run-time scalars used, in a fixed order
    acc       accumulation dtype
    """

    template: str
    groups: dict[str, tuple[str, ...]]
    extents: dict[str, str]
    operands: dict[str, Expr]
    roots: tuple[Root, ...]
    arrays: tuple[Array, ...]
    scalars: tuple[str, ...]
    acc: str
    fields: tuple[Field, ...] = ()
    slabs: dict[str, str] = field(default_factory=dict)
