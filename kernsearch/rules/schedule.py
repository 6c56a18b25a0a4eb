"""Schedule steps: annotations that a kernel collects, in one fixed order, as a trie that all programs share.

    ("tile", (axis, ...), level, SYMBOL)   level: block | warp | thread | serial | register
    ("keep", value, level)                 level: cluster | shared | registers
    ("move", value, how[, SYMBOL])         how: pack | sync | vector | async | bulk
    ("unit", value, unit)                  unit: simd | mma | wgmma
    ("grid", how)                          how: persistent
    ("roles", which)                       which: producer_consumer
    ("combine", slab axis, how)            how: atomic | cluster; put there by split_reduction
    ("skip", (axis, ...))

Values are value keys and axes are the program's, so that an annotated kernel says the same in every program. Steps are
added in the order of KINDS, and within a kind in the template's order: there is one path to each set of annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..program import Annotation, Program, Site

KINDS = ("combine", "tile", "keep", "move", "unit", "grid", "roles", "skip")


def in_order(steps: Iterable[Annotation]) -> tuple[Annotation, ...]:
    """Steps in the order in which they are added."""
    return tuple(sorted(steps, key=lambda step: KINDS.index(step[0])))


def symbols(steps: Iterable[Annotation]) -> tuple[str, ...]:
    """Symbols that the steps introduce, in order."""
    found: dict[str, None] = {}
    for step in steps:
        at = {"tile": 3, "move": 3}.get(step[0])
        if at is not None and len(step) > at:
            found[step[at]] = None
    return tuple(found)


@dataclass
class Trie:
    """Schedules of one kernel: a path spells a set of annotations, `leaf` names what implements it."""

    steps: dict[Annotation, Trie] = field(default_factory=dict)
    leaf: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, goals: Mapping[str, tuple[Annotation, ...]]) -> Trie:
        """The trie whose leaves are these sets of annotations, by name."""
        trie = cls()
        for name, steps in goals.items():
            at = trie
            for step in in_order(steps):
                at = at.steps.setdefault(step, cls())
            at.leaf.append(name)
        return trie

    def states(self) -> int:
        return 1 + sum(child.states() for child in self.steps.values())

    def leaves(self, path: tuple[Annotation, ...] = ()) -> Iterable[tuple[tuple[Annotation, ...], str]]:
        """(path, name) of every leaf."""
        for name in self.leaf:
            yield path, name
        for step, child in self.steps.items():
            yield from child.leaves((*path, step))


def apply(program: Program, site: Site) -> Program | None:
    """The program with the site's annotation added to the site's kernel; None when there is no such kernel, or the
    step comes too late."""
    for kernel in program.kernels:
        if kernel.key in site.kernels and isinstance(site.choice, tuple):
            last = kernel.annotations[-1][0] if kernel.annotations else KINDS[0]
            if KINDS.index(site.choice[0]) >= KINDS.index(last):
                return program.annotated(kernel.label, site.choice)
    return None
