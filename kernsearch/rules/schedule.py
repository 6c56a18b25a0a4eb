"""Schedule steps: annotations that a kernel collects, in one fixed order, as a trie that all programs share.

    ("tile", (axis, ...), level, SYMBOL)   level: block | serial | warp | thread | register
    ("keep", value, level)                 level: cluster | shared | registers
    ("move", value, how[, SYMBOL])         how: pack | sync | vector | async | bulk; SYMBOL: stages
    ("unit", value, unit)                  unit: simd | mma | wgmma | avx512_bf16 | amx_bf16
    ("grid", how)                          how: persistent
    ("roles", which)                       which: producer_consumer
    ("combine", slab axis, how)            how: atomic | cluster; put there by split_reduction
    ("skip", (axis, ...))

`loops` says what loops they make, `tiles` executes them, `claims` prices them, and `refusal` says which may be added.

Values are value keys and axes are the program's, so that an annotated kernel says the same in every program. Steps are
added in the order of KINDS, and within a kind in the template's order: there is one path to each set of annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..meaning.loops import ASYNCHRONOUS, may_skip
from ..program import Annotation, Kernel, Program, Site

KINDS = ("combine", "tile", "keep", "move", "unit", "grid", "roles", "skip")
WORDS = {
    "combine": ("atomic", "cluster"),
    "tile": ("block", "serial", "warp", "thread", "register"),
    "keep": ("cluster", "shared", "registers"),
    "move": ("pack", "sync", "vector", "async", "bulk"),
    "unit": ("simd", "mma", "wgmma", "avx512_bf16", "amx_bf16"),
    "grid": ("persistent",),
    "roles": ("producer_consumer",),
}


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
    step may not be added to it."""
    for kernel in program.kernels:
        if kernel.key in site.kernels and isinstance(site.choice, tuple):
            if refusal(program, kernel, site.choice):
                return None
            return program.annotated(kernel.label, site.choice)
    return None


def refusal(program: Program, kernel: Kernel, step: Annotation) -> str:
    """Why a step may not be added to a kernel; "" when it may."""
    kind = step[0]
    if kind not in KINDS:
        return f"{kind!r} is not a kind of step; want one of {', '.join(KINDS)}"
    if kernel.annotations and KINDS.index(kind) < KINDS.index(kernel.annotations[-1][0]):
        return f"{kind} comes after {kernel.annotations[-1][0]}; want the order {', '.join(KINDS)}"
    if step in kernel.annotations:
        return f"{step} is there already"
    if any(not isinstance(word, str | tuple) for word in step):
        return f"{step} holds a number; want a symbol"
    word = step[1 if kind in ("grid", "roles") else 2] if kind in WORDS else ""
    if kind in WORDS and word not in WORDS[kind]:
        return f"{kind} {word!r}: want one of {', '.join(WORDS[kind])}"
    match kind:
        case "tile":
            return _tile_refusal(program, kernel, step)
        case "keep" | "move" | "unit":
            return _value_refusal(program, kernel, step)
        case "roles":
            ahead = any(other[0] == "move" and other[2] in ASYNCHRONOUS for other in kernel.annotations)
            return "" if ahead else "no value moves by itself, so there is nothing for a producer to do"
        case "combine":
            return _combine_refusal(program, kernel, step)
        case "skip":
            wrong = [axis for axis in step[1] if not may_skip(program, kernel, axis)]
            return f"a masked tile of {wrong[0]} does not leave every field as it is" if wrong else ""
    return ""


def _tile_refusal(program: Program, kernel: Kernel, step: Annotation) -> str:
    _, axes, level, _ = step
    nodes = [program.nodes[name] for name in kernel.members]
    known = {axis for node in nodes for axis in (*node.axes, *node.over)}
    written = {axis for place in kernel.outputs for axis in program.at(place).axes}
    if unknown := [axis for axis in axes if axis not in known]:
        return f"the kernel has no axis {unknown[0]}"
    if level == "block" and (reduced := [axis for axis in axes if axis not in written]):
        return f"blocks share nothing, so {reduced[0]}, which no output has, must be split before it is tiled by block"
    twice = {axis for other in kernel.annotations if other[0] == "tile" and other[2] == level for axis in other[1]}
    if again := [axis for axis in axes if axis in twice]:
        return f"{again[0]} has a {level} tile already"
    return ""


def _value_refusal(program: Program, kernel: Kernel, step: Annotation) -> str:
    names = (*kernel.members, *(place[0] for place in kernel.reads))
    found = [name for name in names if program.keys[name] == step[1]]
    if not found:
        return f"the kernel neither computes nor reads the value {step[1]}"
    if step[0] == "unit" and program.nodes[found[0]].op != "red":
        return "only a reduction runs on a unit"
    return ""


def _combine_refusal(program: Program, kernel: Kernel, step: Annotation) -> str:
    combines = [name for name in kernel.anchors if step[1] in program.nodes[name].over]
    if step[1] not in program.slabs or not combines:
        return f"the kernel combines no slabs of {step[1]}"
    nodes = [program.nodes[name] for name in combines]
    left = {place[0] for place in kernel.outputs}
    if step[2] == "atomic" and not all(len(node.fields) == 1 for node in nodes):
        return "atomics combine one field"
    if step[2] == "atomic" and not left.issuperset(combines):
        return "atomics leave the sum in memory, so nothing in the kernel may follow it"
    return ""
