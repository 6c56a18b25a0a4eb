"""The loops of an annotated kernel: what the tile interpreter executes and the cost walk prices.

A kernel runs as

    for each block (block tiles of output axes, and slabs)            nothing is shared between blocks
        for each serial tile of an output
            for each serial tile of a reduced axis                    independent reductions share the loop
                for each warp, thread, register tile                  values are not shared between these
                    compute

A value read or computed in a loop is at hand until that iteration ends: it stays in the outermost loop that does not
move it, but never outside a warp, thread or register tile, unless the kernel keeps it or moves it into a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..program import Kernel, Program
from ..program import body as bodies
from ..program.body import Body
from ..program.value import Axes, Node, Use

INNER = ("warp", "thread", "register")
ASYNCHRONOUS = frozenset({"async", "bulk"})


@dataclass(frozen=True)
class Tiling:
    """A loop over tiles of a group of axes; the group counts as one axis, the last one running fastest."""

    axes: Axes
    symbol: str


@dataclass(frozen=True)
class Loops:
    """The annotations of a kernel, resolved to its values.

    block    tilings that the grid runs through       slabs    slab axes that the grid runs through, one slab a block
    serial   tilings of loops inside a block          inner    warp, thread and register tilings, outermost first
    keep     value -> where it stays for the block    move     value -> (how, symbol of the number of stages)
    atomic   slab axes combined in memory             cluster  slab axes combined between blocks
    skip     axes whose masked tiles are left out     rounds   reduction -> how many over the same axes come before it
    """

    block: tuple[Tiling, ...]
    slabs: Axes
    serial: tuple[Tiling, ...]
    inner: tuple[Tiling, ...]
    keep: Mapping[str, str]
    move: Mapping[str, tuple[str, str | None]]
    atomic: Axes
    cluster: Axes
    skip: frozenset[str]
    units: Mapping[str, str]
    persistent: bool
    roles: str | None
    rounds: Mapping[str, int]

    @property
    def reducing(self) -> tuple[Tiling, ...]:
        """Tilings of reduced axes. Along those, warp, thread and register tiles are steps of the same loop: their
        results are combined like those of serial tiles."""
        return (*self.serial, *self.inner)

    def together(self, program: Program, name: str) -> tuple[str, ...]:
        """Reductions that share a loop with this one, itself first."""
        node = program.nodes[name]
        mates = [
            other
            for other, number in self.rounds.items()
            if other != name
            and number == self.rounds[name]
            and (set(program.nodes[other].over), program.nodes[other].slab) == (set(node.over), node.slab)
        ]
        return (name, *mates)


def loops_of(program: Program, kernel: Kernel) -> Loops:
    """The loops of one kernel of a program."""
    steps = kernel.annotations
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys((*kernel.members, *(place[0] for place in kernel.reads))):
        names.setdefault(program.keys[name], []).append(name)

    def of_kind(kind: str) -> Iterator[tuple]:
        return (step for step in steps if step[0] == kind)

    def tilings(*levels: str) -> tuple[Tiling, ...]:
        return tuple(
            Tiling(step[1], step[3]) for level in levels for step in of_kind("tile") if step[2] == level and step[1]
        )

    cut = program.slabs
    combined = {axis for name in kernel.anchors for axis in program.nodes[name].over if axis in cut}
    atomic = tuple(step[1] for step in of_kind("combine") if step[2] == "atomic")
    written = dict.fromkeys(axis for place in kernel.outputs for axis in program.at(place).axes if axis in cut)
    return Loops(
        block=tilings("block"),
        slabs=tuple(axis for axis in (*written, *atomic) if axis not in combined or axis in atomic),
        serial=tilings("serial"),
        inner=tilings(*INNER),
        keep={name: step[2] for step in of_kind("keep") for name in names.get(step[1], ())},
        move={
            name: (step[2], step[3] if len(step) > 3 else None)
            for step in of_kind("move")
            for name in names.get(step[1], ())
        },
        atomic=atomic,
        cluster=tuple(step[1] for step in of_kind("combine") if step[2] == "cluster"),
        skip=frozenset(axis for step in of_kind("skip") for axis in step[1]),
        units={name: step[2] for step in of_kind("unit") for name in names.get(step[1], ())},
        persistent=("grid", "persistent") in steps,
        roles=next((step[1] for step in of_kind("roles")), None),
        rounds=_rounds(program, kernel),
    )


def _rounds(program: Program, kernel: Kernel) -> dict[str, int]:
    rounds: dict[str, int] = {}
    for name in kernel.anchors:
        over = set(program.nodes[name].over)
        above = [
            rounds[a] for a in kernel.anchors if a in program.ancestors[name] and set(program.nodes[a].over) == over
        ]
        rounds[name] = 1 + max(above, default=-1)
    return rounds


Mask = tuple[str, str, str]  # (row axis, column axis, offset expression), as the reader names the axes


def masks_above(program: Program, kernel: Kernel, node: Node) -> tuple[Mask, ...]:
    """The masks that a value of the kernel sees through maps of the same kernel."""
    inside, found = set(kernel.members), []

    def walk(node: Node, body: Body, names: Mapping[str, str]) -> None:
        if body[0] == "mask":
            found.append((names.get(body[2], body[2]), names.get(body[3], body[3]), body[4]))
        if body[0] == "arg":
            use = node.args[body[1]]
            if use.node in inside and program.nodes[use.node].op == "map":
                producer = program.nodes[use.node]
                walk(producer, producer.field(use.field).body or (), _through(program, use, names))
        for child in bodies.children(body):
            walk(node, child, names)

    for field in node.fields:
        walk(node, field.body or (), {})
    return tuple(dict.fromkeys(found))


def _through(program: Program, use: Use, names: Mapping[str, str]) -> dict[str, str]:
    own = program.at((use.node, use.field)).axes
    return {axis: names.get(seen, seen) for axis, seen in zip(own, use.seen(own), strict=True)}


def may_skip(program: Program, kernel: Kernel, axis: str) -> bool:
    """May tiles of a reduced axis that are masked all over be left out?

    Legal iff the masked value turns every field of every reduction over the axis into its identity. That a factor of 0
    annihilates takes values to be finite: 0 * inf is NaN.
    """
    reductions = [program.nodes[name] for name in kernel.anchors if axis in program.nodes[name].over]
    return bool(reductions) and all(
        _masked(program, kernel, node, field.body or (), axis) == (0.0 if field.monoid == "sum" else "-inf")
        for node in reductions
        for field in node.fields
    )


def _masked(program: Program, kernel: Kernel, node: Node, body: Body, axis: str) -> float | str | None:
    """What a body is where its masks say no: "-inf", 0.0, or None when it is not known."""
    if body[0] == "arg":
        use = node.args[body[1]]
        producer = program.nodes[use.node]
        if use.node not in kernel.members or producer.op != "map":
            return None
        back = dict(zip(use.seen(producer.axes), producer.axes, strict=True))
        return _masked(program, kernel, producer, producer.field(use.field).body or (), back.get(axis, axis))
    if body[0] in bodies.LEAVES:
        return None
    inside = [_masked(program, kernel, node, child, axis) for child in bodies.children(body)]
    match body[0]:
        case "mask":
            return "-inf" if body[3] == axis else inside[0]
        case "add" | "max":
            known = [value for value in inside if value == "-inf"]
            return "-inf" if known and (body[0] == "add" or len(known) == len(inside)) else None
        case "sub" | "shift":
            return "-inf" if inside[0] == "-inf" else None
        case "exp":
            return 0.0 if inside[0] == "-inf" else None
        case "mul" | "weigh":
            return 0.0 if 0.0 in inside else None
        case "div" | "normalize":
            return 0.0 if inside[0] == 0.0 else None
    return None
