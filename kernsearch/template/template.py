"""Templates: one kernel source, the kernels it can be, and the numbers it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any

from .. import sizes as expressions
from ..binding import Array, Binding, Expr, Field, Root
from ..device import Device
from ..meaning.loops import masks_above, may_skip
from ..plan import Launch
from ..program import Annotation, Kernel, Place, Program
from ..program import body as bodies
from ..program.body import Body
from ..program.value import Use, contraction
from ..rules.schedule import in_order, symbols
from ..space import Access, Config, Constraint, Param, Sizes
from .matcher import Found, Matcher
from .pattern import As, Dot, Hole, Pattern, Red, Turned, anchors, anything, as_, comb, dot, hole, red, turned

__all__ = ["Launch", "Matched", "Template", "TileMap", "anything", "as_", "comb", "dot", "hole", "red", "turned"]


@dataclass(frozen=True)
class TileMap:
    """A bulk-tensor map over an operand, an output or a packed copy of an operand.

    role    "A", "B", or the root's role for the output
    groups  the two group letters of a tile
    tile    elements along each of them, expressions of parameter letters
    share   blocks of a cluster that load the tile together, each a part along the dimension that is not contiguous
    swizzle bytes; a box is at most this wide along the contiguous dimension, so a wider tile takes several boxes
    over    the last box of a wider tile may reach over its end: boxes of the whole swizzle, and a few columns in vain
    """

    role: str
    groups: str
    tile: tuple[str, str]
    share: str = "1"
    swizzle: int = 128
    over: bool = False


@dataclass(frozen=True)
class Template:
    """What one source implements.

    name        short, the name of variants: "register_tiled"
    backend     "cpu" | "cuda"
    roots       one pattern for each output, see `pattern`
    source      path below the kernels folder; "" for a pattern without a kernel
    entry       the extern function
    ann         annotations over group letters and roles, in order: ("tile", ("M",), "block", "MC")
    groups      words: "M+" must have an axis, "M1" exactly one, "M*" any number; letters not named must have none.
                "" accepts everything
    params      the domain of each symbol of `ann` (and of SPLIT when the pattern has a slab)
    knobs       free parameters that change no bytes, FLOPs, launches or kind of resource
    constraints over parameters, device and sizes; the latter are the op's, and those of the groups by letter: M, N, K
                (N is the reduced axis where a kernel has none: that of its rows)
    dtypes      of all arrays; () accepts every dtype
    reads       dtypes of those that are read; () as `dtypes`
    scratch     bytes of scratch memory, a size expression; parameter letters allowed
    assumes     size expressions that must hold, over strides of roles and groups, sizes of groups, and letters:
                "B.N == 1" is the stride of the last axis of N in operand B, "B.base" its address modulo 256, and
                "D <= BD" says that a tile holds all of D
    efficiency  (config, device, sizes) -> share of peak FLOPs that the inner loop can reach
    accesses    (config, sizes) -> by a name that people read, what the warps of a block touch in shared memory, for the
                model to count bank conflicts; left out where these cannot be what bounds the kernel
    flags       compiler flags beyond the backend's own
    optional    so many of the last roots may be missing
    many        the one root stands for any number of outputs; further roles are Y1, Y2 ... after Y
    launches    on a device: entries in order with their geometry, over sizes of groups (M, N, K, B, S), parameter
                letters, facts of the device in capitals (SMS), WORD where a kernel works on rows, and ITEMSIZE
    maps        on a device: bulk-tensor maps that the kernel takes
    swapped     operands are taken in the order that is not the program's: D = A B as the transpose of B' A'
    """

    name: str
    backend: str
    roots: tuple[Pattern, ...]
    source: str = ""
    entry: str = ""
    ann: tuple[Annotation, ...] = ()
    groups: str = ""
    params: tuple[Param, ...] = ()
    knobs: tuple[Param, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    dtypes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    scratch: str = "0"
    assumes: tuple[str, ...] = ()
    efficiency: Callable[..., float] | None = None
    accesses: Callable[[Config, Sizes], Mapping[str, tuple[Access, ...]]] | None = None
    flags: tuple[str, ...] = ()
    optional: int = 0
    many: bool = False
    launches: tuple[Launch, ...] = ()
    maps: tuple[TileMap, ...] = ()
    swapped: bool = False
    what: str = field(default="", compare=False)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of the annotations, in order; SPLIT first when the pattern has a slab."""
        return tuple(dict.fromkeys((("SPLIT",) if any(map(_has_slab, self.roots)) else ()) + symbols(self.ann)))

    def match(self, program: Program, kernel: Kernel) -> Matched | None:
        """How the kernel fills this template; the first way, operands in program order before swapped ones."""
        found = self.find(program, kernel)
        return self.filled(program, kernel, *found) if found else None

    def find(self, program: Program, kernel: Kernel) -> tuple[Found, tuple[Place, ...]] | None:
        """How the roots match, whatever the annotations."""
        roots = self._roots_for(kernel)
        if not self._kinds[min(len(roots), len(self.roots)) - 1].all_of(program, kernel):
            return None
        if not self._takes(program, kernel):
            return None
        matches = Matcher(program, kernel).match(roots)
        ways = (way for way in matches if self._accepts(way[0]))
        return next(islice(ways, int(self.swapped), None), None)

    def filled(self, program: Program, kernel: Kernel, found: Found, outputs: tuple[Place, ...]) -> Matched | None:
        """The match, unless the kernel is annotated in a way that the template is not, or masks something of which the
        template leaves out tiles that may not be left out."""
        matched = Matched(self, program, kernel.label, found, outputs)
        skipped = (axis for step in matched.annotations if step[0] == "skip" for axis in step[1])
        fits = set(kernel.annotations) <= set(matched.annotations)
        return matched if fits and all(may_skip(program, kernel, axis) for axis in skipped) else None

    @property
    def alike(self) -> tuple[object, ...]:
        """Templates of which this is equal match the same kernels, annotations aside."""
        return (self.roots, self.optional, self.groups, self.dtypes, self.reads, self.many, self.swapped)

    def nearly(self, program: Program, kernel: Kernel) -> bool:
        """Could the kernel still become one of this template, short of some roots or of its split?"""
        if len(kernel.anchors) > self._kinds[-1].count:
            return False
        if not self._takes(program, kernel):
            return False
        roots = self.roots if self.optional else self._roots_for(kernel)
        matches = Matcher(program, kernel, unsplit=True).match(roots, some_roots=True)
        return any(self._accepts(found) for found, _ in matches)

    @cached_property
    def _kinds(self) -> tuple[_Kinds, ...]:
        """What reductions the first root has, the first two, and so on."""
        return tuple(_Kinds.of(self.roots[:count]) for count in range(1, len(self.roots) + 1))

    def _takes(self, program: Program, kernel: Kernel) -> bool:
        """Are all arrays of dtypes that the source has?"""
        read, written = ({program.nodes[name].dtype for name, _ in of} for of in (kernel.reads, kernel.outputs))
        every = not self.dtypes or read | written <= set(self.dtypes)
        return every and (not self.reads or read <= set(self.reads))

    def _roots_for(self, kernel: Kernel) -> tuple[Pattern, ...]:
        root, fewest = self.roots[0], len(self.roots) - self.optional
        if self.optional and fewest <= len(kernel.outputs):
            return self.roots[: len(kernel.outputs)]
        if not self.many or not isinstance(root, Hole):
            return self.roots
        more = (replace(root, role=f"{root.role}{i}") for i in range(1, len(kernel.outputs)))
        return (root, *more)

    def _accepts(self, found: Found) -> bool:
        if not self.groups:
            return True
        words = {word[0]: word[1] for word in self.groups.split()}
        counts = {letter: len(axes) for letter, axes in found.groups.items() if letter != "S"}
        for letter in {*words, *counts}:
            count, want = counts.get(letter, 0), words.get(letter, "0")
            if (want == "+" and not count) or (want == "1" and count != 1) or (want == "0" and count):
                return False
        return True


