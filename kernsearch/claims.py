"""What a program costs: one walk over its loops gives traffic, work, launches, barriers and workspace.

The walk visits each loop of each kernel once, with symbols for the number of iterations, and notes every read, write
and operation with the loops that repeat it; numbers come in when the notes are evaluated at sizes and a config. The
claim of a rule is the difference between two programs: `claims(before, ...) - claims(after, ...)`.

    textbook softmax    reads 5MN + 2M elements, writes 3MN + 2M
    kept on chip        reads MN, writes MN
    tiled gemm          reads MK ceil(N/BN) + KN ceil(M/BM)

The tile interpreter counts what it reads and writes, and tests hold the two against each other. Two things are
estimates: tiles of several axes are counted as if they never fell into runs, and skipped tiles of a slab as if slabs
began at a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Protocol

from . import sizes as expressions
from .body import Body, positions
from .loops import ASYNCHRONOUS, Loops, Tiling, loops_of, masks_above
from .program import Kernel, Place, Program
from .value import Axes, Node, Use

ITEMSIZE = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
SPECIAL = frozenset({"exp", "log", "tanh", "sqrt", "gelu", "gelu_tanh", "silu", "div", "normalize"})
MEMORY, CHIP = "global", "chip"
WHOLE, ONE = "", "1"  # in place of a tiling's symbol: the loop has one tile, or one element a tile


class Scheduled(Protocol):
    """Anything with a program: a variant."""

    @property
    def program(self) -> Program: ...


@dataclass(frozen=True)
class Claims:
    """What a program, or one kernel of it, costs at given sizes and parameters. Differences may be negative.

    flops           operations on elements that exist: 2 M N K for a contraction
    padded_flops    operations on whole tiles, also past the end of an axis
    special         of `flops`, those that are not an addition, multiplication or maximum
    reads, writes   elements by level: "global" is memory, "chip" the buffers that tiles are moved to and kept in
    read_bytes, write_bytes   the same in bytes
    atomics         elements combined in memory; they are among the writes, and are read as well
    launches        kernels
    barriers        waits of a block, over all blocks
    workspace_bytes bytes of values that one kernel leaves for another
    blocks          blocks of the grid, over all kernels
    kernels         the same for each kernel, in launch order
    """

    flops: int = 0
    padded_flops: int = 0
    special: int = 0
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    write_bytes: Mapping[str, int] = field(default_factory=dict)
    atomics: int = 0
    launches: int = 0
    barriers: int = 0
    workspace_bytes: int = 0
    blocks: int = 0
    kernels: tuple[Claims, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes moved to and from memory."""
        return self.read_bytes.get(MEMORY, 0) + self.write_bytes.get(MEMORY, 0)

    def __add__(self, other: Claims) -> Claims:
        return self._with(other, 1)

    def __sub__(self, other: Claims) -> Claims:
        return self._with(other, -1)

    def _with(self, other: Claims, sign: int) -> Claims:
        found: dict[str, Any] = {}
        for f in fields(self):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if f.name == "kernels":
                continue
            if isinstance(a, int):
                found[f.name] = a + sign * b
            else:
                found[f.name] = {level: a.get(level, 0) + sign * b.get(level, 0) for level in {**a, **b}}
        return Claims(**found)


def claims(what: Program | Scheduled, sizes: Mapping[str, int], config: Mapping[str, int] | None = None) -> Claims:
    """The cost of a program or variant. `sizes` gives size letters, `config` every symbol. KeyError when one is not."""
    return claims_of(what)(sizes, config or {})


Cost = Callable[[Mapping[str, int], Mapping[str, int]], Claims]
_known: dict[str, Cost] = {}
_kernels: dict[tuple, _KernelCost] = {}


def claims_of(what: Program | Scheduled) -> Cost:
    """The same as a function of (sizes, config), for ranking many configs: the walk is done once."""
    program = what if isinstance(what, Program) else what.program
    cost = _known.get(program.key)
    if cost is None:
        cost = _known[program.key] = _program_cost(program)
    return cost


