"""Patterns of kernels.

A pattern describes one output of a kernel from the top down:

    hole(role, ...)    the maximal DAG of maps above zero or more anchors; its other leaves come from outside
    dot(a, b)          a contraction: one sum over a product of two operands, in either order
    red(fields, ...)   a reduction with these fields; ANY fields when None, except contractions and combines
    comb(fields)       a reduction over a slab axis
    turned(role, of)   a value in memory, `of`, as it is, but with another axis last: a transposition
    as_(name, p)       names the value that p matches
    anything()         a value in memory

An anchor is a reduction inside the kernel. Anchors of the same name, in several roots, are the same value. Axes are
bound in groups: for dot, M = in the first operand and the output only, N = second and output, K = reduced, B = in
all three; `groups` of a pattern says which template letters stand for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..program.body import Body


@dataclass(frozen=True)
class Anything:
    pass


@dataclass(frozen=True)
class Hole:
    role: str
    anchors: tuple[Pattern, ...] = ()
    groups: str = ""  # letters whose axes are the hole's; "" for "those of its anchors"


@dataclass(frozen=True)
class Dot:
    a: Pattern
    b: Pattern
    slab: bool = False
    name: str = "acc"
    groups: str = "MNKB"


@dataclass(frozen=True)
class FieldPattern:
    """name, monoid and body of a field; `wide`: it has the N axes too."""

    name: str
    monoid: str
    body: Body
    wide: bool = False


@dataclass(frozen=True)
class Red:
    fields: tuple[FieldPattern, ...] | None
    args: tuple[Pattern, ...] = ()
    slab: bool = False
    name: str = "acc"
    groups: str = "MNKB"
    combines: bool = False  # the reduced axis is a slab axis
    inner: Pattern | None = None  # of a combine in the same kernel as its slabs


@dataclass(frozen=True)
class Turned:
    """M is the last axis of the output, N that of the value in memory, B all others."""

    role: str
    of: str
    groups: str = "MNB"


@dataclass(frozen=True)
class As:
    name: str
    pattern: Pattern


Pattern = Anything | Hole | Dot | Red | Turned | As


def anchors(pattern: Pattern) -> Iterator[Dot | Red]:
    """The reductions that a pattern has, each as often as it comes."""
    match pattern:
        case Hole():
            parts: tuple[Pattern | None, ...] = pattern.anchors
        case Dot():
            yield pattern
            parts = (pattern.a, pattern.b)
        case Red():
            yield pattern
            parts = (*pattern.args, pattern.inner)
        case As():
            parts = (pattern.pattern,)
        case _:
            parts = ()
    for part in parts:
        if part is not None:
            yield from anchors(part)


def anything() -> Pattern:
    return Anything()


def hole(role: str, *anchors: Pattern, groups: str = "") -> Pattern:
    return Hole(role, anchors, groups)


def _operand(p: Pattern | str) -> Pattern:
    return Hole(p) if isinstance(p, str) else p


def dot(a: Pattern | str, b: Pattern | str, *, slab: bool = False, name: str = "acc", groups: str = "MNKB") -> Pattern:
    """A contraction; a string is an operand hole of that role."""
    return Dot(_operand(a), _operand(b), slab, name, groups)


def red(
    fields: Mapping[str, tuple[str, Body]] | None,
    *args: Pattern | str,
    wide: tuple[str, ...] = (),
    slab: bool = False,
    name: str = "acc",
    groups: str = "MNKB",
) -> Pattern:
    """A reduction. Bodies read ("arg", i), the i-th of `args`, and earlier fields; `wide` fields have the N axes."""
    return Red(_fields(fields, wide), tuple(map(_operand, args)), slab, name, groups)


def comb(
    fields: Mapping[str, tuple[str, Body]] | None = None,
    *,
    inside: Pattern | None = None,
    wide: tuple[str, ...] = (),
    name: str = "acc",
    groups: str = "MNKB",
) -> Pattern:
    """The combine of slabs. `inside`: the slabs are computed in this same kernel, as that pattern says."""
    return Red(_fields(fields, wide), (), False, name, groups, True, inside)


def turned(role: str, of: str, *, groups: str = "MNB") -> Pattern:
    """A map that moves elements and computes nothing."""
    return Turned(role, of, groups)


def as_(name: str, p: Pattern) -> Pattern:
    return As(name, p)


def _fields(fields: Mapping[str, tuple[str, Body]] | None, wide: tuple[str, ...]) -> tuple[FieldPattern, ...] | None:
    if fields is None:
        return None
    return tuple(FieldPattern(name, monoid, body, name in wide) for name, (monoid, body) in fields.items())