@dataclass(frozen=True)
class _Kinds:
    """How many reductions patterns have, and of what kinds: what can be seen of a kernel without matching it."""

    count: int
    slabs: int
    combines: int
    dots: int

    @classmethod
    def of(cls, patterns: tuple[Pattern, ...]) -> _Kinds:
        found = {anchor.name: anchor for pattern in patterns for anchor in anchors(pattern)}.values()
        combines = sum(isinstance(anchor, Red) and anchor.combines for anchor in found)
        dots = sum(isinstance(anchor, Dot) for anchor in found)
        return cls(len(found), sum(anchor.slab for anchor in found), combines, dots)

    def all_of(self, program: Program, kernel: Kernel) -> bool:
        """May these be all reductions of the kernel? Each must be one of them, and each of them one."""
        if len(kernel.anchors) != self.count:
            return False
        nodes = [program.nodes[name] for name in kernel.anchors]
        combines = sum(any(axis in program.slabs for axis in node.over) for node in nodes)
        if sum(bool(node.slab) for node in nodes) != self.slabs or combines != self.combines:
            return False
        return not self.dots or sum(contraction(node) is not None for node in nodes) >= self.dots


def _has_slab(pattern: Any) -> bool:
    if isinstance(pattern, Dot):
        return pattern.slab or _has_slab(pattern.a) or _has_slab(pattern.b)
    if isinstance(pattern, Red):
        return pattern.slab or any(map(_has_slab, (*pattern.args, pattern.inner)))
    if isinstance(pattern, Hole):
        return any(map(_has_slab, pattern.anchors))
    return _has_slab(pattern.pattern) if hasattr(pattern, "pattern") else False


