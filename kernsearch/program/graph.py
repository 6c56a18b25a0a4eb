"""Programs: immutable graphs of values, partitioned into kernels. The one module that knows networkx.

A program computes a problem in some way. Its graph has the values as nodes and, on each edge, all uses of the producer
by the reader. Each value but an input belongs to a kernel; a partition is legal iff the graph of kernels is acyclic.
Values read by another kernel, and outputs, live in memory; everything else exists only inside its kernel.

Keys say when two things are the same. A value's key is blind to kernels and names; a kernel's key adds what is read
from outside, what it leaves in memory and its annotations; a program's key is made of its kernels' keys and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx

from .. import sizes as expressions
from .site import Annotation, Site
from .value import Axes, Field, Node, Nodes, Out, Use, cleaned, digest, topological, value_keys

Place = tuple[str, str]  # (value, field)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a program.

    members      values it computes, producers first
    outputs      what it leaves in memory
    reads        what it reads from memory: inputs and outputs of other kernels
    annotations  schedule steps, in order
    """

    label: int
    members: tuple[str, ...]
    outputs: tuple[Place, ...]
    reads: tuple[Place, ...]
    anchors: tuple[str, ...]  # members that are reductions
    annotations: tuple[Annotation, ...]
    key: str

    @property
    def is_map(self) -> bool:
        return not self.anchors


