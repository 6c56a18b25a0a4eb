"""Derivation: every program the rules reach from the textbook, and the variants among them.

Rules run in phases: algebra to its closure, then fusion, then one split; maps are fused before anything else is. A
fusion or split step is kept only if each kernel it made fits a template, perhaps still short of some roots or its
split; that is all that templates decide here, and no rule knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

from .launch import itemsize
from .problem import Problem
from .program import Kernel, Program, Site, empty_graph
from .rules import PHASES, Rule, Step, all_rules, replay
from .rules.schedule import Trie
from .space import Constraint, Op, Param
from .template import Matched, Template

__all__ = ["Derivation", "Step", "Variant", "annotation", "derive", "explore", "replay"]

FIRST = "fuse_maps"  # before any other fusion and before a split
COMBINATIONS = 64  # of templates kept for one partition, those of the fewest different templates first
COMBINATIONS_SEEN = 4096
SLABS_ASSUMED = 4  # for ranking programs before SPLIT is known


@dataclass(frozen=True)
class Variant:
    """A partition and one schedule for each kernel.

    name       templates in launch order, joined by '+'
    partition  the unscheduled program, a node of the derivation graph
    templates  of its kernels, in launch order
    path       rule steps from the root to the partition
    """

    name: str
    partition: Program
    templates: tuple[Template, ...]
    path: tuple[Step, ...]

    @cached_property
    def kernels(self) -> tuple[Matched, ...]:
        """Kernels in launch order, each with its template."""
        found = []
        for template, kernel in zip(self.templates, self.partition.kernels, strict=True):
            matched = template.match(self.partition, kernel)
            assert matched is not None, f"{template.name} does not fit {kernel.members}"
            found.append(matched)
        return tuple(found)

    @cached_property
    def _scheduled(self) -> tuple[Program, tuple[Step, ...]]:
        program, steps = self.partition, []
        for matched in self.kernels:
            for annotation in matched.annotations[len(matched.kernel.annotations) :]:
                steps.append(Step(annotation[0], program.site(kernels=(matched.label,), choice=annotation)))
                program = program.annotated(matched.label, annotation)
        return program, tuple(steps)

    @property
    def program(self) -> Program:
        """The scheduled program: its kernels carry their annotations."""
        return self._scheduled[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Rule steps, then schedule steps: from the root to `program`."""
        return (*self.path, *self._scheduled[1])

    @property
    def deterministic(self) -> bool:
        """Does it add in a fixed order? Atomics do not."""
        return not any(step[0] == "combine" and step[2] == "atomic" for m in self.kernels for step in m.annotations)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols that the steps introduced, in order."""
        return tuple(dict.fromkeys(symbol for matched in self.kernels for symbol in matched.symbols))

    @property
    def params(self) -> tuple[Param, ...]:
        """Parameters and knobs of all kernels, in order; where two kernels share a letter, the values both take."""
        found: dict[str, Param] = {}
        for matched in self.kernels:
            for param in (*matched.template.params, *matched.template.knobs):
                if param.name in found:
                    both = tuple(v for v in found[param.name].values if v in param.values)
                    param = Param(param.name, both, found[param.name].what)
                found[param.name] = param
        return tuple(found.values())

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(dict.fromkeys(c for matched in self.kernels for c in matched.constraints))


@dataclass(frozen=True)
class Derivation:
    """The derivation graph (nodes are program keys; data `program`, `runnable`, `phase`; edges hold `step`) and its
    variants: those that move the fewest bytes first, those with maps left apart last."""

    graph: Any
    root: Program
    variants: tuple[Variant, ...]
    tries: Mapping[str, Trie] = field(default_factory=dict)  # kernel key -> its schedules
    _seen: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)  # depths of tries

    def variant(self, name: str) -> Variant:
        """KeyError when there is none of that name."""
        return {v.name: v for v in self.variants}[name]

    def length(self, variant: Variant) -> int:
        """How many schedule steps a variant has, which need not be taken for that."""
        kernels = zip(variant.templates, variant.partition.kernels, strict=True)
        return sum(self._depths(kernel.key)[template.name] - len(kernel.annotations) for template, kernel in kernels)

    def _depths(self, kernel: str) -> Mapping[str, int]:
        """Template -> how many steps its schedule of a kernel has."""
        if kernel not in self._seen:
            self._seen[kernel] = {name: len(path) for path, name in self.tries[kernel].leaves()}
        return self._seen[kernel]

    def programs(self) -> Iterator[Program]:
        return (data["program"] for _, data in self.graph.nodes(data=True))

    def path(self, key: str) -> tuple[Step, ...]:
        """Rule steps from the root to a program, along the way it was found first."""
        steps: list[Step] = []
        while key != self.root.key:
            parent = self.graph.nodes[key]["parent"]
            steps.append(self.graph.edges[parent, key]["step"])
            key = parent
        return tuple(reversed(steps))


class Fits:
    """Which templates a kernel fits, remembered by kernel key."""

    def __init__(self, templates: Sequence[Template]):
        self._alike: dict[object, list[Template]] = {}
        for template in templates:
            self._alike.setdefault(template.alike, []).append(template)
        self._full: dict[str, dict[Template, Matched]] = {}
        self._nearly: dict[str, bool] = {}

    def full(self, program: Program, kernel: Kernel) -> dict[Template, Matched]:
        """Templates that the kernel is, each with the match in the program that showed the kernel first."""
        if kernel.key not in self._full:
            fits = {}
            for alike in self._alike.values():
                found = alike[0].find(program, kernel)
                for template in alike if found else ():
                    matched = template.filled(program, kernel, *found)  # type: ignore[misc]
                    if matched is not None:
                        fits[template] = matched
            self._full[kernel.key] = fits
        return self._full[kernel.key]

    def viable(self, program: Program, kernel: Kernel) -> bool:
        """Is the kernel a template, or short of some roots or its split?"""
        if kernel.key not in self._nearly:
            nearly = (alike[0].nearly(program, kernel) for alike in self._alike.values())
            self._nearly[kernel.key] = bool(self.full(program, kernel)) or any(nearly)
        return self._nearly[kernel.key]

    def keeps(self, rule: Rule, program: Program, kernel: Kernel) -> bool:
        """May a rule have made this kernel? After a split nothing is left that could still come."""
        return bool(self.full(program, kernel)) if rule.phase == "split" else self.viable(program, kernel)

    def runnable(self, program: Program) -> bool:
        return all(self.full(program, kernel) for kernel in program.kernels)


def annotation(choice: Sequence[Any], names: Mapping[str, str]) -> str:
    """A schedule step in words: 'tile m block MC', 'move A pack'. `names` of values by key; others go without."""
    kind, what, *rest = choice
    of = names.get(what, "") if isinstance(what, str) else "".join(what)
    return " ".join(filter(None, (kind, of, *map(str, rest))))


def derive(problem: Problem, op: Op, templates: Sequence[Template]) -> Derivation:
    """All programs of a problem and its variants for these templates (of one backend)."""
    return explore(op.root(problem), templates, {**op.sizes(problem), "ITEMSIZE": itemsize(problem.dtype)})


def explore(
    root: Program, templates: Sequence[Template], sizes: Mapping[str, int], rules: Iterable[Rule] | None = None
) -> Derivation:
    """The same from a root program. `rules` leaves some out: all by default."""
    fits = Fits(templates)
    graph = _closure(root, fits, tuple(all_rules() if rules is None else rules))
    derivation = Derivation(graph, root, (), {})
    variants, tries = _variants(derivation, fits, {"SPLIT": SLABS_ASSUMED, **sizes})
    return Derivation(graph, root, variants, tries)


def _closure(root: Program, fits: Fits, rules: Sequence[Rule]) -> Any:
    graph = empty_graph()
    graph.add_node(root.key, program=root, phase="algebra", parent=None, maps_apart=False)
    for phase in PHASES[:-1]:
        chosen = [r for r in rules if r.phase == phase]
        queue = [data["program"] for _, data in graph.nodes(data=True) if phase != "split" or not data["maps_apart"]]
        for program in queue:  # grows while it runs
            for rule, site, reached in _kept(program, chosen, fits):
                if rule.name == FIRST:
                    graph.nodes[program.key]["maps_apart"] = True
                if reached.key not in graph:
                    graph.add_node(reached.key, program=reached, phase=phase, parent=program.key, maps_apart=False)
                    if phase != "split":
                        queue.append(reached)
                if reached.key != program.key and not graph.has_edge(program.key, reached.key):
                    graph.add_edge(program.key, reached.key, step=Step(rule.name, site))
    for _, data in graph.nodes(data=True):
        data["runnable"] = fits.runnable(data["program"])
    return graph


def _kept(program: Program, rules: Sequence[Rule], fits: Fits) -> Iterator[tuple[Rule, Site, Program]]:
    """What the rules make of a program, as far as the kernels they make fit templates. FIRST, when it applies, applies
    alone."""
    old = {program.kernel(label).key for label in program.members}
    for rule in rules:
        found = False
        for site, reached in rule(program):
            made = [kernel for kernel in map(reached.kernel, reached.members) if kernel.key not in old]
            if rule.phase == "algebra" or all(fits.keeps(rule, reached, kernel) for kernel in made):
                found = True
                yield rule, site, reached
        if found and rule.name == FIRST:
            return


class _Combining:
    """One template a kernel. Kernels meet in memory only, so that mixing alike ones shows little: those come last.
    Templates that share a letter but no value of it are not combined."""

    def __init__(self) -> None:
        self._domains: dict[str, dict[str, frozenset[int]]] = {}  # by template
        self._agreeing: dict[frozenset[str], bool] = {}
        self._known: dict[tuple[tuple[str, ...], ...], list[tuple[Template, ...]]] = {}

    def __call__(self, choices: Sequence[Iterable[Template]]) -> list[tuple[Template, ...]]:
        names = tuple(tuple(template.name for template in each) for each in choices)
        if names not in self._known:  # many partitions have kernels of the same kinds
            seen = islice(zip(product(*names), product(*choices), strict=True), COMBINATIONS_SEEN)
            ordered = sorted(seen, key=lambda pair: len(set(pair[0])))
            agreeing = (templates for named, templates in ordered if self._agree(frozenset(named), templates))
            self._known[names] = list(islice(agreeing, COMBINATIONS))
        return self._known[names]

    def _agree(self, names: frozenset[str], templates: tuple[Template, ...]) -> bool:
        """Has each parameter a value that all these templates take?"""
        if names not in self._agreeing:
            taken: dict[str, frozenset[int]] = {}
            for template in templates:
                for letter, values in self._domain(template).items():
                    taken[letter] = taken.get(letter, values) & values
            self._agreeing[names] = all(taken.values())
        return self._agreeing[names]

    def _domain(self, template: Template) -> dict[str, frozenset[int]]:
        if template.name not in self._domains:
            params = (*template.params, *template.knobs)
            self._domains[template.name] = {param.name: frozenset(param.values) for param in params}
        return self._domains[template.name]


def _variants(
    derivation: Derivation, fits: Fits, sizes: Mapping[str, int]
) -> tuple[tuple[Variant, ...], dict[str, Trie]]:
    tries: dict[str, Trie] = {}
    combinations = _Combining()
    found = []
    for key, data in derivation.graph.nodes(data=True):
        program: Program = data["program"]
        if not data["runnable"]:
            continue
        choices = [fits.full(program, kernel) for kernel in program.kernels]
        for kernel, matches in zip(program.kernels, choices, strict=True):
            if kernel.key not in tries:
                tries[kernel.key] = Trie.of({t.name: m.annotations for t, m in matches.items()})
        path, traffic = derivation.path(key), program.traffic(sizes)
        for templates in combinations(choices):
            name = "+".join(template.name for template in templates)
            variant = Variant(name, program, templates, path)
            found.append((data["maps_apart"], traffic, len(templates), name, key, variant))
    found.sort(key=lambda row: row[:-1])
    taken: dict[str, int] = {}
    variants = []
    for *_, name, _, variant in found:
        taken[name] = taken.get(name, 0) + 1
        unique = name if taken[name] == 1 else f"{name}#{taken[name]}"
        variants.append(variant if name == unique else replace(variant, name=unique))
    return tuple(variants), tries
