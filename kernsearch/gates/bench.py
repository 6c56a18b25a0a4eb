"""The bench: one problem's inputs, references and shared memory, and the gates that a candidate passes on it."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..backends import Backend, Compiled
from ..device import Device
from ..errors import Rejected, SpaceError
from ..meaning import keeps_whole
from ..measure.samples import cold_bytes, policy
from ..namespace import widened
from ..plan import Plan
from ..problem import Problem
from ..space import Config, InputSet, Op
from ..worker import Timing
from .correctness import agrees, repeats
from .execution import Runner, execution
from .reference import Array, Block, Reference, operands
from .stage import Kept, Operands, Stage

REPEATS = 20
SLOW_REFERENCE_FLOPS = 2e11  # a reference of more is computed only where it must be
SAMPLED_BLOCKS = 4
CHUNK = 1 << 16  # elements compared at once
KEEP_CASES_BYTES = 64 << 20
SETS_OF_LARGE_EDGES = 3
LARGE_EDGE = 1 << 20  # product of sizes from which an awkward shape sees the first few input sets only
SPARE_BYTES = 32 << 20  # workspace and scratch of a candidate that may stay in memory for the next
PITCHES = ((0, 0), (3, 1), (0, 1), (1, 0))  # (elements between rows, elements that the base is off a cache line)


@dataclass(frozen=True)
class Case:
    """An awkward shape with one input set: what goes in, and what should come out."""

    arrays: dict[str, Array]
    inputs: dict[str, Kept]
    scalars: dict[str, float]  # of the input set
    blocks: tuple[Block, ...]
    nbytes: int


class Bench:
    """Gates and times the candidates of one problem. Holds the tuned shape's arrays in the worker's arena.

    Raises SpaceError when the op's reference fails its own check on a tiny shape. The methods under "where it runs"
    are what a bench on a device does in its own way.
    """

    chunk = CHUNK
    keep_cases_bytes = KEEP_CASES_BYTES

    def __init__(
        self,
        op: Op,
        problem: Problem,
        device: Device,
        backend: Backend | None,
        worker: Any,  # a Worker; a bench on a device has its own Runner
        *,
        threads: int | None = None,
        seed: int = 0,
        slow_reference_flops: float = SLOW_REFERENCE_FLOPS,
    ) -> None:
        self.op, self.problem, self.device, self.backend, self.worker = op, problem, device, backend, worker
        self.threads = threads or worker.threads
        self.seed = seed
        self.policy = policy(device)
        self.slow_reference_flops = slow_reference_flops
        self._cases: OrderedDict[tuple, Case] = OrderedDict()
        self._tuned: Operands | None = None
        self._reference: Reference | None = None
        self._whole = keeps_whole(op.root(problem))
        self._check_reference()

    # -- the gates

    def examine(
        self,
        plan: Plan,
        compiled: Sequence[Compiled],
        config: Config,
        *,
        thorough: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, int | float | bool]:
        """Pass the execution and correctness gates or raise Rejected; returns the evidence.

        Awkward small shapes first, where a crash is cheap, then the tuned shape. `thorough` looks at all of them,
        compares every element of the tuned shape and repeats it 20 times; else a large problem is checked by a
        randomized identity or a sample of blocks, and repeated on the largest awkward shape only. `timeout_s` is for
        one run of the tuned shape.
        """
        try:
            return self._examine(plan, compiled, config, thorough, timeout_s)
        except Rejected:
            self._recover()
            raise
        finally:
            self._tidy()

    def _examine(
        self, plan: Plan, compiled: Sequence[Compiled], config: Config, thorough: bool, timeout_s: float | None
    ) -> dict[str, int | float | bool]:
        shapes = self.op.edges(self.problem, self._config(config))
        runs = skipped = 0
        worst = 0.0
        for turn, index in enumerate(self._chosen(len(shapes), thorough)):
            shape, last = shapes[index], index == len(shapes) - 1
            pitch = (0, 0) if last else PITCHES[turn % len(PITCHES)]
            for inputs in self._sets(index, shape, last):
                try:
                    threads = self._threads(index, last)
                    done, share = self._edge(plan, compiled, shape, inputs, pitch, threads, last)
                except Rejected as refusal:
                    refusal.reason += f" (at {'x'.join(map(str, shape))}, {inputs.name})"
                    refusal.args = (refusal.reason,)
                    raise
                runs, skipped, worst = runs + done, skipped + (not done), max(worst, share)
        evidence = self._at_tuned_shape(plan, compiled, thorough, timeout_s)
        return {"edges": len(shapes), "edge_runs": runs, "edge_runs_skipped": skipped, "edge_error": worst, **evidence}

    def _edge(
        self, plan: Plan, compiled: Sequence[Compiled], shape: tuple[int, ...], inputs: InputSet,
        pitch: tuple[int, int], threads: int, last: bool,
    ) -> tuple[int, float]:  # fmt: skip
        """One input set at one awkward shape: runs done, and the largest error as a share of what is allowed."""
        case = self._case(shape, inputs)
        stage = self._awkward(case, pitch, plan, compiled, threads)
        if stage is None:
            return 0, 0.0  # the plan does not claim such arrays
        execution(self._runner(stage), stage)
        worst = self._compare(stage, case.blocks, inputs.mean, inputs.exact and self._whole)
        again = REPEATS - 1 if last and plan.deterministic and inputs is self.op.inputs[0] else 0
        self._repeat(stage, again)
        return 1 + again, worst

    def _at_tuned_shape(
        self, plan: Plan, compiled: Sequence[Compiled], thorough: bool, timeout_s: float | None
    ) -> dict[str, int | float | bool]:
        laid = self._operands()
        reference, mean = self._expected(), self.op.inputs[0].mean
        stage = self._stage(laid, plan, compiled, reference.scalars, self.threads)
        timing = execution(self._runner(stage), stage, timeout_s=timeout_s)
        slow = self.slow_reference_flops / (1 if reference.keeps else 100)  # once, or for each candidate
        full = thorough or reference.known or self.op.flops(self.problem) <= slow
        share: float | None = None
        if not full and self.op.identity is not None:
            share = self._identity(stage, reference)
        if full:
            share = self._compare(stage, reference.blocks(), mean)
        elif share is None:
            share = self._compare(stage, reference.blocks(self._sample(len(reference))), mean)
        again = REPEATS - 1 if thorough and plan.deterministic else 0
        self._repeat(stage, again, timeout_s)
        if again == 0 and thorough:
            execution(self._runner(stage), stage, timeout_s=timeout_s)
            self._compare(stage, reference.blocks(), mean)
        return {
            "error": share,
            "full": full,
            "repeats": 1 + again,
            "gate_seconds": timing.seconds[0],
            "workspace_bytes": stage.workspace_bytes,
        }

    def _identity(self, stage: Stage, reference: Reference) -> float | None:
        assert self.op.identity is not None
        outputs = {name: stage.operands.views[name] for name, a in stage.operands.arrays.items() if a.role == "output"}
        inputs = {name: stage.operands.views[name] for name in stage.operands.inputs}
        rng = np.random.default_rng(self.seed)
        share = self.op.identity(self.problem, inputs, reference.scalars, outputs, rng)
        if share is not None and not share <= 1:
            # It suspects; the blocks say whether something is wrong, where, and what.
            return self._compare(stage, reference.blocks(), self.op.inputs[0].mean)
        return share

    def _compare(self, stage: Stage, blocks: Iterable[Block], mean: float | None, exact: bool = False) -> float:
        worst = 0.0
        for block in blocks:
            for name, where in block.where.items():
                actual = stage.operands.views[name][where]
                origin = tuple(part.start or 0 for part in where)
                step = max(1, self.chunk // max(1, prod(actual.shape[1:])))
                for start in range(0, actual.shape[0], step):
                    rows = slice(start, start + step)
                    share = agrees(
                        name, actual[rows], block.expected[name][rows], block.allowed[name][rows],
                        exact=exact, mean=mean, origin=(origin[0] + start, *origin[1:]),
                    )  # fmt: skip
                    worst = max(worst, share)
        return worst

    def _repeat(self, stage: Stage, times: int, timeout_s: float | None = None) -> None:
        """Run again on poisoned outputs: the bits must be the same."""
        if not times:
            return
        names = [name for name, array in stage.operands.arrays.items() if array.role == "output"]
        first = {name: Kept(stage.operands.views[name]) for name in names}
        for _ in range(times):
            execution(self._runner(stage), stage, timeout_s=timeout_s)
            for name in names:
                view = stage.operands.views[name]
                if (at := first[name].first_change(view)) is not None:
                    raise repeats(name, at, first[name].element(at), float(widened(view[at])))

    def _sample(self, count: int) -> frozenset[int]:
        """Blocks to look at when all are too many: corners always, others by the seed."""
        rng = np.random.default_rng(self.seed)
        chosen = {0, count - 1, *map(int, rng.integers(0, count, SAMPLED_BLOCKS))}
        return frozenset(chosen)

    # -- where it runs

    def _config(self, config: Config) -> Config:
        """What the op's awkward shapes may know."""
        return config

    def _chosen(self, count: int, thorough: bool) -> Sequence[int]:
        """Which of the awkward shapes are looked at, in order."""
        return range(count)

    def _sets(self, index: int, shape: tuple[int, ...], last: bool) -> Sequence[InputSet]:
        """The input sets of one awkward shape."""
        return self.op.inputs if prod(shape) <= LARGE_EDGE else self.op.inputs[:SETS_OF_LARGE_EDGES]

    def _threads(self, index: int, last: bool) -> int:
        return self.threads if last or index % 3 else 1 + index % 2 * 2

    def _runner(self, stage: Stage) -> Runner:
        return self.worker

    def _awkward(
        self, case: Case, pitch: tuple[int, int], plan: Plan, compiled: Sequence[Compiled], threads: int
    ) -> Stage | None:
        """A stage of an awkward shape, None when the plan assumes what such arrays do not give."""
        laid = Operands(self.worker.arena, self._operands().layout.end, case.arrays, case.inputs, *pitch)
        try:
            return self._stage(laid, plan, compiled, case.scalars, threads)
        except Rejected:
            return None

    def _stage(
        self, laid: Operands, plan: Plan, compiled: Sequence[Compiled], scalars: dict[str, float], threads: int
    ) -> Stage:
        return Stage(laid, laid.layout.arena, laid.layout.end, plan, compiled, scalars, threads)

    def _here(self, array: np.ndarray, shape: tuple[int, ...]) -> Any:
        """An input of a problem of this shape, where its reference is computed."""
        return array

    def _make_reference(self, problem: Problem, inputs: dict[str, Any], scalars: dict[str, float]) -> Reference:
        return Reference(self.op, problem, inputs, scalars)

    def _recover(self) -> None:
        """After a refusal: a new child, and arrays of the tuned shape as they were, so that nothing is inherited."""
        self.worker.stop()
        if self._tuned is not None and self.worker.arena.tenant is self._tuned:
            self._tuned.layout.commit()
            for name, kept in self._tuned.inputs.items():
                if kept.first_change(self._tuned.views[name]) is not None:
                    self._tuned.restore(name)

    def _tidy(self) -> None:
        """Give back what a candidate with much workspace or scratch has left in memory."""
        if self._tuned is not None and self.worker.arena.size - self._tuned.layout.end > SPARE_BYTES:
            self.worker.arena.discard(self._tuned.layout.end, self.worker.arena.size)

    # -- timing

    def timer(
        self, plan: Plan, compiled: Sequence[Compiled], *, cold: bool = True, timeout_s: float | None = None
    ) -> Callable[[int], Timing]:
        """A function that runs a gated candidate so many times on aligned arrays and says how long each took.

        All scalars are 1. `cold` streams through memory before each repeat, so that caches hold nothing of the arrays.
        """

        def run(repeat: int = 1) -> Timing:
            laid = self._operands()
            stage = self._stage(laid, plan, compiled, dict.fromkeys(plan.scalars, 1.0), self.threads)
            try:
                return self.worker.run(
                    stage.launches,
                    repeat=repeat,
                    flush_bytes=flush,
                    timeout_s=timeout_s,
                    poll_s=0.1,
                    touch=stage.spans(),
                )
            except Rejected:
                self._recover()
                raise

        flush = cold_bytes(self.device) if cold else 0
        return run

    def prepare(self) -> None:
        """Everything is made when it is needed."""

    def conditions(self) -> dict[str, Any]:
        """Nothing is known of the CPU's clocks."""
        return {}

    # -- arrays and references

    def _operands(self) -> Operands:
        """The tuned shape's arrays, laid out and filled when first needed, and again after another bench."""
        if self._tuned is None or self.worker.arena.tenant is not self._tuned:
            inputs, scalars = self._make(self.problem, self.op.inputs[0])
            kept = {name: Kept(self._here(array, self.problem.shape)) for name, array in inputs.items()}
            self._tuned = Operands(self.worker.arena, 0, operands(self.op, self.problem), kept, 0, 0)
            self.worker.arena.tenant = self._tuned
            views = {name: self._tuned.views[name] for name in inputs}
            self._reference = self._make_reference(self.problem, views, scalars)
        return self._tuned

    def _expected(self) -> Reference:
        self._operands()
        assert self._reference is not None
        return self._reference

    def _make(self, problem: Problem, inputs: InputSet) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """The inputs of a set: the same for every candidate and every run with this seed."""
        words = f"{problem.key} {inputs.name}".encode()
        return inputs.make(problem, np.random.default_rng([self.seed, zlib.crc32(words)]))

    def _case(self, shape: tuple[int, ...], inputs: InputSet) -> Case:
        key = (shape, inputs.name)
        if (case := self._cases.get(key)) is not None:
            self._cases.move_to_end(key)
            return case
        problem = self.problem.at(shape)
        made, scalars = self._make(problem, inputs)
        made = {name: self._here(array, shape) for name, array in made.items()}
        reference = self._make_reference(problem, made, scalars)
        blocks = tuple(reference.blocks())
        held = [*made.values(), *(a for b in blocks for d in (b.expected, b.allowed) for a in d.values())]
        case = Case(
            reference.arrays, {n: Kept(a) for n, a in made.items()}, scalars, blocks, sum(a.nbytes for a in held)
        )
        self._cases[key] = case
        while sum(c.nbytes for c in self._cases.values()) > self.keep_cases_bytes and len(self._cases) > 1:
            self._cases.popitem(last=False)
        return case

    def _check_reference(self) -> None:
        """The reference itself is right: on a tiny shape it agrees with plain loops."""
        if self.op.textbook is None:
            return
        problem = self.problem.at(tuple(range(3, 3 + len(self.op.letters))))
        for inputs in self.op.inputs[:SETS_OF_LARGE_EDGES]:
            made, scalars = self._make(problem, inputs)
            plain = self.op.textbook(problem, made, scalars)
            for block in Reference(self.op, problem, made, scalars).blocks():
                for name, expected in block.expected.items():
                    found = plain[name][block.where[name]]
                    if not np.isclose(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True).all():
                        raise SpaceError(f"op {self.op.name!r}: its reference of {name} disagrees with plain loops")
