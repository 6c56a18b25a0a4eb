"""Split: one law for split-K, split rows and split keys."""

from __future__ import annotations

from dataclasses import replace

from ..program import Program
from ..program import body as bodies
from ..program.body import SCALE, Body
from ..program.value import Field, Node, Use, fresh
from . import Rewrites, rule

SYMBOL = "SPLIT"  # how many slabs
WHERE = ("second_kernel", "atomic", "cluster")


@rule(phase="split")
def split_reduction(p: Program) -> Rewrites:
    """Cut a reduced axis into slabs and combine the partial results.

        C[m,n]   = sum over k of A[m,k] * B[k,n]
     -> P[s,m,n] = sum over k in slab s          # the last slab may be ragged, later ones empty
        C[m,n]   = combine over s of P[s,m,n]    # rescaled where a field scales in a maximum

    The combine is a kernel of its own, together with all that followed in the old one; or it is in the same kernel,
    by atomics (one field, nothing after it; the order of additions is then not fixed) or within a cluster.
    A program is split once.
    """
    if p.slabs:
        return
    for name, axis in p.reductions():
        for where in WHERE:
            if where != "atomic" or _may_be_atomic(p, name):
                yield p.site(values=(name,), axes=(axis,), choice=where), _split(p, name, axis, where)


def _may_be_atomic(p: Program, name: str) -> bool:
    node = p.nodes[name]
    same = [reader for reader in p.readers[name] if p.nodes[reader].kernel == node.kernel]
    return len(node.fields) == 1 and not same


def _split(p: Program, name: str, axis: str, where: str) -> Program:
    node = p.nodes[name]
    slab = "s" if "s" not in p.extents else f"{axis}_slab"
    part = fresh(p.nodes, f"{name}_part")
    partial = replace(node, fields=tuple(replace(f, axes=(slab, *f.axes)) for f in node.fields), slab=((axis, slab),))
    uses = tuple(Use(part, f.name) for f in node.fields)
    fields = tuple(Field(f.name, f.axes, f.monoid, _combined(node, f)) for f in node.fields)
    combine = Node("red", fields, node.dtype, uses, (slab,), kernel=node.kernel)
    changes = {part: partial, name: combine}
    if where == "second_kernel":
        later = max(p.members) + 1
        stay = p.ancestors[name]
        for other in p.members[node.kernel or 0]:
            if other not in stay and other != name:
                changes[other] = replace(p.nodes[other], kernel=later)
        changes[name] = replace(combine, kernel=later)
        return p.edited(changes, None, **{slab: SYMBOL})
    split = p.edited(changes, None, **{slab: SYMBOL})
    return split.annotated(split.nodes[name].kernel or 0, ("combine", slab, where))


def _combined(node: Node, field: Field) -> Body:
    """The field of a slab, carried from that slab's maximum to the common one."""
    value = bodies.arg(node.index(field.name))
    for other in node.fields[: node.index(field.name)]:
        if bodies.dependence(field.body or (), other.name) is SCALE:
            factor = bodies.rescale(bodies.arg(node.index(other.name)), bodies.own(other.name))
            value = ("mul", value, factor)
    return value
