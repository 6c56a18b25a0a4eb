"""Fusion: rules that change which kernel computes what. The rank of the program falls on every step."""

from __future__ import annotations

from dataclasses import replace

from ..program import Kernel, Program
from ..program.value import Nodes, fresh
from . import Rewrites, rule


def _axes(p: Program, kernel: Kernel) -> set[str]:
    return {axis for name in kernel.members for axis in p.nodes[name].axes}


def _readers(p: Program, kernel: Kernel) -> tuple[int, ...]:
    """Kernels that read what this one leaves in memory."""
    return tuple(sorted(p.quotient.successors(kernel.label)))


def _returns(p: Program, kernel: Kernel) -> bool:
    """Does it hold an output of the program?"""
    return any(out.node in kernel.members for out in p.outs)


def _joined(p: Program, wanted: dict[int, int]) -> tuple[Program, dict[int, int]]:
    """As many of the wanted joins as are legal together, in their order."""
    made: dict[int, int] = {}
    result = p
    for label, into in wanted.items():
        tried = p.moved({**made, label: into})
        if tried.legal:
            made[label], result = into, tried
    return result, made


@rule(phase="fusion")
def fuse_maps(p: Program) -> Rewrites:
    """Maps that read each other and have the same axes become one kernel, all at once.

    {scaled = alpha * acc}  {biased = scaled + bias}  {D = gelu(biased)}   ->   {scaled, biased, D}
    """
    result, maps = p, [kernel for kernel in p.kernels if kernel.is_map]
    into: dict[int, int] = {}

    def home(label: int) -> int:
        while label in into:
            label = into[label]
        return label

    by_label = {kernel.label: kernel for kernel in maps}
    for kernel in maps:
        for producer in sorted(p.quotient.predecessors(kernel.label)):
            start, end = home(producer), home(kernel.label)
            if producer not in by_label or start == end or _axes(p, by_label[producer]) != _axes(p, kernel):
                continue
            tried = p.moved({label: home(label) if home(label) != end else start for label in by_label})
            if tried.legal:
                into[end], result = start, tried
    if into:
        yield p.site(kernels=sorted({*into, *into.values()})), result


@rule(phase="fusion")
def fuse_prologues(p: Program) -> Rewrites:
    """Maps read by one reduction only are computed where it reads them, all at once.

    {y = x * w}  {s = sum of y}   ->   {y, s}
    """
    wanted = {}
    for kernel in p.kernels:
        readers = _readers(p, kernel)
        if kernel.is_map and not _returns(p, kernel) and len(readers) == 1 and not p.kernel(readers[0]).is_map:
            wanted[kernel.label] = readers[0]
    result, made = _joined(p, wanted)
    if made:
        yield p.site(kernels=sorted({*made, *made.values()})), result


@rule(phase="fusion")
def fuse_epilogues(p: Program) -> Rewrites:
    """Maps that read a reduction are computed where it ends, all at once; of several reductions, the last.

    {acc = sum of a * b}  {scaled, biased, D}   ->   {acc, scaled, biased, D}
    """
    order = {kernel.label: position for position, kernel in enumerate(p.kernels)}
    wanted = {}
    for kernel in p.kernels:
        above = [label for label in p.quotient.predecessors(kernel.label) if not p.kernel(label).is_map]
        if kernel.is_map and above:
            wanted[kernel.label] = max(above, key=order.__getitem__)
    result, made = _joined(p, wanted)
    if made:
        yield p.site(kernels=sorted({*made, *made.values()})), result


@rule(phase="fusion")
def fuse(p: Program) -> Rewrites:
    """A reduction is computed inside the reduction that reads it.

    {s = q k^T, masked}  {(m, l, o) over masked}   ->   {s, masked, (m, l, o)}
    """
    for first, second in sorted(p.quotient.edges):
        if p.kernel(first).anchors and p.kernel(second).anchors:
            joined = p.moved({second: first})
            if joined.legal:
                yield p.site(kernels=(first, second)), joined


@rule(phase="fusion")
def fuse_siblings(p: Program) -> Rewrites:
    """Two reductions that read the same value, and neither the other, become one kernel.

    {a = sum of x}  {b = sum of x * x}   ->   {a, b}
    """
    kernels = [kernel for kernel in p.kernels if kernel.anchors]
    for position, one in enumerate(kernels):
        for other in kernels[position + 1 :]:
            related = p.before(one.label, other.label) or p.before(other.label, one.label)
            if set(one.reads) & set(other.reads) and not related:
                yield p.site(kernels=(one.label, other.label)), p.moved({other.label: one.label})


@rule(phase="fusion")
def clone_producer(p: Program) -> Rewrites:
    """A kernel is computed anew inside each of its readers, so that its values are never written.

        {e = exp(x - m)}  {l = sum of e}  {y = e / l}   ->   {e, l}  {e, y}

    `deep` takes along its own producers whose values have at least as many axes; statistics are still read.
    """
    for kernel in p.kernels:
        readers = _readers(p, kernel)
        if _returns(p, kernel) or len(readers) < 2:
            continue
        shallow = set(kernel.members)
        deep = _deep(p, kernel)
        for choice, members in (("shallow", shallow), ("deep", deep)):
            if choice == "deep" and deep == shallow:
                continue
            cloned = _cloned(p, members, readers)
            if cloned.legal:
                yield p.site(kernels=(kernel.label,), choice=choice), cloned


def _deep(p: Program, kernel: Kernel) -> set[str]:
    taken, stack = {kernel.label}, [kernel]
    width = min(len(p.at(place).axes) for place in kernel.outputs)
    while stack:
        one = stack.pop()
        for place in one.reads:
            label = p.nodes[place[0]].kernel
            if label is not None and label not in taken and len(p.at(place).axes) >= width:
                taken.add(label)
                stack.append(p.kernel(label))
    return {name for label in taken for name in p.members[label]}


def _cloned(p: Program, members: set[str], readers: tuple[int, ...]) -> Program:
    """With the members copied into each reader. What nobody reads any more goes."""
    nodes: Nodes = dict(p.nodes)
    for reader in readers:
        copies: dict[str, str] = {}
        for name in p.order:
            if name in members:
                copies[name] = fresh(nodes, name)
                nodes[copies[name]] = p.nodes[name]
        for name in (*copies.values(), *p.members[reader]):
            node = nodes[name]
            args = tuple(replace(use, node=copies.get(use.node, use.node)) for use in node.args)
            nodes[name] = replace(node, args=args, kernel=reader)
    return Program.of(nodes, p.outs, p.extents, p.annotations, p.facts)
