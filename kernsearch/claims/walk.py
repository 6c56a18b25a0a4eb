"""The walk over a kernel that notes what it costs: as `tiles` runs it, each loop once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..launch import itemsize
from ..meaning.loops import ASYNCHRONOUS, Loops, Tiling, loops_of, masks_above
from ..program import Kernel, Place, Program
from ..program.body import Body, positions
from ..program.value import Axes, Node, Use
from .costs import CHIP, MEMORY, ONE, WHOLE, KernelCost, Note, Skipping, Turns

SPECIAL = frozenset({"exp", "log", "tanh", "sqrt", "gelu", "gelu_tanh", "silu", "div", "normalize"})


@dataclass(eq=False)
class _Variable:
    """A loop variable: a group of axes that some loop runs over, whole or cut."""

    axes: Axes
    slab: str | None = None
    owner: _Variable | None = None  # of a reduced axis of a slab: the variable of the slab


Box = dict[str, _Variable]


@dataclass(eq=False)
class _Frame:
    cuts: list[tuple[_Variable, str]]
    inner: bool = False
    values: set[tuple] = field(default_factory=set)
    moves: bool = False


class Walk:
    """Visits a kernel as `tiles` runs it, each loop once."""

    def __init__(self, program: Program, kernel: Kernel):
        self.program, self.kernel = program, kernel
        self.inside = frozenset(kernel.members)
        self.loops: Loops = loops_of(program, kernel)
        self.stack: list[_Frame] = []
        self.kept: set[tuple] = set()
        self.once: frozenset[_Variable] = frozenset()  # variables whose first block alone does this
        self.skipped: dict[_Variable, tuple[_Variable, str]] = {}  # columns -> (rows, off)
        self.found = KernelCost()

    def cost(self) -> KernelCost:
        free = dict.fromkeys(axis for place in self.kernel.outputs for axis in self.program.at(place).axes)
        grid, cuts = self.variables((*free, *self.loops.slabs), self.loops.block)
        cuts += [(grid[slab], ONE) for slab in self.loops.slabs]
        self.grid, self.stack = grid, [_Frame(cuts)]
        self.found.blocks = Note(1, self.turns(0, {}, ()))
        groups: dict[frozenset[str], list[Place]] = {}
        for place in self.kernel.outputs:
            axes = self.program.at(place).axes
            serial = frozenset(a for t in self.loops.serial for a in t.axes if a in axes)
            groups.setdefault(serial, []).append(place)
        for serial, places in groups.items():
            tilings = tuple(t for t in self.loops.serial if set(t.axes) & serial)
            if tilings:
                self.stack.append(_Frame(self.cuts(tilings, grid)))
            for place in places:
                self.output(place, grid)
            if tilings:
                self.stack.pop()
        return self.found

    def variables(self, axes: Iterable[str], tilings: tuple[Tiling, ...]) -> tuple[Box, list[tuple[_Variable, str]]]:
        """A variable for each axis, tiled groups of axes together."""
        axes = tuple(dict.fromkeys((*axes, *(a for t in tilings for a in t.axes if t in self.loops.block))))
        box: Box = {}
        for tiling in sorted({*tilings, *self.loops.reducing}, key=lambda t: (-len(t.axes), t.axes, t.symbol)):
            group = tuple(a for a in tiling.axes if a in axes and a not in box)
            variable = _Variable(group)
            box.update(dict.fromkeys(group, variable))
        for axis in axes:
            box.setdefault(axis, _Variable((axis,)))
        return box, self.cuts(tilings, box)

    @staticmethod
    def cuts(tilings: tuple[Tiling, ...], box: Box) -> list[tuple[_Variable, str]]:
        return [
            (variable, tiling.symbol)
            for tiling in tilings
            for variable in dict.fromkeys(box[a] for a in tiling.axes if a in box)
        ]

    # -- notes

    def turns(self, depth: int, box: Box, axes: Iterable[str]) -> tuple[Turns | Skipping, ...]:
        """The loops around something at a depth of the stack that has these axes."""
        bound: dict[_Variable, list[str]] = {}
        for axis in axes:
            bound.setdefault(box[axis], []).append(axis)
        chains: dict[_Variable, list[str]] = {variable: [] for variable in bound}
        for frame in self.stack[: depth + 1]:
            for variable, symbol in frame.cuts:
                chains.setdefault(variable, []).append(symbol)
        owned = {v.owner for v in chains if v.owner is not None}
        cut_by = {v.owner: v for frame in self.stack for v, _ in frame.cuts if v.owner is not None}
        made: dict[_Variable, Turns] = {}
        for variable, chain in chains.items():
            if variable in owned or (variable in self.once and variable not in bound):
                continue
            if variable in cut_by and variable not in bound:  # in the loop over a slab, which an empty one has not
                inner = cut_by[variable]
                made[variable] = Turns(inner.axes, (), (), inner.slab)
                continue
            cuts = tuple(symbol for symbol in chain if symbol != WHOLE)
            made[variable] = Turns(variable.axes, cuts, tuple(bound.get(variable, ())), variable.slab)
        found: list[Turns | Skipping] = []
        for columns, (rows, off) in self.skipped.items():
            if columns in made and rows in made:
                found.append(Skipping(made.pop(rows), made.pop(columns), off))
        return (*found, *(t for t in made.values() if t.bound or t.chain or t.slab))

    def depth_of(self, box: Box, axes: Iterable[str]) -> int:
        """Where a value stays at hand: see `loops`."""
        mine = {box[axis] for axis in axes}
        mine |= {variable.owner for variable in mine if variable.owner is not None}
        return max(
            (i for i, frame in enumerate(self.stack) if frame.inner or any(v in mine for v, _ in frame.cuts)), default=0
        )

    def note(self, place: Place, box: Box, depth: int, weight: int = 1) -> tuple[int, Note]:
        axes = self.program.at(place).axes
        return itemsize(self.program.nodes[place[0]].dtype), Note(weight, self.turns(depth, box, axes))

    # -- outputs

    def output(self, place: Place, grid: Box) -> None:
        node, at = self.program.nodes[place[0]], self.program.at(place)
        atomic = bool(set(node.over) & set(self.loops.atomic))
        box = {axis: v for axis, v in grid.items() if axis in (*at.axes, *node.over)}
        needed = set(box.values())
        self.once = frozenset(v for frame in self.stack for v, _ in frame.cuts if v not in needed)
        if atomic:
            for use in node.args:
                self.prepare((use.node, use.field), self.seen(use, box))
        else:
            self.prepare(place, box)
        depth = len(self.stack) - 1
        size, note = self.note(place, box, depth)
        if node.op == "red" and not atomic:
            self.found.writes.append((MEMORY, size, note))
        else:
            pushed = self.push_parts(at.axes, box)
            if atomic:
                self.evaluate(node, at.body or (), box, depth + pushed)
                self.found.atomics.append(note)
            else:
                self.value(place, box)
            self.found.writes.append((MEMORY, size, note))
            del self.stack[len(self.stack) - pushed :]
        if set(node.over) & set(self.loops.cluster):
            self.found.barriers.append(Note(2, self.turns(0, {}, ())))
        self.once = frozenset()

    def push_parts(self, axes: Axes, box: Box) -> int:
        """Enter the warp, thread and register tiles of a box; how many loops that are."""
        before = len(self.stack)
        for tiling in self.loops.inner:
            group = tuple(a for a in tiling.axes if a in axes and a not in self.program.slabs)
            if group:
                self.stack.append(_Frame(self.cuts((Tiling(group, tiling.symbol),), box), inner=True))
        return len(self.stack) - before

    # -- values

    def seen(self, use: Use, box: Box) -> Box:
        own = self.program.at((use.node, use.field)).axes
        return {axis: box[name] for axis, name in zip(own, use.seen(own), strict=True)}

    def shared(self, name: str) -> bool:
        level = self.loops.keep.get(name)
        return name in self.loops.move or (level is not None and (level != "registers" or not self.loops.inner))

    def at_hand(self, place: Place, box: Box) -> bool:
        key = (place, *(box[axis] for axis in self.program.at(place).axes))
        return (place,) in self.kept or any(key in frame.values for frame in self.stack)

    def remember(self, place: Place, box: Box) -> int:
        axes = self.program.at(place).axes
        depth = self.depth_of(box, axes)
        self.stack[depth].values.add((place, *(box[axis] for axis in axes)))
        return depth

    def prepare(self, place: Place, box: Box) -> None:
        name = place[0]
        if self.at_hand(place, box):
            return
        if name in self.inside and self.program.nodes[name].op == "red":
            self.reduce(name, box)
        elif self.shared(name):
            self.fetch(place, box)
        elif name in self.inside:
            node = self.program.nodes[name]
            for position in positions(node.field(place[1]).body or ()):
                use = node.args[position]
                self.prepare((use.node, use.field), self.seen(use, box))

    def value(self, place: Place, box: Box) -> None:
        name = place[0]
        if not self.at_hand(place, box):
            if name in self.inside and self.program.nodes[name].op == "red":
                self.reduce(name, box)
            else:
                self.fetch(place, box)
        if self.shared(name) and any(frame.inner for frame in self.stack):
            size, note = self.note(place, box, len(self.stack) - 1)
            self.found.reads.append((CHIP, size, note))

    def fetch(self, place: Place, box: Box) -> None:
        name = place[0]
        node, at = self.program.nodes[name], self.program.at(place)
        kept = name in self.loops.keep
        depth = self.depth_of(box, at.axes)
        if name in self.inside:
            self.evaluate(node, at.body or (), box, depth)
        else:
            size, note = self.note(place, box, depth)
            self.found.reads.append((MEMORY, size, note))
            if self.shared(name):
                self.found.writes.append((CHIP, size, note))
            if name in self.loops.move and not self.stack[depth].moves:
                self.stack[depth].moves = True
                how = self.loops.move[name][0]
                waits = 0 if how == "pack" else 1 if how in ASYNCHRONOUS else 2
                if waits:
                    self.found.barriers.append(Note(waits, self.turns(depth, {}, ())))
        if kept:
            self.kept.add((place,))
        else:
            self.remember(place, box)

    # -- reductions and work

    def reduce(self, name: str, box: Box) -> None:
        node = self.program.nodes[name]
        box = {axis: box.get(axis) or self.grid.setdefault(axis, _Variable((axis,))) for axis in node.axes}
        walked = {v for frame in self.stack for v, symbol in frame.cuts if symbol == ONE}
        group = [(n, b) for n in self.loops.together(self.program, name) if (b := self.box_of(n, name, box))]
        around = self.stack  # loops that do not move the result do not repeat it
        depth = max(self.depth_of(b, self.program.nodes[n].axes) for n, b in group)
        slab = next((s for _, s in node.slab if box[s] not in walked), None)
        cut = [] if slab is None else [_Frame([(box[slab], ONE)])]
        tilings = tuple(t for t in self.loops.reducing if set(t.axes) & set(node.over))
        inner, cuts = self.variables(node.over, tilings)
        for axis, s in node.slab:
            inner[axis].slab, inner[axis].owner = s, box[s]
        loop = _Frame([*cuts, *((inner[axis], WHOLE) for axis in node.over)])
        self.stack = [*around[: depth + 1], *cut, loop]
        for n, b in group:
            self.note_skips(n, {**b, **inner})
        for n, b in group:
            self.accumulate(self.program.nodes[n], {**b, **inner})
        for variable in inner.values():
            self.skipped.pop(variable, None)
        self.stack = around
        for n, b in group:
            for f in self.program.nodes[n].fields:
                self.remember((n, f.name), b)

    def box_of(self, name: str, asked: str, box: Box) -> Box | None:
        if name == asked:
            return box
        node = self.program.nodes[name]
        known: Box = {}
        for axis in node.axes:
            if axis in box:
                known[axis] = box[axis]
            elif any(axis in t.axes for t in (*self.loops.block, *self.loops.serial)) or axis in self.loops.slabs:
                return None
            else:
                known[axis] = self.grid.setdefault(axis, _Variable((axis,)))
        return None if all(self.at_hand((name, f.name), known) for f in node.fields) else known

    def note_skips(self, name: str, box: Box) -> None:
        for q, k, off in masks_above(self.program, self.kernel, self.program.nodes[name]):
            if k in self.loops.skip and k in box and q in box:
                self.skipped[box[k]] = (box[q], off)

    def accumulate(self, node: Node, box: Box) -> None:
        for use in node.args:
            self.prepare((use.node, use.field), self.seen(use, box))
        pushed = self.push_parts(node.axes, box)
        depth = len(self.stack) - 1
        for f in node.fields:
            self.evaluate(node, f.body or (), box, depth)
            self.found.work.append((False, Note(1, self.turns(depth, box, (*f.axes, *node.over)))))
        del self.stack[len(self.stack) - pushed :]

    def evaluate(self, node: Node, body: Body, box: Box, depth: int) -> None:
        """Note the operations of a body, each for the axes of its operands, and read what it reads."""

        def walk(part: Body) -> Axes:
            match part:
                case ("arg", position):
                    use = node.args[position]
                    self.value((use.node, use.field), self.seen(use, box))
                    return use.seen(self.program.at((use.node, use.field)).axes)
                case ("field", earlier):
                    return node.field(earlier).axes
                case ("scalar" | "const", _):
                    return ()
                case ("mask", inner, q, k, _):
                    axes = tuple(dict.fromkeys((*walk(inner), q, k)))
                case (_, *parts):
                    axes = tuple(dict.fromkeys(axis for p in parts for axis in walk(p)))
                case _:
                    raise ValueError(part)
            self.found.work.append((part[0] in SPECIAL, Note(1, self.turns(depth, box, axes))))
            return axes

        walk(body)
