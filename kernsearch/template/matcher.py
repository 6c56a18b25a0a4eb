"""Matching patterns against the kernels of a program.

A match is made of unchanging `Found`s, so that every way can be followed side by side: operands commute, outputs meet
roots in any order, and several anchors below a hole are told apart by what is above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from ..program import Kernel, Place, Program
from ..program import body as bodies
from ..program.body import Body
from ..program.value import Axes, Node, Use, contraction
from .pattern import Anything, As, Dot, Hole, Pattern, Red, Turned


@dataclass(frozen=True)
class Found:
    """A partial or whole match.

    anchors  name -> value              fields   (anchor, pattern's field) -> the value's field
    places   role or name -> place, as read with this axis renaming
    groups   letter -> axes             unions   (letters, axes) still to be solved
    """

    anchors: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[tuple[str, str], str] = field(default_factory=dict)
    places: Mapping[str, Use] = field(default_factory=dict)
    groups: Mapping[str, Axes] = field(default_factory=dict)
    unions: tuple[tuple[str, Axes], ...] = ()
    covered: frozenset[str] = frozenset()

    def but(self, **changes: Any) -> Found:
        """With some fields changed. As `dataclasses.replace`, in a fifth of the time: matching does little else."""
        found = object.__new__(Found)
        found.__dict__.update(self.__dict__, **changes)
        return found

    def cover(self, names: set[str] | frozenset[str]) -> Found:
        return self.but(covered=self.covered | names)

    def place(self, role: str, use: Use) -> Found | None:
        if role in self.places and self.places[role] != use:
            return None
        return self.but(places={**self.places, role: use})

    def group(self, letter: str, axes: Axes) -> Found | None:
        if letter in self.groups:
            return self if set(self.groups[letter]) == set(axes) else None
        return self.but(groups={**self.groups, letter: axes})

    def union(self, letters: str, axes: Axes) -> Found:
        return self.but(unions=(*self.unions, (letters, axes)))

    def solved(self) -> Found | None:
        """With every union of groups settled, the smaller ones first: what bound letters leave over goes to the first
        unbound one."""
        found: Found | None = self
        for letters, axes in sorted(self.unions, key=lambda union: len(union[1])):
            assert found is not None
            left = tuple(a for a in axes if not any(a in found.groups.get(letter, ()) for letter in letters))
            bound = {a for letter in letters for a in found.groups.get(letter, ())}
            if not bound <= set(axes):
                return None
            for letter in (letter for letter in letters if letter not in found.groups):
                found = found.but(groups={**found.groups, letter: left})
                left = ()
            if left:
                return None
        return found.but(unions=()) if found else None


@dataclass(frozen=True)
class Matcher:
    """Matches patterns within one kernel. `unsplit`: a reduction still to be split matches a slab pattern."""

    program: Program
    kernel: Kernel
    unsplit: bool = False

    def match(
        self, roots: tuple[Pattern, ...], *, some_roots: bool = False
    ) -> Iterator[tuple[Found, tuple[Place, ...]]]:
        """Every way in which the kernel's outputs unify one to one with the roots (with some of them, when
        `some_roots`) so that every member is covered; with the outputs in the order of the roots."""
        outputs = self.kernel.outputs
        if len(outputs) > len(roots) or (len(outputs) < len(roots) and not some_roots):
            return
        members = set(self.kernel.members)
        for chosen in permutations(range(len(roots)), len(outputs)):
            partial = [Found()]
            for root, place in zip(chosen, outputs, strict=True):
                partial = [done for found in partial for done in self._root(roots[root], place, found)]
            for found in partial:
                whole = found.solved()
                if whole is not None and whole.covered == members:
                    order = sorted(range(len(outputs)), key=lambda i: chosen[i])
                    yield whole, tuple(outputs[i] for i in order)

    def _root(self, pattern: Pattern, place: Place, found: Found) -> Iterator[Found]:
        axes = self.program.at(place).axes
        for done in self._at(pattern, Use(*place), axes, found):
            if isinstance(pattern, Hole) and not pattern.groups and pattern.anchors:
                reach = {a for p in pattern.anchors for a in self._anchor_axes(p, done)}
                if not set(axes) <= reach:
                    continue
            yield done

    def _anchor_axes(self, pattern: Pattern, found: Found) -> set[str]:
        while isinstance(pattern, As):
            pattern = pattern.pattern
        name = getattr(pattern, "name", "")
        return set(self.program.nodes[found.anchors[name]].axes) if name in found.anchors else set()

    def _inside(self, name: str) -> bool:
        return self.program.nodes[name].kernel == self.kernel.label

    def _at(self, pattern: Pattern, use: Use, axes: Axes, found: Found) -> Iterator[Found]:
        """Match a pattern at a read; `axes` are the read's, as its reader names them."""
        match pattern:
            case Anything():
                if not self._inside(use.node):
                    yield found
            case As(name, inner):
                if (named := found.place(name, use)) is not None:
                    yield from self._at(inner, use, axes, named)
            case Hole():
                yield from self._hole(pattern, use, axes, found)
            case Turned():
                yield from self._turned(pattern, use, axes, found)
            case Dot() | Red():
                if not use.rename:
                    yield from self._anchor(pattern, use.node, found)

    def _hole(self, pattern: Hole, use: Use, axes: Axes, found: Found) -> Iterator[Found]:
        named = found.place(pattern.role, use)
        if named is None:
            return
        maps, reductions, reads = self._above(use, axes)
        if len(reductions) != len(pattern.anchors):
            return
        allowed = set(axes)
        if any(not set(seen) <= allowed for seen in reads):
            return
        if pattern.groups:
            named = named.union(pattern.groups, axes)
        named = named.cover(maps)
        for order in permutations(reductions):
            partial = [named]
            for anchor, name in zip(pattern.anchors, order, strict=True):
                partial = [done for part in partial for done in self._at(anchor, Use(name, ""), (), part)]
            yield from partial

    def _turned(self, pattern: Turned, use: Use, axes: Axes, found: Found) -> Iterator[Found]:
        node = self.program.nodes[use.node]
        if not self._inside(use.node) or node.op != "map" or node.field(use.field).body != bodies.arg(0):
            return
        moved = node.args[0]
        seen = self._seen(moved)
        if self._inside(moved.node) or set(seen) != set(axes) or len(seen) != len(axes) or seen[-1:] == axes[-1:]:
            return
        parts = (axes[-1:], seen[-1:], tuple(a for a in axes if a not in (axes[-1], seen[-1])))
        grouped = found.place(pattern.role, use)
        for letter, part in zip(pattern.groups, parts, strict=True):
            grouped = grouped.group(letter, part) if grouped else None
        if grouped and (named := grouped.place(pattern.of, moved)):
            yield named.cover({use.node})

    def _above(self, use: Use, axes: Axes) -> tuple[set[str], tuple[str, ...], list[Axes]]:
        """The maps of this kernel at and above a read, the reductions of this kernel they end at, and the axes of
        everything read or computed on the way."""
        maps: set[str] = set()
        reductions: dict[str, None] = {}
        reads: list[Axes] = []
        stack = [(use, dict(use.rename))]
        while stack:
            one, names = stack.pop()
            node = self.program.nodes[one.node]
            reads.append(tuple(names.get(a, a) for a in self.program.at((one.node, one.field)).axes))
            if not self._inside(one.node):
                continue
            if node.op == "red":
                reductions[one.node] = None
                continue
            maps.add(one.node)
            for inner in node.args:
                inner_names = {a: names.get(b, b) for a, b in inner.rename}
                stack.append((inner, {**names, **inner_names}))
        return maps, tuple(reductions), reads

    def _anchor(self, pattern: Dot | Red, name: str, found: Found) -> Iterator[Found]:
        node = self.program.nodes[name]
        if not self._inside(name) or node.op != "red":
            return
        if pattern.name in found.anchors or name in found.anchors.values():
            if found.anchors.get(pattern.name) == name:
                yield found
            return
        named = found.but(anchors={**found.anchors, pattern.name: name}).cover({name})
        if isinstance(pattern, Red) and pattern.combines:
            yield from self._combine(pattern, name, node, named)
            return
        if any(axis in self.program.slabs for axis in node.over):
            return
        if bool(node.slab) != pattern.slab and not (self.unsplit and pattern.slab):
            return
        if node.slab:
            grouped = named.group("S", tuple(slab for _, slab in node.slab))
            if grouped is None:
                return
            named = grouped
        if isinstance(pattern, Dot):
            yield from self._dot(pattern, node, named)
        elif pattern.fields is None:
            yield from self._any_red(pattern, node, named)
        else:
            yield from self._red(pattern, node, named)

    def _dot(self, pattern: Dot, node: Node, found: Found) -> Iterator[Found]:
        operands = contraction(node)
        if operands is None:
            return
        slabs = {slab for _, slab in node.slab}
        out = tuple(a for a in node.fields[0].axes if a not in slabs)
        found = found.but(fields={**found.fields, (pattern.name, pattern.name): node.fields[0].name})
        for a, b in (operands, operands[::-1]):
            a_axes, b_axes = self._seen(a), self._seen(b)
            parts = (
                tuple(x for x in out if x in a_axes and x not in b_axes),
                tuple(x for x in out if x in b_axes and x not in a_axes),
                node.over,
                tuple(x for x in out if x in a_axes and x in b_axes),
            )
            grouped: Found | None = found
            for letter, axes in zip(pattern.groups, parts, strict=True):
                grouped = grouped.group(letter, axes) if grouped else None
            if grouped is None:
                continue
            for part in self._at(pattern.a, a, a_axes, grouped):
                yield from self._at(pattern.b, b, b_axes, part)

    def _seen(self, use: Use) -> Axes:
        return use.seen(self.program.at((use.node, use.field)).axes)

    def _grouped(self, pattern: Red, node: Node, found: Found, narrow: Axes, wide: Axes) -> Found | None:
        """M and B share the axes of the narrow fields, N gets what the wide ones add, K is reduced; a combine in the
        kernel of its slabs reduces S."""
        m, n, k, b = tuple(pattern.groups)
        if pattern.inner is not None:
            grouped = found.group("S", node.over)
            return grouped.union(m + n + b, narrow + wide) if grouped else None
        grouped = found.group(k, node.over)
        return grouped.union(m + b, narrow).union(n, wide) if grouped else None

    def _any_red(self, pattern: Red, node: Node, found: Found) -> Iterator[Found]:
        if contraction(node) is not None:
            return
        slabs = {slab for _, slab in node.slab}
        narrow = tuple(a for a in node.fields[0].axes if a not in slabs)
        wide = tuple(a for a in node.axes if a not in slabs and a not in narrow)
        grouped = self._grouped(pattern, node, found, narrow, wide)
        if grouped is None:
            return
        names = {(pattern.name, f.name): f.name for f in node.fields}
        partial = [grouped.but(fields={**grouped.fields, **names})]
        for position, use in enumerate(node.args):
            role = f"X{position}"
            partial = [done for part in partial for done in self._at(Hole(role), use, self._seen(use), part)]
        yield from partial

    def _combine(self, pattern: Red, name: str, node: Node, found: Found) -> Iterator[Found]:
        if not node.over or not all(axis in self.program.slabs for axis in node.over):
            if self.unsplit and pattern.inner is not None:  # the combine does not exist yet: its slabs stand for it
                without = found.but(anchors={k: v for k, v in found.anchors.items() if k != pattern.name})
                yield from self._anchor(pattern.inner, name, without)  # type: ignore[arg-type]
            return
        grouped = self._grouped(pattern, node, found, node.fields[0].axes,
                                tuple(a for a in node.axes if a not in node.fields[0].axes))  # fmt: skip
        if grouped is None:
            return
        named = {(pattern.name, f.name): f.name for f in node.fields}
        if pattern.fields is not None:
            if len(pattern.fields) != len(node.fields):
                return
            named = {(pattern.name, f.name): g.name for f, g in zip(pattern.fields, node.fields, strict=True)}
        grouped = grouped.but(fields={**grouped.fields, **named})
        producers = {use.node for use in node.args}
        if pattern.inner is None:
            if not any(self._inside(producer) for producer in producers):
                for position, use in enumerate(node.args):
                    placed = grouped.place(f"X{position}", use)
                    if placed is None:
                        return
                    grouped = placed
                yield grouped
        elif len(producers) == 1:
            yield from self._at(pattern.inner, Use(producers.pop(), ""), (), grouped)

    def _red(self, pattern: Red, node: Node, found: Found) -> Iterator[Found]:
        assert pattern.fields is not None
        if len(pattern.fields) != len(node.fields):
            return
        for order in permutations(node.fields):
            if any(p.monoid != f.monoid for p, f in zip(pattern.fields, order, strict=True)):
                continue
            names = {p.name: f.name for p, f in zip(pattern.fields, order, strict=True)}
            partial: list[dict[int, int]] = [{}]
            for p, f in zip(pattern.fields, order, strict=True):
                assert f.body is not None
                partial = [done for part in partial for done in unify(p.body, f.body, names, part)]
            if not partial:
                continue
            args = partial[0]
            slabs = {slab for _, slab in node.slab}
            kept = [tuple(a for a in f.axes if a not in slabs) for f in order]
            narrow = next((k for p, k in zip(pattern.fields, kept, strict=True) if not p.wide), ())
            wide = tuple(dict.fromkeys(a for k in kept for a in k if a not in narrow))
            if any(set(k) != set(narrow) for p, k in zip(pattern.fields, kept, strict=True) if not p.wide):
                continue
            grouped = self._grouped(pattern, node, found, narrow, wide)
            if grouped is None:
                continue
            fields = {(pattern.name, p): f for p, f in names.items()}
            matches = [grouped.but(fields={**grouped.fields, **fields})]
            for position, operand in enumerate(pattern.args):
                use = node.args[args[position]]
                matches = [done for part in matches for done in self._at(operand, use, self._seen(use), part)]
            yield from matches


def unify(p: Body, b: Body, fields: Mapping[str, str], args: dict[int, int]) -> Iterator[dict[int, int]]:
    """Ways to map the arguments of pattern body `p` so that it equals `b`; commuting functions in either order."""
    if p[0] == "arg":
        if b[0] == "arg" and args.get(p[1], b[1]) == b[1]:
            yield {**args, p[1]: b[1]}
        return
    if p[0] == "field":
        if b == ("field", fields.get(p[1])):
            yield args
        return
    if bodies.is_leaf(p) or p[0] == "mask":
        if p == b:
            yield args
        return
    if p[0] != b[0] or len(p) != len(b):
        return
    for order in permutations(b[1:]) if p[0] in bodies.COMMUTING else (b[1:],):
        partial = [args]
        for one, other in zip(p[1:], order, strict=True):
            partial = [done for part in partial for done in unify(one, other, fields, part)]
        yield from partial
