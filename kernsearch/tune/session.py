"""One tuning run: what there is to try, trying it, and what came of each try.

The run takes candidates in small batches. A batch is compiled with all compilers at once, then its members are gated
and timed one after the other, so that no compiler runs beside a clock.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import launch, model, registry, settings
from ..backends import Backend, Compiled
from ..candidate import Candidate, lower, operands
from ..derive import Variant, derive
from ..device import Device
from ..errors import DeviceError, NothingSurvived, Rejected, SpaceError
from ..feasible import FeasibleSpace
from ..gates import Bench
from ..measure import Measurement, quick
from ..model import ceilings
from ..plan import Plan
from ..problem import Problem
from ..records import fingerprint, lookup
from ..search import Ask, Search
from ..sizes import evaluate
from ..space import Op
from ..worker import Worker

if TYPE_CHECKING:
    from .request import Listener, Request, Result

VARIANTS = 24  # partitions searched, the ones that move the fewest bytes first
SEEDS = 8  # candidates that the model proposes
HOPELESS = 6.0  # candidates predicted slower than the best prediction by this are not worth their time
NEIGHBOURS = 4  # records of nearby shapes whose configs are tried
COMPILES_PER_JOB = 2  # candidates in a batch, for each compiler that may run
MEMORY_SHARE = 0.8  # of the device's memory that a problem's arrays, their float64 reference and workspace may take


@dataclass
class Tried:
    """A candidate of this run that passed the gates."""

    candidate: Candidate
    plan: Plan
    compiled: tuple[Compiled, ...]
    evidence: dict[str, Any]
    measurement: Measurement


class Session:
    """A run over one problem. A context manager: leaving it ends the worker and gives up what was not told."""

    def __init__(self, op: Op, problem: Problem, backend: Backend, device: Device, request: Request,
                 listener: Listener, started: float):  # fmt: skip
        self.op, self.problem, self.backend, self.device = op, problem, backend, device
        self.request, self.started = request, started
        self._listener = listener
        self.jobs = request.jobs or int(device.threads)
        self.flops = op.flops(problem)
        self.sizes = {**op.sizes(problem), "THREADS": int(device.threads), "ITEMSIZE": launch.itemsize(problem.dtype)}
        self.refusals: Counter[str] = Counter()
        self.tried: dict[Candidate, Tried] = {}
        self.best: Tried | None = None
        self.interrupted = False
        self._best_predicted_s: float | None = None  # None: nothing is left out for its prediction
        self._plans: dict[Candidate, Plan] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        self._fits_memory()
        self.toolchain = self.backend.toolchain(self.device)
        self.store = lookup.store()
        self.derivation = derive(self.problem, self.op, registry.templates(self.backend.name))
        self.variants = self._runnable()
        if not self.variants:
            raise SpaceError(f"{self.problem.key}: no variant has a feasible config on {self.device.key}")
        self.spaces = {
            name: FeasibleSpace(variant.params, variant.constraints, self.device, self.sizes)
            for name, variant in self.variants.items()
        }
        self.ceilings = ceilings.of(self.backend, self.device)
        storage = self.request.storage or str(settings.get().data_dir() / "studies.db")
        self.search = self._stack.enter_context(
            Search(
                f"{self.problem.key} {self.device.key}",
                self.spaces,
                searcher=self.request.searcher,
                seed=self.request.seed,
                storage=storage,
                trials=self.request.trials,
                fix=self.request.fix,
                variant=self.request.variant,
                keep=self._unwanted,
                identity=(self.toolchain.id, *self._tokens()),
                attrs={"problem": self.problem.key, "device": self.device.key, "compiler": self.toolchain.id},
            )
        )
        self.worker = self._stack.enter_context(Worker(self.device, run_timeout_s=self.request.run_timeout))
        self.bench = Bench(self.op, self.problem, self.device, self.backend, self.worker, seed=self.request.seed)
        self._stack.enter_context(_Interrupts(self._interrupt))
        self.note(f"{self.problem.key} on {self.device.key}, {self.toolchain.name} {self.toolchain.version}")
        if self.search.resumed:
            self.note(f"going on with a study of {self.search.resumed} trials")

    # -- what there is to try

    def _fits_memory(self) -> None:
        arrays = operands(self.op.root(self.problem))
        elements = sum(prod(evaluate(extent, self.sizes) for extent in array.extents) for array in arrays)
        wanted = elements * (self.sizes["ITEMSIZE"] + 8)
        memory = int(self.device.memory_bytes)
        if wanted > MEMORY_SHARE * memory:
            raise DeviceError(
                f"{self.problem.key}: its arrays and their float64 reference take {wanted / 2**30:.1f} GiB, "
                f"{self.device.key} has {memory / 2**30:.1f} GiB"
            )

    def _runnable(self) -> dict[str, Variant]:
        """The best ranked variants that have a config here, by name."""
        found: dict[str, Variant] = {}
        for variant in self.derivation.variants:
            space = FeasibleSpace(variant.params, variant.constraints, self.device, self.sizes)
            if next(space.iterate(), None) is not None:
                found[variant.name] = variant
            if len(found) == VARIANTS:
                break
        return found

    def _tokens(self) -> set[str]:
        """Hashes of the sources of all variants: measurements of other sources say nothing."""
        templates = {matched.template.source for variant in self.variants.values() for matched in variant.kernels}
        return {fingerprint.source_tokens(source) for source in templates}

    def plan(self, candidate: Candidate) -> Plan:
        """The launch plan of a candidate."""
        if candidate not in self._plans:
            variant = self.variants[candidate.variant]
            self._plans[candidate] = lower(variant, dict(candidate.config), self.problem, self.backend, self.device)
        return self._plans[candidate]

    def workspace_bytes(self, plan: Plan) -> int:
        call, _ = lookup.call_at(plan, self.problem.shape, int(self.device.threads))
        return call.workspace_bytes

    def _unwanted(self, variant: str, config: Mapping[str, int]) -> str | None:
        """Why this run does not ask for a candidate, or None."""
        if self.request.deterministic and not self.variants[variant].deterministic:
            return "its result may differ from run to run"
        plan = self.plan(Candidate.of(variant, config))
        call, names = lookup.call_at(plan, self.problem.shape, int(self.device.threads))
        if (assumed := launch.unmet(plan, names)) is not None:
            return f"it assumes {assumed}"
        limit = self.request.max_workspace
        if limit is not None and call.workspace_bytes > limit:
            return f"it needs {call.workspace_bytes} bytes of workspace, allowed {limit}"
        if self._best_predicted_s is not None:
            ratio = self._predict(variant, config) / self._best_predicted_s
            if ratio > HOPELESS:
                return f"predicted {ratio:.0f} times slower than the best prediction"
        return None

    def _predict(self, variant: str, config: Mapping[str, int]) -> float:
        return model.predict(self.variants[variant], config, self.device, self.sizes, self.ceilings).seconds

    def predicted(self) -> list[tuple[float, Candidate]]:
        """The model's best candidates with their predicted seconds, best first."""
        found: list[tuple[float, Candidate]] = []
        for name, space in self.search.searched.items():
            variant = self.variants[name]
            ranked = model.rank(variant, space, self.device, self.sizes, self.ceilings, seed=self.request.seed)
            wanted = (
                (p.seconds, Candidate.of(name, config)) for p, config in ranked if not self._unwanted(name, config)
            )
            found += [pair for pair, _ in zip(wanted, range(SEEDS), strict=False)]
        return sorted(found, key=lambda pair: (pair[0], pair[1]))

    def _enqueue(self, predicted: list[tuple[float, Candidate]]) -> None:
        for _, candidate in predicted[:1]:
            self.search.enqueue(candidate.variant, dict(candidate.config), "default")
        if not self.request.warm_start:
            return
        for record in self.store.nearby(self.problem, self.device, NEIGHBOURS):
            self.search.enqueue(record.variant, record.config, "record")
        for _, candidate in predicted[1:SEEDS]:
            self.search.enqueue(candidate.variant, dict(candidate.config), "model")

    # -- the run

    def run(self) -> Result:
        """Search until trials or time run out, then choose and record. Raises NothingSurvived."""
        from .finals import conclude

        predicted = self.predicted()
        if not predicted:
            raise SpaceError(f"{self.problem.key}: no candidate is left to search")
        if self.request.variant is None and not self.request.fix:
            self._best_predicted_s = predicted[0][0]
        self._enqueue(predicted)
        for batch in self._batches():
            self._try(batch)
        return conclude(self, [candidate for _, candidate in predicted])

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def out_of_time(self) -> bool:
        return self.interrupted or self.elapsed_s > self.request.timeout

    def _batches(self) -> Iterator[list[Ask]]:
        """Small at first, so that something is measured soon."""
        wanted = self.jobs
        while not self.out_of_time:
            batch: list[Ask] = []
            while len(batch) < wanted and (ask := self.search.ask()) is not None:
                batch.append(ask)
            if not batch:
                return
            yield batch
            wanted = COMPILES_PER_JOB * self.jobs

    def _try(self, batch: list[Ask]) -> None:
        self._step("compiling")
        outcomes = self.compile([Candidate.of(ask.variant, ask.config) for ask in batch])
        for ask, outcome in zip(batch, outcomes, strict=True):
            candidate = Candidate.of(ask.variant, ask.config)
            if self.out_of_time and self.best is not None:
                self.search.abandon(ask)
                continue
            try:
                if isinstance(outcome, Rejected):
                    raise outcome
                tried = self._measure(candidate, outcome)
            except Rejected as refusal:
                gate = refusal.gate or "execution"
                self.refusals[f"{gate}: {refusal.reason}"] += 1
                self.search.tell_rejected(ask, gate, refusal.reason)
            else:
                self.tried[candidate] = tried
                if self.best is None or tried.measurement.median_s < self.best.measurement.median_s:
                    self.best = tried
                self.search.tell_measured(ask, tried.measurement.median_s, self._attributes(tried))
            self._step(candidate.variant)

    def compile(self, candidates: list[Candidate]) -> list[tuple[Compiled, ...] | Rejected]:
        """Compile all kernels of candidates, each distinct kernel once; one outcome a candidate."""
        plans = [self.plan(candidate) for candidate in candidates]
        distinct = list(dict.fromkeys(map(_identity, (k for plan in plans for k in plan.kernels))))
        kernels = {_identity(k): k for plan in plans for k in plan.kernels}
        done = dict(
            self.backend.compile_many(
                [kernels[identity] for identity in distinct],
                self.device,
                jobs=self.jobs,
                timeout_s=self.request.compile_timeout,
            )
        )
        at = {identity: done[index] for index, identity in enumerate(distinct)}
        outcomes: list[tuple[Compiled, ...] | Rejected] = []
        for plan in plans:
            parts = [at[_identity(kernel)] for kernel in plan.kernels]
            refused = next((part for part in parts if isinstance(part, Rejected)), None)
            outcomes.append(refused or tuple(part for part in parts if isinstance(part, Compiled)))
        return outcomes

    def _measure(self, candidate: Candidate, compiled: tuple[Compiled, ...]) -> Tried:
        plan = self.plan(candidate)
        evidence = self.bench.examine(plan, compiled, dict(candidate.config), thorough=False)
        incumbent = self.best.measurement.median_s if self.best is not None else None
        measurement = quick(self.bench.timer(plan, compiled), incumbent_s=incumbent)
        return Tried(candidate, plan, compiled, evidence, measurement)

    def examine_thoroughly(self, candidate: Candidate, compiled: tuple[Compiled, ...]) -> Tried:
        """The gates that a candidate must pass before it may be recorded. Raises Rejected."""
        plan = self.plan(candidate)
        evidence = self.bench.examine(plan, compiled, dict(candidate.config), thorough=True)
        known = self.tried.get(candidate)
        measurement = known.measurement if known else quick(self.bench.timer(plan, compiled))
        return Tried(candidate, plan, compiled, evidence, measurement)

    def _attributes(self, tried: Tried) -> dict[str, Any]:
        """What a person sees beside a trial."""
        seconds = tried.measurement.median_s
        default = next(iter(self.tried.values()), tried).measurement.median_s
        attributes: dict[str, Any] = {"gflops": self.flops / seconds / 1e9, "vs_default": default / seconds}
        for compiled in tried.compiled:
            for name, value in compiled.evidence.items():
                known = attributes.get(name, value)
                both = isinstance(known, int | float) and isinstance(value, int | float)
                attributes[name] = max(known, value) if both else value
        return attributes

    # -- what is said

    def note(self, text: str) -> None:
        from .request import Event

        self._listener(Event("note", text))

    def _step(self, text: str) -> None:
        from .request import Event

        done, counts = len(self.search.finished()), self.search.counts
        left = max(0.0, self.request.timeout - self.elapsed_s)
        pace = self.elapsed_s / max(1, counts.measured + sum(counts.rejected.values()))
        best = self.best
        self._listener(
            Event(
                "step",
                text,
                done=done,
                total=self.request.trials,
                rejected=sum(self.refusals.values()),
                best_s=best.measurement.median_s if best else None,
                best_gflops=self.flops / best.measurement.median_s / 1e9 if best else 0.0,
                best_name=best.candidate.variant if best else "",
                elapsed_s=self.elapsed_s,
                eta_s=min(left, pace * max(0, self.request.trials - done)),
            )
        )

    def _interrupt(self) -> None:
        self.interrupted = True
        self.note("interrupted: keeping the best so far; press Ctrl-C again to leave at once")

    def nothing(self) -> NothingSurvived:
        """The error for a run in which no candidate passed."""
        reasons = Counter(f"{p.gate}: {p.reason}" for p in self.search.finished() if p.status == "rejected")
        reasons |= self.refusals
        refused = sum(reasons.values())
        most = f"; most often {reasons.most_common(1)[0][0]}" if reasons else ""
        return NothingSurvived(
            f"{self.problem.key} on {self.device.key}: no candidate passed the gates, {refused} refused{most}", reasons
        )


def _identity(kernel: Any) -> tuple[Any, ...]:
    """What makes two kernels the same object."""
    return kernel.source, kernel.entry, kernel.header, tuple(sorted(kernel.defines.items())), kernel.flags


class _Interrupts:
    """The first Ctrl-C calls a function, the second raises KeyboardInterrupt; only the main thread can arrange that."""

    def __init__(self, first: Callable[[], None]):
        self._first = first
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._first()