@dataclass(frozen=True, eq=False)
class Program:
    """Build with `Program.of`, `Sketch`, or the edits below. All edits return a new, cleaned program.

    extents      axis -> size expression: {"m": "M"}; a slab axis has a symbol: {"s": "SPLIT"}
    facts        (input, value key): the caller passes that value, saved from an earlier call, as this input
    annotations  kernel label -> schedule steps
    """

    nodes: Mapping[str, Node]
    outs: tuple[Out, ...]
    extents: Mapping[str, str]
    annotations: Mapping[int, tuple[Annotation, ...]] = field(default_factory=dict)
    facts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        nodes: Nodes,
        outs: tuple[Out, ...],
        extents: Mapping[str, str],
        annotations: Mapping[int, tuple[Annotation, ...]] | None = None,
        facts: tuple[tuple[str, str], ...] = (),
    ) -> Program:
        """A program without dead values and with kernels labelled in order. Inputs that facts speak of are kept, read
        or not. Says nothing on legality."""
        saved = {name: nodes[name] for name, _ in facts}
        nodes, outs = cleaned(nodes, outs)
        nodes = {**nodes, **saved}
        names = topological(nodes)
        labels: dict[int, int] = {}
        for name in names:
            kernel = nodes[name].kernel
            if kernel is not None:
                labels.setdefault(kernel, len(labels))
        renamed = {}
        for name in names:
            node = nodes[name]
            moved = node.kernel is not None and labels[node.kernel] != node.kernel
            renamed[name] = replace(node, kernel=labels[node.kernel]) if moved else node  # type: ignore[index]
        steps = {labels[k]: v for k, v in (annotations or {}).items() if k in labels and v}
        return cls(renamed, outs, dict(extents), steps, facts)

    # -- the graph

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The frozen graph: node attribute `value`, edge attribute `uses` of (position, field, axis renaming)."""
        graph = nx.DiGraph()
        for name, node in self.nodes.items():
            graph.add_node(name, value=node)
        for name, node in self.nodes.items():
            for producer in dict.fromkeys(use.node for use in node.args):
                uses = tuple((i, u.field, u.rename) for i, u in enumerate(node.args) if u.node == producer)
                graph.add_edge(producer, name, uses=uses)
        return nx.freeze(graph)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of the values, producers first: inputs, what reads those alone, and so on."""
        left = {name: len({use.node for use in node.args}) for name, node in self.nodes.items()}
        found = [name for name, count in left.items() if not count]
        for name in found:  # grows while it runs
            for reader in self.readers[name]:
                left[reader] -= 1
                if not left[reader]:
                    found.append(reader)
        return tuple(found)

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """All values that a value depends on."""
        found: dict[str, frozenset[str]] = {}
        for name in self.order:
            direct = {use.node for use in self.nodes[name].args}
            found[name] = frozenset(direct).union(*(found[d] for d in direct))
        return found

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Values that read a value."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.nodes}
        for name, node in self.nodes.items():
            for use in node.args:
                found[use.node][name] = None
        return {name: tuple(readers) for name, readers in found.items()}

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name, node in self.nodes.items() if node.op == "in")

    @cached_property
    def slabs(self) -> dict[str, str]:
        """Slab axis -> the reduced axis it cuts."""
        return {slab: axis for node in self.nodes.values() for axis, slab in node.slab}

    def reductions(self) -> Iterable[tuple[str, str]]:
        """(value, reduced axis) for every reduction."""
        return ((name, axis) for name in self.order for axis in self.nodes[name].over)

    def at(self, place: Place) -> Field:
        return self.nodes[place[0]].field(place[1])

    @cached_property
    def arrays(self) -> Mapping[Place, str]:
        """Names of what lives in memory: the caller's for inputs and outputs, the value's for what is between."""
        found = {(name, node.fields[0].name): name for name, node in self.nodes.items() if node.op == "in"}
        found.update({(out.node, out.field): out.name for out in self.outs})
        taken = set(found.values())
        for place in sorted(self.materialised - set(found)):
            several = sum(1 for other in self.materialised if other[0] == place[0]) > 1
            base = name = "_".join(place) if several else place[0]
            number = 1
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            taken.add(name)
            found[place] = name
        return found

    # -- the partition

    @cached_property
    def members(self) -> Mapping[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        for name in self.order:
            kernel = self.nodes[name].kernel
            if kernel is not None:
                found.setdefault(kernel, []).append(name)
        return {label: tuple(names) for label, names in found.items()}

    @cached_property
    def materialised(self) -> frozenset[Place]:
        """Fields that live in memory: outputs, and what another kernel reads. Inputs are not counted."""
        found = {(out.node, out.field) for out in self.outs}
        for node in self.nodes.values():
            for use in node.args:
                producer = self.nodes[use.node]
                if producer.kernel is not None and producer.kernel != node.kernel:
                    found.add((use.node, use.field))
        return frozenset(found)

    @cached_property
    def quotient(self) -> nx.DiGraph:
        """The graph of kernels."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.members)
        for node in self.nodes.values():
            for use in node.args:
                kernel = self.nodes[use.node].kernel
                if kernel is not None and kernel != node.kernel:
                    graph.add_edge(kernel, node.kernel)
        return graph

    @cached_property
    def legal(self) -> bool:
        return nx.is_directed_acyclic_graph(self.quotient)

    def before(self, first: int, second: int) -> bool:
        """Does the second kernel need, directly or not, what the first computes?"""
        return nx.has_path(self.quotient, first, second)

    @cached_property
    def _kernels(self) -> Mapping[int, Kernel]:
        found = {}
        for label, members in self.members.items():
            inside = set(members)
            outputs, reads, shape = [], [], []
            for name in members:
                node = self.nodes[name]
                left = [f.name for f in node.fields if (name, f.name) in self.materialised]
                outside = [use for use in node.args if use.node not in inside]
                outputs += [(name, f) for f in left]
                reads += [(use.node, use.field) for use in outside]
                outer = tuple(sorted({(self.keys[u.node], self.nodes[u.node].index(u.field)) for u in outside}))
                shape.append((self.keys[name], outer, tuple(node.index(f) for f in left)))
            steps = tuple(self.annotations.get(label, ()))
            found[label] = Kernel(
                label=label,
                members=members,
                outputs=tuple(outputs),
                reads=tuple(dict.fromkeys(reads)),
                anchors=tuple(name for name in members if self.nodes[name].op == "red"),
                annotations=steps,
                key=digest((tuple(sorted(shape)), steps)),
            )
        return found

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels in launch order; keys decide ties. Raises networkx.NetworkXUnfeasible when not legal."""
        order = nx.lexicographical_topological_sort(self.quotient, key=lambda label: self._kernels[label].key)
        return tuple(self._kernels[label] for label in order)

    def kernel(self, label: int) -> Kernel:
        return self._kernels[label]

    # -- keys

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """Value -> key."""
        return value_keys(self.nodes)

    @cached_property
    def key(self) -> str:
        outs = tuple((out.name, self.keys[out.node], self.nodes[out.node].index(out.field)) for out in self.outs)
        kernels = tuple(sorted(kernel.key for kernel in self._kernels.values()))
        return digest((kernels, outs, tuple(sorted(self.extents.items()))))

    @cached_property
    def rank(self) -> int:
        """Kernels + for each kernel, ancestors it does not compute itself. Falls on every fusion step."""
        total = len(self.members)
        for members in self.members.values():
            above: set[str] = set()
            for name in members:
                above |= {self.keys[a] for a in self.ancestors[name] if self.nodes[a].op != "in"}
            total += len(above - {self.keys[name] for name in members})
        return total

    def site(
        self,
        *,
        values: Iterable[str] = (),
        kernels: Iterable[int] = (),
        axes: Axes = (),
        choice: str | Annotation = "",
    ) -> Site:
        """The site of values and kernels given by name and label; a value's kernel comes along, since clones share
        a value key."""
        values = tuple(values)
        labels = list(kernels) + [k for v in values if (k := self.nodes[v].kernel) is not None]
        keys = sorted({self._kernels[label].key for label in labels})
        return Site(tuple(self.keys[v] for v in values), tuple(keys), tuple(axes), choice)

    # -- edits

    def edited(self, changes: Mapping[str, Node], outs: tuple[Out, ...] | None = None, **extents: str) -> Program:
        """With some values replaced or added."""
        return Program.of(
            {**self.nodes, **changes},
            self.outs if outs is None else outs,
            {**self.extents, **extents},
            self.annotations,
            self.facts,
        )

    def moved(self, kernels: Mapping[int, int]) -> Program:
        """With kernels joined: every member of a key goes to the kernel it maps to."""
        changes = {
            name: replace(node, kernel=kernels[node.kernel])
            for name, node in self.nodes.items()
            if node.kernel is not None and kernels.get(node.kernel, node.kernel) != node.kernel
        }
        return self.edited(changes)

    def annotated(self, label: int, *steps: Annotation) -> Program:
        """With schedule steps appended to a kernel."""
        after = {**self.annotations, label: (*self.annotations.get(label, ()), *steps)}
        program = replace(self, annotations=after)
        program.__dict__.update({name: value for name, value in self.__dict__.items() if name in _BLIND_TO_ANNOTATIONS})
        return program

    def swapped(self, old: Mapping[Place, Place], changes: Mapping[str, Node]) -> Program:
        """With `changes` made and every read of a place of `old`, by the program's own values too, sent to the new
        place. The changes themselves are taken as they are."""

        def to(use: Use) -> Use:
            node, name = old.get((use.node, use.field), (use.node, use.field))
            return use if (node, name) == (use.node, use.field) else replace(use, node=node, field=name)

        nodes = {n: replace(v, args=tuple(map(to, v.args))) for n, v in self.nodes.items() if n not in changes}
        outs = tuple(Out(o.name, *old.get((o.node, o.field), (o.node, o.field))) for o in self.outs)
        return Program.of({**nodes, **changes}, outs, self.extents, self.annotations, self.facts)

    # -- sizes

    def extent(self, axis: str, sizes: Mapping[str, int]) -> int:
        return expressions.evaluate(self.extents[axis], sizes)

    def elements(self, place: Place, sizes: Mapping[str, int]) -> int:
        """Elements of a field."""
        count = 1
        for axis in self.at(place).axes:
            count *= self.extent(axis, sizes)
        return count

    def traffic(self, sizes: Mapping[str, int]) -> int:
        """Elements that kernels read from memory and leave there, each place once a kernel: the least possible."""
        return sum(self.elements(place, sizes) for k in self._kernels.values() for place in (*k.reads, *k.outputs))


_BLIND_TO_ANNOTATIONS = (
    *("graph", "order", "ancestors", "readers", "slabs", "arrays"),
    *("members", "materialised", "quotient", "legal", "keys"),
)


def empty_graph() -> nx.DiGraph:
    """A new directed graph, for modules that keep one."""
    return nx.DiGraph()


def is_dag_with_root(graph: nx.DiGraph, root: Any) -> bool:
    """Acyclic, and `root` is the only node without an incoming edge."""
    return nx.is_directed_acyclic_graph(graph) and [n for n in graph if graph.in_degree(n) == 0] == [root]


def graphml(parts: tuple[dict[str, dict[str, Any]], list[tuple[str, str, dict[str, Any]]]]) -> str:
    """GraphML of nodes with attributes and (from, to, attributes) edges."""
    nodes, edges = parts
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes.items())
    graph.add_edges_from(edges)
    return "\n".join(nx.generate_graphml(graph))
