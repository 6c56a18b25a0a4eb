"""Expressions of a binding as C text, for every backend whose kernels are C-like.

A backend says how each leaf is spelled (`Spelling`); operators and function calls are the same everywhere: functions
of `meaning.FUNCTIONS` other than the four operators become calls of `ks_<function>`, which the backend's common
headers define. exp(shift(x, m)) is `ks_exp_of_shift(x, m)`, whose argument is 0 at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import Match, sub

from ..binding import Expr, Field

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
LEAVES = frozenset({"load", "acc", "field", "scalar", "const"})


@dataclass(frozen=True)
class Spelling:
    """How a backend writes leaves.

    load(array, axes), acc(name), scalar(name), const(value) give text;
    mask(text, q, k, off) gives `text` where k <= q + off, else -inf;
    weigh(name, text) is the scalar of that name times `text`, and 0 without evaluating `text` when the scalar is 0.
    """

    load: Callable[[str, tuple[str, ...]], str]
    acc: Callable[[str], str]
    scalar: Callable[[str], str]
    const: Callable[[float], str]
    mask: Callable[[str, str, str, str], str]
    weigh: Callable[[str, str], str]


def spell(expr: Expr, how: Spelling) -> str:
    """The expression as C text."""
    match expr[0]:
        case "load":
            return how.load(expr[1], expr[2])
        case "acc" | "field":
            return how.acc(expr[1])
        case "scalar":
            return how.scalar(expr[1])
        case "const":
            return how.const(expr[1])
        case "mask":
            return how.mask(spell(expr[1], how), *expr[2:])
        case "weigh" if expr[1][0] == "scalar":
            return how.weigh(expr[1][1], spell(expr[2], how))
    name, arguments = expr[0], [spell(e, how) for e in expr[1:]]
    if name == "exp" and expr[1][0] == "shift":
        name, arguments = "exp_of_shift", [spell(e, how) for e in expr[1][1:]]
    if name not in OPERATORS:
        return f"ks_{name}({', '.join(arguments)})"
    return f"({f' {OPERATORS[name]} '.join(arguments)})"


def leaves(expr: Expr, kind: str) -> Iterator[Expr]:
    """All leaves of one kind ("load", "acc", "field", "scalar", "const"), left to right, repeats included."""
    if expr[0] == kind:
        yield expr
    elif expr[0] == "mask":
        yield from leaves(expr[1], kind)
    elif expr[0] not in LEAVES:
        for inner in expr[1:]:
            yield from leaves(inner, kind)


def inverted(expr: Expr, alike: Callable[[Expr], bool]) -> Expr:
    """Divisions by what is `alike` for many elements as multiplications by its inverse, which is found once: the
    quotient's error grows by one rounding."""
    if expr[0] in LEAVES:
        return expr
    parts = tuple(inverted(part, alike) if isinstance(part, tuple) else part for part in expr)
    if expr[0] == "normalize" and alike(expr[2]):
        return ("mul", parts[1], ("inverse", parts[2]))
    return parts


def needed(fields: Sequence[Field], value: Expr) -> tuple[Field, ...]:
    """The fields that an output's value looks at, and those that these look at, in order."""
    wanted = {leaf[1] for leaf in leaves(value, "acc")}
    for field in reversed(fields):
        if field.name in wanted:
            wanted |= {leaf[1] for leaf in leaves(field.body, "field")}
    return tuple(field for field in fields if field.name in wanted)


def fold(expression: str, values: Mapping[str, int | str]) -> str:
    """A size expression with some names replaced: by numbers, or by expressions in parentheses."""

    def replace(found: Match[str]) -> str:
        value = values.get(found[0])
        return found[0] if value is None else f"({value})" if isinstance(value, str) else str(value)

    return sub(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(])", replace, expression)