def _combines_inside(pattern: Any, name: str) -> bool:
    """Is the anchor of this name a combine of slabs that the same kernel computes?"""
    if isinstance(pattern, Hole):
        return any(_combines_inside(anchor, name) for anchor in pattern.anchors)
    if isinstance(pattern, Red):
        return pattern.combines and pattern.inner is not None and pattern.name == name
    return hasattr(pattern, "pattern") and _combines_inside(pattern.pattern, name)


def _roles(pattern: Any) -> Iterator[str]:
    """Roles that a pattern names: of its holes, and of what it takes as an operand whatever it is."""
    parts: tuple[Any, ...]
    if isinstance(pattern, Hole):
        yield pattern.role
        parts = pattern.anchors
    elif isinstance(pattern, Turned):
        yield from (pattern.role, pattern.of)
        parts = ()
    elif isinstance(pattern, As):
        yield pattern.name
        parts = (pattern.pattern,)
    elif isinstance(pattern, Dot):
        parts = (pattern.a, pattern.b)
    elif isinstance(pattern, Red):
        parts = (*pattern.args, pattern.inner)
    else:
        parts = (getattr(pattern, "pattern", None),)
    for part in parts:
        if part is not None:
            yield from _roles(part)


@dataclass(frozen=True)
class GroupSizes:
    """Sizes as a template sees them: with those of its groups of axes, (letter, expression), over those of the op."""

    groups: tuple[tuple[str, str], ...]

    def __call__(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return _with_groups(self.groups, tuple(sizes.items()))


@lru_cache(maxsize=256)
def _with_groups(groups: tuple[tuple[str, str], ...], sizes: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    known = dict(sizes)
    own = {letter: expressions.evaluate(text, known) for letter, text in groups}
    row = {"N": own["K"]} if "K" in own and "N" not in own else {}
    return MappingProxyType({**row, **known, **own})


@dataclass(frozen=True)
class _OfGroups:
    """What a constraint demands, of the sizes of a kernel's groups."""

    holds: Callable[[Config, Device, Sizes], bool]
    sizes: GroupSizes

    def __call__(self, config: Config, device: Device, sizes: Sizes) -> bool:
        return self.holds(config, device, self.sizes(sizes))


@dataclass(frozen=True)
class Matched:
    """A kernel of a program and the template it fills."""

    template: Template
    program: Program
    label: int
    found: Found
    outputs: tuple[Place, ...]  # in the order of the template's roots

    @property
    def kernel(self) -> Kernel:
        return self.program.kernel(self.label)

    @cached_property
    def annotations(self) -> tuple[Annotation, ...]:
        """The template's annotations with axes for groups and value keys for roles, in order; a tile of no axes is
        left out, and so is what is skipped where nothing masks it."""
        steps = (self._concrete(step) for step in self.template.ann)
        return in_order(step for step in steps if not (step[0] in ("tile", "skip") and not step[1]))

    @cached_property
    def sizes(self) -> GroupSizes:
        """The sizes of its groups. Those of slabs are left out: they are a matter of the config."""
        extents, slabs = self.program.extents, self.program.slabs
        groups = ((n, axes) for n, axes in self.found.groups.items() if axes and not slabs.keys() & set(axes))
        return GroupSizes(tuple((letter, " * ".join(f"({extents[a]})" for a in axes)) for letter, axes in groups))

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The template's, over the op's sizes."""
        own = self.template.constraints
        if all(text == f"({letter})" for letter, text in self.sizes.groups):
            return own
        return tuple(Constraint(c.reason, _OfGroups(c.holds, self.sizes)) for c in own)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols that the kernel depends on: of its annotations, and how many slabs it computes or combines."""
        return tuple(dict.fromkeys((*self._slab_symbols, *symbols(self.annotations))))

    @property
    def _slab_symbols(self) -> tuple[str, ...]:
        nodes = [self.program.nodes[name] for name in self.kernel.anchors]
        cut = [slab for node in nodes for _, slab in node.slab]
        combined = [axis for node in nodes for axis in node.over if axis in self.program.slabs]
        return tuple(self.program.extents[slab] for slab in (*cut, *combined))

    @property
    def assumes(self) -> tuple[str, ...]:
        """The template's assumptions over strides of arrays and sizes of the program: "B.n == 1", "(d) <= BD"."""
        strides = (re.sub(r"\b(\w+)\.([A-Z]|base)\b", self._stride, text) for text in self.template.assumes)
        return tuple(re.sub(r"(?<![\w.])[A-Z](?![\w.])", self._size, text) for text in strides)

    def _size(self, word: re.Match[str]) -> str:
        extents = [self.program.extents[axis] for axis in self.found.groups.get(word[0], ())]
        return f"({' * '.join(f'({extent})' for extent in extents) or '1'})"

    def _stride(self, word: re.Match[str]) -> str:
        use = self.found.places[word[1]]
        if word[2] == "base":
            return f"{self.program.arrays[use.node, use.field]}.base"
        axes = self.found.groups[word[2]]
        names = {b: a for a, b in use.rename}
        return f"{self.program.arrays[use.node, use.field]}.{names.get(axes[-1], axes[-1])}"

    def _concrete(self, step: Annotation) -> Annotation:
        kind, what, *rest = step
        if kind in ("tile", "skip"):
            axes = tuple(axis for letter in what for axis in self.found.groups.get(letter, ()))
            return (kind, axes if kind == "tile" else self._masked(axes), *rest)
        if kind == "combine":
            return (kind, *self.found.groups.get(what, (what,)), *rest)
        if kind in ("keep", "move", "unit"):
            use = self.found.places.get(what)
            name = use.node if use else self.found.anchors[what]
            return (kind, self.program.keys[name], *rest)
        return step

    def _masked(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes that a mask of the kernel hides something of."""
        anchors = (self.program.nodes[name] for name in self.kernel.anchors)
        hidden = {k for node in anchors for _, k, _ in masks_above(self.program, self.kernel, node)}
        return tuple(axis for axis in axes if axis in hidden)

    # -- what the backend is told

    def binding(self) -> Binding:
        """Arrays, axes and expressions, in the program's names."""
        p, found = self.program, self.found
        roots = tuple(
            Root(p.arrays[place], p.at(place).axes, self._expression(Use(*place), {})) for place in self.outputs
        )
        named = {role for root in self.template.roots for role in _roles(root)}
        read = {
            role: use for role, use in found.places.items() if use.field and role in named and not self._is_root(use)
        }
        operands = {role: self._expression(use, {}) for role, use in read.items()}
        fields = self._fields()
        expressions = [*operands.values(), *(f.body for f in fields), *(root.value for root in roots)]
        places = dict.fromkeys((*self.kernel.reads, *self.outputs))
        arrays = tuple(Array(p.arrays[place], p.nodes[place[0]].dtype, p.at(place).axes) for place in places)
        axes = dict.fromkeys(a for part in (*found.groups.values(), *(x.axes for x in arrays)) for a in part)
        members = [p.nodes[name] for name in self.kernel.members]
        axes.update(dict.fromkeys(a for node in members for a in (*node.axes, *node.over)))
        wide = any(array.dtype == "float64" for array in arrays)
        return Binding(
            template=self.template.name,
            groups={letter: tuple(group) for letter, group in found.groups.items()},
            extents={axis: p.extents[axis] for axis in axes},
            operands=operands,
            roots=roots,
            arrays=arrays,
            scalars=tuple(dict.fromkeys(name for e in expressions for name in _scalars(e))),
            acc="float64" if wide else "float32",
            fields=fields,
            slabs={axis: slab for name in self.kernel.anchors for axis, slab in p.nodes[name].slab},
        )

    def _is_root(self, use: Use) -> bool:
        return (use.node, use.field) in self.outputs

    def _fields(self) -> tuple[Field, ...]:
        """The fields of the first anchor that is not matched as a contraction; not those of a combine whose slabs the
        same kernel computes, which are the slabs' own."""
        for name, value in self.found.anchors.items():
            node = self.program.nodes[value]
            if any(_combines_inside(root, name) for root in self.template.roots):
                continue
            if (name, name) in self.found.fields and len(node.fields) == 1 and self._is_dot(name):
                continue
            called = {own: p for (anchor, p), own in self.found.fields.items() if anchor == name}
            return tuple(
                Field(called[f.name], f.axes, f.monoid or "", self._body(value, f.body or (), {}, called))
                for f in node.fields
            )
        return ()

    def _is_dot(self, name: str) -> bool:
        def walk(pattern: Any) -> bool:
            if isinstance(pattern, Dot):
                return pattern.name == name or walk(pattern.a) or walk(pattern.b)
            if isinstance(pattern, Red):
                return any(map(walk, (*pattern.args, pattern.inner)))
            if isinstance(pattern, Hole):
                return any(map(walk, pattern.anchors))
            return walk(pattern.pattern) if hasattr(pattern, "pattern") else False

        return any(map(walk, self.template.roots))

    def _expression(self, use: Use, names: dict[str, str]) -> Expr:
        """A read as an expression; `names` renames the axes of the reader to the kernel's."""
        p = self.program
        inner = {a: names.get(b, b) for a, b in {**{x: x for x in names}, **dict(use.rename)}.items()}
        node = p.nodes[use.node]
        if node.kernel != self.label:
            axes = p.at((use.node, use.field)).axes
            return ("load", p.arrays[use.node, use.field], tuple(inner.get(a, a) for a in axes))
        if node.op == "red":
            anchor = next((n for n, value in self.found.anchors.items() if value == use.node), None)
            called = {own: q for (n, q), own in self.found.fields.items() if n == anchor}
            return ("acc", called.get(use.field, use.field))
        return self._body(use.node, node.field(use.field).body or (), inner, {})

    def _body(self, name: str, body: Body, names: dict[str, str], called: dict[str, str]) -> Expr:
        args = self.program.nodes[name].args

        def leaf(part: Body) -> Expr:
            if part[0] == "arg":
                return self._expression(args[part[1]], names)
            if part[0] == "field":
                return ("field", called[part[1]])
            return part

        return bodies.replace(bodies.rename_axes(body, names), leaf)


def _scalars(expression: Expr) -> Iterator[str]:
    if expression[0] == "scalar":
        yield expression[1]
    elif expression[0] not in ("load", "acc", "const", "field"):
        for part in expression[1:]:
            if isinstance(part, tuple):
                yield from _scalars(part)