def _program_cost(program: Program) -> Cost:
    costs = []
    for kernel in program.kernels:
        key = (kernel.key, tuple(sorted(program.extents.items())))
        if key not in _kernels:
            _kernels[key] = _Walk(program, kernel).cost()
        costs.append(_kernels[key])
    out = {(o.node, o.field) for o in program.outs}
    between = [(ITEMSIZE[program.nodes[p[0]].dtype], program.at(p).axes) for p in program.materialised - out]
    extents = dict(program.extents)

    def cost(sizes: Mapping[str, int], config: Mapping[str, int]) -> Claims:
        names = {**sizes, **config}
        length = {axis: expressions.evaluate(text, names) for axis, text in extents.items()}
        parts = tuple(kernel(length, names) for kernel in costs)
        total: dict[str, Any] = {
            name: sum(getattr(part, name) for part in parts)
            for name in ("flops", "padded_flops", "special", "atomics", "launches", "barriers", "blocks")
        }
        for name in ("reads", "writes", "read_bytes", "write_bytes"):
            levels: dict[str, int] = {}
            for part in parts:
                for level, count in getattr(part, name).items():
                    levels[level] = levels.get(level, 0) + count
            total[name] = levels
        workspace = sum(size * math.prod(length[a] for a in axes) for size, axes in between)
        return Claims(**total, workspace_bytes=workspace, kernels=parts)

    return cost


# -- notes


