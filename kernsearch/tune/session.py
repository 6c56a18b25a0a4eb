"""One tuning run: trying candidates, and what came of each try.

The run takes candidates in small batches. A batch is compiled with all compilers at once, then its members are gated
and timed one after the other, so that no compiler runs beside a clock. A device's clock is not disturbed: there the
next batch, one at most, is compiled meanwhile, and what the gates need is made ready while candidates are ranked.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .. import settings
from ..backends import Backend, Compiled
from ..candidate import Candidate, check_memory
from ..device import Device
from ..errors import NothingSurvived, Rejected
from ..gates import open_bench
from ..measure import quick
from ..model import ceilings, shown
from ..plan import Plan
from ..problem import Problem
from ..records import lookup, now
from ..search import DEFAULT, Ask, Past, Search, transfer
from ..search.points import Advice
from ..space import Op
from . import sources
from .compiling import Compiling, Outcome
from .interrupts import Interrupts
from .memory import give_back
from .outcome import Event, Listener
from .pages import Pages
from .prospects import Prospects
from .request import Request

SEEDS = 8  # candidates that the model proposes, the default included
NEIGHBOURS = 4  # records of nearby shapes whose configs are tried
NEAR_FLOOR = 1.02  # times the least time that the device allows: nothing is left to find
COMPILES_PER_JOB = 2  # candidates in a batch, for each compiler that may run
COMPILES_AHEAD = 1  # the same where the next batch is compiled before anything is known of this one


@dataclass
class Passed:
    """A candidate that passed the gates in this run."""

    candidate: Candidate
    plan: Plan
    compiled: tuple[Compiled, ...]
    evidence: dict[str, Any]


class Session:
    """A run over one problem. A context manager: leaving it ends the worker and gives up what was not told."""

    def __init__(
        self, op: Op, problem: Problem, backend: Backend, device: Device, request: Request, listener: Listener
    ):
        self.started, self.began = time.monotonic(), now()
        self.op, self.problem, self.backend, self.device, self.request = op, problem, backend, device, request
        self.jobs = request.jobs or int(device.cores)
        self.flops = op.flops(problem)
        self.work, self.unit = op.work(problem)
        self.refusals: Counter[str] = Counter()
        self.best: tuple[float, Candidate] | None = None  # seconds
        self.interrupted = False
        self._listener = listener
        self._default_s: float | None = None
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
        toolchain = self.backend.toolchain(self.device)
        self.toolchain = f"{toolchain.name} {toolchain.version}"
        self.store = lookup.store()
        self.store.check(self.device)
        named = sources.named(self.problem, self.store, self.request.warm_from)  # what is wrong is said at once
        check_memory(self.problem, self.device)
        roof = ceilings.of(self.backend, self.device)
        if not self.backend.host_memory:
            self._open_bench()
            self.bench.prepare()
        self.prospects = Prospects(self.op, self.problem, self.backend, self.device, roof, self.request)
        self.compiling = Compiling(
            self.prospects.plan, self.backend, self.device, self.jobs, self.request.compile_timeout
        )
        self._stack.callback(self.compiling.stop)
        storage = self.request.storage or str(settings.get().data_dir() / "studies.db")
        self.sources = sources.within(named, self.problem, self.prospects.spaces)
        if self.request.warm_start:
            self.sources += sources.found(self.problem, self.device, storage)
        self.search = self._stack.enter_context(
            Search(
                f"{self.problem.key} {self.device.key}",
                self.prospects.spaces,
                searcher=self.request.searcher,
                seed=self.request.seed,
                storage=storage,
                trials=self.request.trials,
                fix=self.request.fix,
                variant=self.request.variant,
                keep=self.prospects.unwanted,
                foresee=self.prospects.foresee,
                advice=self._advice(),
                identity=(toolchain.id, *self.prospects.tokens()),
                attrs={"problem": self.problem.key, "device": self.device.key, "compiler": toolchain.id},
            )
        )
        self.search.reconsider(self._had_less_time)
        self.predicted = self.prospects.predicted(self.search.searched)
        self.pages = Pages(self)
        self.pages.begin()
        give_back()  # what ranking thousands of configs took
        self.note(f"{self.problem.key} on {self.device.key}, {self.toolchain}")
        if self.search.resumed:
            self.note(f"going on with a study of {self.search.resumed} trials")
        if self.backend.host_memory:
            self._open_bench()
        self._stack.enter_context(Interrupts(self._interrupt))

    def _open_bench(self) -> None:
        self.bench = self._stack.enter_context(
            open_bench(
                self.op,
                self.problem,
                self.device,
                self.backend,
                run_timeout_s=self.request.run_timeout,
                seed=self.request.seed,
            )
        )

    def _advice(self) -> list[Advice]:
        """Who tells the searcher what to expect: the model, unless it must not, and measurements of other problems."""
        model: list[Advice] = [self.prospects.expected] if self.request.warm_start else []
        return model + transfer.advice(self.sources, self.prospects.spaces)

    def _had_less_time(self, past: Past) -> bool:
        limits = {"compile": self.request.compile_timeout, "execution": self.request.run_timeout}
        return past.attrs.get("limit_s", math.inf) < limits.get(past.gate, 0.0)

    # -- the search

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def explore(self) -> None:
        """Try candidates until trials or time run out, or Ctrl-C; one is tried in any case."""
        self._enqueue()
        batches = self._batches()
        if self.backend.host_memory:
            for batch in batches:
                self.step("compiling")
                self._try(batch, self.compile(_candidates(batch)))
                give_back()
            return
        batch, compiled = self._ahead(batches)
        while batch:
            self.step("compiling")
            outcomes = compiled()
            if outcomes is None:
                return
            following, compiled = self._ahead(batches)
            self._try(batch, outcomes)
            give_back()
            batch = [] if self._over else following

    def _ahead(self, batches: Iterator[list[Ask]]) -> tuple[list[Ask], Callable[[], list[Outcome] | None]]:
        """The next batch, empty when there is none, and what gives its outcomes once it is compiled."""
        batch = next(batches, [])
        return batch, self.compiling.begin(_candidates(batch), lambda: self._over and self.best is not None)

    def _enqueue(self) -> None:
        """The default candidate, which the winner must beat, then what records and the model propose."""
        default, *more = self.predicted[:SEEDS]
        self.search.enqueue(default.variant, dict(default.config), "default")
        if self.request.warm_start:
            for record in self.store.nearby(self.problem, self.device, NEIGHBOURS):
                self.search.enqueue(record.variant, record.config, "record")
            for candidate in more:
                self.search.enqueue(candidate.variant, dict(candidate.config), "model")
        told = [source.within(self.search.searched) for source in self.sources]
        for number, (variant, config) in enumerate(transfer.seeds(told)):
            if number < transfer.FIRST or self.request.searcher != DEFAULT:
                self.search.enqueue(variant, config, "learned")
            self.search.suggest(variant, config)

    @property
    def settled(self) -> bool:
        """More trials promise nothing: little is expected of them, or the best is as fast as the device allows."""
        if not self.request.early_stop:
            return False
        near = self.best is not None and self.best[0] < NEAR_FLOOR * self.prospects.floor_s
        return near or self.search.settled(self.request.early_stop)

    @property
    def _over(self) -> bool:
        return self.interrupted or self.elapsed_s > self.request.timeout

    def _batches(self) -> Iterator[list[Ask]]:
        """The first candidate alone, so that something is measured soon; then as many as keep the compilers busy."""
        wanted = 1
        while wanted == 1 or not self._over:
            batch: list[Ask] = []
            while len(batch) < wanted and (ask := self.search.ask()) is not None:
                batch.append(ask)
            if not batch:
                return
            yield batch
            if self.settled:
                self.note(f"ended early after {self.search.counts.measured} measurements: more promise nothing")
                return
            wanted = (COMPILES_PER_JOB if self.backend.host_memory else COMPILES_AHEAD) * self.jobs + 1

    def _try(self, batch: list[Ask], outcomes: list[Outcome]) -> None:
        for ask, candidate, outcome in zip(batch, _candidates(batch), outcomes, strict=True):
            if self._over and self.best is not None:
                self.search.abandon(ask)
                continue
            began = time.monotonic()
            try:
                passed = self._gated(candidate, outcome, thorough=False)
                gated = time.monotonic()
                timer = self.bench.timer(passed.plan, passed.compiled)
                seconds = quick(timer, incumbent_s=self.best[0] if self.best else None).median_s
            except Rejected as refusal:
                self.refuse(refusal)
                limit = {} if refusal.limit_s is None else {"limit_s": refusal.limit_s}
                took = {"verify_s": time.monotonic() - began, "predicted_s": self.prospects.predicted_s(candidate)}
                self.search.tell_rejected(ask, refusal.gate or "execution", refusal.reason,
                                          {**self._seen(candidate, outcome), **limit, **took})  # fmt: skip
            else:
                self._default_s = self._default_s or seconds
                if self.best is None or seconds < self.best[0]:
                    self.best = (seconds, candidate)
                took = {"verify_s": gated - began, "benchmark_s": time.monotonic() - gated,
                        "predicted_s": self.prospects.predicted_s(candidate)}  # fmt: skip
                self.search.tell_measured(
                    ask, seconds, {**self._attributes(seconds, candidate, passed.compiled), **took}
                )
            self.step(candidate.variant)
        self.pages.follow()

    def _attributes(self, seconds: float, candidate: Candidate, objects: tuple[Compiled, ...]) -> dict[str, Any]:
        """What a person sees beside a trial."""
        speed = {"gflops": self.flops / seconds / 1e9, "vs_default": (self._default_s or seconds) / seconds}
        return speed | self._seen(candidate, objects)

    def _seen(self, candidate: Candidate, objects: Outcome) -> dict[str, Any]:
        """What the compiler told of a candidate; nothing of one that it refused."""
        if isinstance(objects, Rejected):
            return {}
        evidence = [compiled.evidence for compiled in objects]
        return shown.seen(self.prospects.plan(candidate), evidence, self.problem, self.device)

    # -- one candidate

    def compile(self, candidates: list[Candidate]) -> list[Outcome]:
        """Compile all kernels of candidates, each distinct kernel once; one outcome a candidate."""
        return self.compiling.all(candidates)

    def _gated(self, candidate: Candidate, outcome: Outcome, *, thorough: bool) -> Passed:
        if isinstance(outcome, Rejected):
            raise outcome
        plan, config = self.prospects.plan(candidate), dict(candidate.config)
        try:
            evidence = self.bench.examine(plan, outcome, config, thorough=thorough)
        except Rejected as refusal:
            if not refusal.doubtful:
                raise
            evidence = self.bench.examine(plan, outcome, config, thorough=thorough)
        return Passed(candidate, plan, outcome, evidence)

    def qualified(self, candidate: Candidate, outcome: Outcome) -> Passed:
        """A candidate that passes the thorough gates, as it must before it may be recorded. Raises Rejected."""
        return self._gated(candidate, outcome, thorough=True)

    def refuse(self, refusal: Rejected) -> None:
        self.refusals[f"{refusal.gate or 'execution'}: {refusal.reason}"] += 1

    # -- what is said

    def note(self, text: str) -> None:
        self._listener(Event("note", text))

    def step(self, text: str) -> None:
        done, best = len(self.search.finished()), self.best
        left = max(0.0, self.request.timeout - self.elapsed_s)
        pace = self.elapsed_s / max(1, self.search.counts.measured + sum(self.refusals.values()))
        self._listener(
            Event(
                "step",
                text,
                done=done,
                total=self.request.trials,
                rejected=sum(self.refusals.values()),
                best_s=best[0] if best else None,
                best_rate=self.work / best[0] if best else 0.0,
                unit=self.unit,
                best_name=best[1].variant if best else "",
                elapsed_s=self.elapsed_s,
                eta_s=min(left, pace * max(0, self.request.trials - done)),
            )
        )

    def _interrupt(self) -> None:
        self.interrupted = True
        self.note("interrupted: keeping the best so far; press Ctrl-C again to leave at once")

    def nothing(self) -> NothingSurvived:
        """The error for a run in which no candidate passed: the reasons of this and of earlier runs."""
        reasons = Counter(f"{p.gate}: {p.reason}" for p in self.search.finished() if p.status == "rejected")
        reasons |= self.refusals
        most = f"; most often {reasons.most_common(1)[0][0]}" if reasons else ""
        return NothingSurvived(
            f"{self.problem.key} on {self.device.key}: no candidate passed the gates, "
            f"{sum(reasons.values())} refused{most}",
            reasons,
        )


def _candidates(batch: list[Ask]) -> list[Candidate]:
    return [Candidate.of(ask.variant, ask.config) for ask in batch]
