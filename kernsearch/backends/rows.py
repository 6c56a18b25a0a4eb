"""Rows: a reduction of a few fields over one axis, by a kernel that keeps what it has read of a row.

A binding with operands and fields asks for it: the template's pattern names what the reduction reads. A kernel fetches
the operands of an element once, computes the fields one after the other from what it keeps, and hands the kept values
to the expressions of the outputs. What is here is the same for every C-like backend: which parts of an expression are
kept values, and whether the last field's term may take their place, as e = exp(x - m) may in softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..binding import Binding, Expr, Root
from .expressions import LEAVES, inverted, leaves

KEPT = "kept."  # accumulators of that prefix are values that the kernel keeps of an element


@dataclass(frozen=True)
class Term:
    """One field: `name` = sum or max over the row of `value`, an expression over kept values and earlier fields."""

    name: str
    monoid: str
    value: Expr


@dataclass(frozen=True)
class Rows:
    """A binding seen as rows.

    axis      the reduced axis, along a row
    groups    of the view: S slab, M the row, N the position in it
    operands  role -> the expression that is fetched and kept
    terms     the fields, in order
    outputs   those that have an element for each of the row, over kept values and fields
    states    those that have one for the whole row
    settles   what is kept of the first operand after the last field is that field's term: the outputs want no more
    online    the fields are m = max x and l = sum exp(x - m), which may be found together and refer to any maximum on
              the way: outputs of terms that have settled are those terms over l
    """

    axis: str
    groups: Mapping[str, tuple[str, ...]]
    operands: Mapping[str, Expr]
    terms: tuple[Term, ...]
    outputs: tuple[Root, ...]
    states: tuple[Root, ...]
    settles: bool

    @property
    def online(self) -> bool:
        if [(term.name, term.monoid) for term in self.terms] != [("m", "max"), ("l", "sum")]:
            return False
        peak, total = (term.value for term in self.terms)
        over = ("mul", ("acc", KEPT + next(iter(self.operands))), ("inverse", ("acc", "l")))
        scaled = not self.settles or all(root.value == over for root in self.outputs)
        return scaled and total == ("exp", ("shift", peak, ("acc", "m")))


def is_rows(binding: Binding) -> bool:
    return bool(binding.operands) and bool(binding.fields)


def rows_of(binding: Binding) -> Rows:
    """Raises ValueError for a reduction over several axes."""
    reduced = binding.groups.get("K", ())
    if len(reduced) != 1:
        raise ValueError(f"a row has {len(reduced)} axes: want one")
    (axis,) = reduced
    kept = {expr: ("acc", KEPT + role) for role, expr in binding.operands.items()}
    terms = tuple(Term(f.name, f.monoid, _own(_swapped(f.body, kept))) for f in binding.fields)
    outputs = [root for root in binding.roots if axis in root.axes]
    values = [_swapped(root.value, kept) for root in outputs]
    role = next(iter(binding.operands))
    settled = [_swapped(value, {terms[-1].value: ("acc", KEPT + "term")}) for value in values]
    uses = {leaf[1] for value in settled for leaf in leaves(value, "acc") if leaf[1].startswith(KEPT)}
    settles = uses == {KEPT + "term"}
    if settles:
        values = [_swapped(value, {("acc", KEPT + "term"): ("acc", KEPT + role)}) for value in settled]

    def shared(expr: Expr) -> bool:
        return not _varies(expr, axis)

    rows = tuple(a for letter in "BM" for a in binding.groups.get(letter, ()))
    return Rows(
        axis=axis,
        groups={"S": tuple(binding.slabs.values()), "M": rows, "N": (axis,)},
        operands=binding.operands,
        terms=terms,
        outputs=tuple(
            Root(root.array, root.axes, inverted(value, shared)) for root, value in zip(outputs, values, strict=True)
        ),
        states=tuple(root for root in binding.roots if axis not in root.axes),
        settles=settles,
    )


def _swapped(expr: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with parts replaced, the largest first."""
    if expr in table:
        return table[expr]
    if expr[0] in LEAVES:
        return expr
    return tuple(_swapped(part, table) if isinstance(part, tuple) else part for part in expr)


def _own(expr: Expr) -> Expr:
    """A body with the fields that it looks at named as outputs name them."""
    if expr[0] == "field":
        return ("acc", expr[1])
    if expr[0] in LEAVES:
        return expr
    return tuple(_own(part) if isinstance(part, tuple) else part for part in expr)


def _varies(expr: Expr, axis: str) -> bool:
    """Does the value differ between elements of a row?"""
    kept = any(leaf[1].startswith(KEPT) for leaf in leaves(expr, "acc"))
    return kept or any(axis in leaf[2] for leaf in leaves(expr, "load"))