@dataclass(frozen=True)
class Turns:
    """How one loop variable repeats a note.

    axes    the axes that the variable runs over, as one
    chain   symbols of the tilings that cut it, outermost first
    bound   those of its axes that the note's elements have: they count once each, else the note counts once a tile
    slab    the slab axis that cuts it first
    """

    axes: Axes
    chain: tuple[str, ...]
    bound: Axes
    slab: str | None

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool) -> int:
        total = math.prod([length[axis] for axis in self.axes])
        last = self.axes[-1] in self.bound
        if last and not padded:
            return total
        tiles = [1 if symbol == ONE else names[symbol] for symbol in self.chain]
        if self.bound and not last:
            return runs(total, length[self.axes[-1]], tiles)
        cuts = [-(-total // length[self.slab]), *tiles] if self.slab is not None and total else tiles
        if not self.bound:
            return trips(total, cuts)
        return trips(total, cuts) * tiles[-1] if tiles else total


@dataclass(frozen=True)
class Skipping:
    """Masked tiles of `columns` that are left out: those past the last row of a tile of `rows` plus `off`."""

    rows: Turns
    columns: Turns
    off: str

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool) -> int:
        off = expressions.evaluate(self.off, names)
        rows, row = math.prod([length[a] for a in self.rows.axes]), length[self.rows.axes[-1]]
        columns = math.prod([length[a] for a in self.columns.axes])
        tile = names[self.rows.chain[0]] if self.rows.chain else max(1, rows)
        wide = names[self.columns.chain[-1]] if self.columns.chain else max(1, columns)
        inside = [names[symbol] for symbol in self.rows.chain[1:]]
        across = [names[symbol] for symbol in self.columns.chain]
        total = 0
        for start in range(0, rows, tile):
            end = min(rows, start + tile)
            last = (end - 1) % row if start // row == (end - 1) // row else row - 1
            seen = min(columns, -(-max(0, last + off + 1) // wide) * wide)
            down = tile if padded and self.rows.chain else end - start
            side = -(-seen // wide) * wide if padded and self.columns.chain else seen
            total += (down if self.rows.bound else trips(end - start, inside)) * (
                side if self.columns.bound else trips(seen, across)
            )
        return total


def trips(total: int, tiles: list[int]) -> int:
    """How many innermost tiles nested loops have: a ragged outer tile holds fewer inner ones."""
    if not tiles:
        return 1 if total else 0
    whole, rest = divmod(total, tiles[0])
    if len(tiles) == 1:
        return whole + (rest > 0)
    return (whole * trips(tiles[0], tiles[1:]) if whole else 0) + (trips(rest, tiles[1:]) if rest else 0)


def runs(total: int, run: int, tiles: list[int]) -> int:
    """Into how many pieces tiles of several axes fall when they are also cut wherever the last axis, of length `run`,
    begins anew."""
    if not total:
        return 0
    if not tiles:
        return total // run
    even = all(outer % inner == 0 for outer, inner in pairwise(tiles))
    if even or total // run > 4096:
        both = -(-total // math.lcm(run, tiles[-1])) - 1
    else:
        both = sum(_begins(row * run, tiles) for row in range(1, total // run))
    return trips(total, tiles) + total // run - 1 - both


def _begins(at: int, tiles: list[int]) -> bool:
    for tile in tiles:
        at %= tile
    return at == 0


@dataclass(frozen=True)
class Note:
    """Something that happens `weight` times for each element, each turn of the loops around it."""

    weight: int
    turns: tuple[Turns | Skipping, ...]

    def count(self, length: Mapping[str, int], names: Mapping[str, int], padded: bool = False) -> int:
        total = self.weight
        for turn in self.turns:
            total *= turn.count(length, names, padded)
        return total


@dataclass
class _KernelCost:
    """The notes of one kernel: by what is counted, the level and the bytes of an element."""

    reads: list[tuple[str, int, Note]] = field(default_factory=list)
    writes: list[tuple[str, int, Note]] = field(default_factory=list)
    work: list[tuple[bool, Note]] = field(default_factory=list)
    barriers: list[Note] = field(default_factory=list)
    atomics: list[Note] = field(default_factory=list)
    blocks: Note = Note(1, ())

    def __call__(self, length: Mapping[str, int], names: Mapping[str, int]) -> Claims:
        moved: list[dict[str, int]] = []
        for notes in (self.reads, self.writes):
            elements: dict[str, int] = {}
            size: dict[str, int] = {}
            for level, itemsize, note in notes:
                count = note.count(length, names)
                elements[level] = elements.get(level, 0) + count
                size[level] = size.get(level, 0) + count * itemsize
            moved += [elements, size]
        flops = padded = special = 0
        for is_special, note in self.work:
            count = note.count(length, names)
            flops += count
            special += count if is_special else 0
            padded += note.count(length, names, padded=True)
        return Claims(
            flops=flops,
            padded_flops=padded,
            special=special,
            reads=moved[0],
            read_bytes=moved[1],
            writes=moved[2],
            write_bytes=moved[3],
            atomics=sum(note.count(length, names) for note in self.atomics),
            launches=1,
            barriers=sum(note.count(length, names) for note in self.barriers),
            blocks=self.blocks.count(length, names),
        )


# -- the walk


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


class _Walk:
    """Visits a kernel as `tiles` runs it, each loop once."""

    def __init__(self, program: Program, kernel: Kernel):
        self.program, self.kernel = program, kernel
        self.inside = frozenset(kernel.members)
        self.loops: Loops = loops_of(program, kernel)
        self.stack: list[_Frame] = []
        self.kept: set[tuple] = set()
        self.once: frozenset[_Variable] = frozenset()  # variables whose first block alone does this
        self.skipped: dict[_Variable, tuple[_Variable, str]] = {}  # columns -> (rows, off)
        self.found = _KernelCost()

    def cost(self) -> _KernelCost:
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
        made: dict[_Variable, Turns] = {}
        for variable, chain in chains.items():
            if variable in owned or (variable in self.once and variable not in bound):
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
        return ITEMSIZE[self.program.nodes[place[0]].dtype], Note(weight, self.turns(depth, box, axes))

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
        slab = next((s for _, s in node.slab if box[s] not in walked), None)
        if slab is not None:
            self.stack.append(_Frame([(box[slab], ONE)]))
        group = [(n, b) for n in self.loops.together(self.program, name) if (b := self.box_of(n, name, box))]
        tilings = tuple(t for t in self.loops.reducing if set(t.axes) & set(node.over))
        inner, cuts = self.variables(node.over, tilings)
        for axis, s in node.slab:
            inner[axis].slab, inner[axis].owner = s, box[s]
        self.stack.append(_Frame([*cuts, *((inner[axis], WHOLE) for axis in node.over)]))
        for n, b in group:
            self.note_skips(n, {**b, **inner})
        for n, b in group:
            self.accumulate(self.program.nodes[n], {**b, **inner})
        self.stack.pop()
        for variable in inner.values():
            self.skipped.pop(variable, None)
        if slab is not None:
            self.stack.pop()
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
