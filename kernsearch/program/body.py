"""Bodies: the small expressions inside a value, and how they depend on a running maximum.

A body is a nested tuple:

    ("arg", 0)                  an argument of the value, by position
    ("field", "m")              an earlier field of the same value
    ("scalar", "alpha")         a run-time scalar of the call
    ("const", 1.0)
    ("mask", body, q, k, off)   body where k <= q + off, else -inf; q and k are axes, off is a size expression
    (function, body, ...)       a function of `meaning.FUNCTIONS`

`dependence` is the one piece of algebra that online softmax and flash attention rest on: it sees, through any chain
of maps, how a body moves when a running value `r` moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache

Body = tuple

LEAVES = frozenset({"arg", "field", "scalar", "const"})
COMMUTING = frozenset({"add", "mul", "max"})


def arg(position: int) -> Body:
    return ("arg", position)


def own(name: str) -> Body:
    return ("field", name)


def scalar(name: str) -> Body:
    return ("scalar", name)


def const(value: float) -> Body:
    return ("const", float(value))


def is_leaf(body: Body) -> bool:
    return body[0] in LEAVES


def children(body: Body) -> tuple[Body, ...]:
    """The bodies directly inside."""
    if body[0] in LEAVES:
        return ()
    return body[1:2] if body[0] == "mask" else body[1:]


def leaves(body: Body, tag: str) -> Iterator[Body]:
    """All leaves of one kind ("arg", "field", "scalar", "const"), left to right, repeats included."""
    if body[0] == tag:
        yield body
    for child in children(body):
        yield from leaves(child, tag)


def positions(body: Body) -> tuple[int, ...]:
    """Positions of the arguments a body reads, in order of first use."""
    return tuple(dict.fromkeys(leaf[1] for leaf in leaves(body, "arg")))


def replace(body: Body, leaf: Callable[[Body], Body]) -> Body:
    """The body with `leaf` applied to every leaf."""
    if body[0] in LEAVES:
        return leaf(body)
    if body[0] == "mask":
        return ("mask", replace(body[1], leaf), *body[2:])
    return (body[0], *(replace(child, leaf) for child in body[1:]))


def rename_axes(body: Body, names: Mapping[str, str]) -> Body:
    """The body with the axes that its masks compare renamed."""
    if not names or body[0] in LEAVES:
        return body
    if body[0] == "mask":
        _, inner, q, k, off = body
        return ("mask", rename_axes(inner, names), names.get(q, q), names.get(k, k), off)
    return (body[0], *(rename_axes(child, names) for child in body[1:]))


def mask_axes(body: Body) -> frozenset[str]:
    """Axes whose index (not only value) the body looks at."""
    found = frozenset(body[2:4]) if body[0] == "mask" else frozenset()
    return found.union(*(mask_axes(child) for child in children(body)))


def factors(body: Body) -> tuple[Body, ...]:
    """The factors of a product: x for anything that is not one."""
    if body[0] != "mul":
        return (body,)
    return tuple(f for child in body[1:] for f in factors(child))


class Dependence(Enum):
    """How a body moves with a running value r."""

    FREE = "free"  # not at all
    SHIFT = "shift"  # x - r
    SCALE = "scale"  # going from r to r' multiplies it by exp(r - r')
    NONE = "none"  # in some other way


FREE, SHIFT, SCALE, NONE = Dependence


@cache
def dependence(body: Body, running: str) -> Dependence:
    """How `body` depends on its own earlier field `running`.

    x - r           shift        add and mask keep a shift
    exp(shift)      scale        mul and div by something free keep a scale
    """
    if body[0] in LEAVES:
        return NONE if body == ("field", running) else FREE
    kinds = [dependence(child, running) for child in children(body)]
    if all(kind is FREE for kind in kinds):
        return FREE
    match body[0], kinds:
        case (("sub" | "shift"), [Dependence.FREE, Dependence.NONE]) if body[2] == ("field", running):
            return SHIFT
        case (("sub" | "shift"), [Dependence.SHIFT, Dependence.FREE]):
            return SHIFT
        case "add", ([Dependence.SHIFT, Dependence.FREE] | [Dependence.FREE, Dependence.SHIFT]):
            return SHIFT
        case "mask", [Dependence.SHIFT]:
            return SHIFT
        case "exp", [Dependence.SHIFT]:
            return SCALE
        case "mul", ([Dependence.SCALE, Dependence.FREE] | [Dependence.FREE, Dependence.SCALE]):
            return SCALE
        case (("div" | "normalize"), [Dependence.SCALE, Dependence.FREE]):
            return SCALE
    return NONE


def rescale(old: Body, new: Body) -> Body:
    """The factor that carries a scaled value from the running value `old` to `new`: exp(old - new), 0 at -inf."""
    return ("exp", ("shift", old, new))
