"""The search for one problem on one device: ask, tell, count, resume."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Literal

from ..errors import GATES, SpaceError
from ..feasible import FeasibleSpace
from . import SEARCHERS, lease
from .expecting import EXPECTED, Expecting
from .genetic import Genetic
from .guided import Guided
from .narrowing import domains_of, narrowed, space_hash
from .notes import Page
from .outcome import Ask, Counts, Past
from .points import Advice
from .pool import Candidate, Pool, Proposal, candidate
from .searchers import Exhaustive, Local, Random, Searcher
from .study import VARIANT, State, Study, Trial
from .tpe import Tpe, importances

Keep = Callable[[str, Mapping[str, int]], str | None]
Foresee = Callable[[str, Sequence[Mapping[str, int]]], None]

SEEDS = 1 << 32  # how many there are
_SYNC_S = 0.5  # after which others' trials are read again before a candidate is asked for
_LAST = 10  # choices that are looked at to tell whether more of them promise anything
_LIVES = 2  # times a candidate is tried again after its process died


class Search:
    """Ask/tell over a study that survives a kill, is resumed, and may be shared by processes and machines.

    name       readable, of problem and device; the study's name is `name #hash`, with the hash of variants and domains
               and of `identity` (what else makes old measurements worthless: sources, compiler)
    variants   all variants by name with their feasible spaces, the best ranked first
    storage    an Optuna URL, the path of an SQLite file, a path ending in .log for a journal; None keeps nothing
    trials     how many distinct candidates may pass the space gate in the whole study, earlier runs counted
    fix, variant, keep
               narrow what is asked; `keep` returns the reason for which it does not want a candidate
    foresee    told of configs of a variant that `keep` will soon be asked about, as many take little longer than one

    Use it from one thread, and as a context manager or with `close`: what was asked and not told is then given up.
    Raises StorageError, and SpaceError when a filter is wrong or leaves nothing.
    """

    def __init__(
        self,
        name: str,
        variants: Mapping[str, FeasibleSpace],
        *,
        searcher: str = "tpe",
        seed: int = 0,
        storage: str | None = None,
        trials: int = 200,
        fix: Mapping[str, int] | None = None,
        variant: str | None = None,
        keep: Keep = lambda variant, config: None,
        identity: Iterable[str] = (),
        attrs: Mapping[str, Any] | None = None,
        lease_s: float = lease.LEASE_S,
        foresee: Foresee = lambda variant, configs: None,
        advice: Sequence[Advice] = (),
    ):
        if searcher not in SEARCHERS:
            raise SpaceError(f"searcher {searcher!r}: want one of {', '.join(SEARCHERS)}")
        if trials < 1:
            raise SpaceError(f"trials {trials}: want at least 1")
        if not 0 <= seed < SEEDS:
            raise SpaceError(f"seed {seed}: want a whole number from 0 to {SEEDS - 1}")
        self.variants = dict(variants)
        self.trials = trials
        self.counts = Counts()
        self._keep = keep
        self._opinions: dict[Candidate, str | None] = {}
        self._advice = tuple(advice)
        self._fix = dict(fix or {})
        self._lease_s = lease_s
        self._narrow = narrowed(self.variants, self._fix, variant)
        domains = domains_of(self.variants)
        self._study = Study(storage, f"{name} #{space_hash(self.variants, identity)}", tuple(self.variants), domains)
        self.name = self._study.name
        if attrs:
            self._study.describe(attrs)

        self._seen: set[int] = set()  # numbers of trials that will not change any more
        self._past: dict[Candidate, Past] = {}
        self._mine: dict[int, Ask] = {}
        self._leased: dict[int, float] = {}  # when, on the monotonic clock
        self._others: dict[int, Candidate] = {}
        self._deaths: Counter[Candidate] = Counter()
        self._queue: deque[tuple[Candidate, str]] = deque()
        self._outlooks: deque[float] = deque(maxlen=_LAST)
        self._top = -1  # the highest number of a trial that is known
        self._synced = 0.0  # when the study was last read, on the monotonic clock
        found = self._read()
        self.resumed = sum(t.state in ("measured", "refused") for t in found)
        seed = (seed + len(found)) % SEEDS
        self._pool = Pool(self._narrow, self._unwanted, seed, foresee)
        self._searcher = self._make(searcher, domains, variant, seed)
        self._sync(found)
        self._insist()

    def ask(self) -> Ask | None:
        """The next candidate to compile, gate and measure; None when `trials` is reached (what runs, here or in
        another process, counted in) or no candidate is left."""
        self._renew()
        if time.monotonic() - self._synced > _SYNC_S:
            self.refresh()
            return self._asked()
        synced = self._synced
        found = self._asked()
        if found is None and self._synced == synced:  # others may have given something up since
            self.refresh()
            found = self._asked()
        return found

    def _asked(self) -> Ask | None:
        while self.left > 0:
            proposal = self._next()
            if proposal is None:
                return None
            reason = self._refusal(proposal.candidate)
            if reason is not None:
                self._waste(proposal, "rejected", "space", reason)
                self.counts.rejected["space"] += 1
                continue
            if proposal.candidate in self._pool.known:
                self._duplicate(proposal, self._pool.known[proposal.candidate])
                continue
            ask = self._start(proposal)
            if ask is not None:
                return ask
        return None

    @property
    def searched(self) -> dict[str, FeasibleSpace]:
        """The variants and values that are searched in this run."""
        return dict(self._narrow)

    @property
    def left(self) -> int:
        """How many candidates may still be asked."""
        return self.trials - len(self._past) - len(self._mine) - len(self._others)

    def settled(self, gain: float) -> bool:
        """Each of the last choices was expected to save less than this share of the time; False for searchers that
        expect nothing."""
        return len(self._outlooks) == _LAST and max(self._outlooks) < gain

    def tell_measured(self, ask: Ask, seconds: float, attrs: Mapping[str, Any] | None = None) -> None:
        """The candidate passed all gates; `seconds` is the median of its measurement."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{seconds} s: a measured time is positive and finite")
        self._tell(ask, "measured", {"status": "measured", **(attrs or {})}, seconds)
        self.counts.measured += 1

    def tell_rejected(self, ask: Ask, gate: str, reason: str, attrs: Mapping[str, Any] | None = None) -> None:
        """A gate past the space gate refused the candidate."""
        if gate not in GATES:
            raise ValueError(f"gate {gate!r}: want one of {', '.join(GATES)}")
        self._tell(ask, "refused", {"status": "rejected", "gate": gate, "reason": reason, **(attrs or {})}, None)
        self.counts.rejected[gate] += 1

    def abandon(self, ask: Ask) -> None:
        """Nothing came of it and nothing is counted: a later run may ask it again."""
        self._mine.pop(ask.number)
        self._study.finish(ask.id, "failed", {"status": "abandoned", "reason": "its run ended"})
        self._seen.add(ask.number)
        self._pool.known.pop(ask.candidate, None)
        self._searcher.dropped(ask.candidate)

    def importances(self, variant: str) -> dict[str, float]:
        """What share of the variation of its measured times each letter of a variant explains, the largest first; empty
        where too little is measured to tell."""
        return importances([(p.config, p.seconds) for p in self.finished() if p.variant == variant and p.seconds])

    def annotate(self, pages: Mapping[int | None, Page]) -> None:
        """Write notes and files of trials by number, and the study's own note under None, in one transaction."""
        self._study.annotate(pages)

    def enqueue(self, variant: str, config: Mapping[str, int], origin: str) -> bool:
        """Ask this candidate next, or the feasible one that resembles it most. False when the study knows it already
        or the filters refuse it; that costs nothing and is no ask."""
        if variant not in self._narrow:
            return False
        wanted: Candidate | None = candidate(variant, {**config, **self._fix})
        if wanted and self._narrow[variant].contains(wanted.config) is not None:
            wanted = self._pool.nearest(wanted)
        if wanted is None or not self._pool.fresh(wanted) or any(wanted == queued for queued, _ in self._queue):
            return False
        self._queue.append((wanted, origin))
        return True

    def finished(self, *, narrowed: bool = True) -> list[Past]:
        """The finished candidates of all runs by number; those that the filters of this run refuse only on demand."""
        past = sorted(self._past.values(), key=lambda p: p.number)
        return [p for p in past if not narrowed or self._refusal(candidate(p.variant, p.config)) is None]

    def best(self) -> Past | None:
        """The fastest measured candidate under the filters of this run."""
        timed = [(p.seconds, p.number, p) for p in self.finished() if p.seconds is not None]
        return min(timed)[2] if timed else None

    def suggest(self, variant: str, config: Mapping[str, int]) -> None:
        """A candidate, or the feasible one that resembles it most, that is worth a look: it is asked when the searcher
        comes to expect most of it. Searchers that expect nothing pass over it."""
        if variant in self._narrow and (near := self._pool.nearest(candidate(variant, {**config, **self._fix}))):
            self._searcher.suggested(near)

    def reconsider(self, wanted: Callable[[Past], bool]) -> None:
        """Forget refusals of earlier runs for which `wanted` is true: the candidates may be asked again."""
        for done, past in list(self._past.items()):
            if past.status == "rejected" and wanted(past):
                del self._past[done]
                self._pool.known.pop(done, None)
                self._searcher.dropped(done)

    def refresh(self) -> None:
        """Read what other processes have told, and give up what dead ones have left."""
        if not self._others and self._study.count() == self._top + 1:  # nobody else works on the study
            self._synced = time.monotonic()
            return
        self._sync(self._read())

    def _read(self) -> list[Trial]:
        """The trials that may have changed since the last time."""
        found = self._study.trials(skip=self._seen)
        self._synced = time.monotonic()
        self._top = max([self._top, *(trial.number for trial in found)])
        return found

    def close(self) -> None:
        """Give up what was asked and not told, so that no trial stays running."""
        for ask in list(self._mine.values()):
            self.abandon(ask)
        self._study.close()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- proposals

    def _make(self, name: str, domains: Mapping[str, tuple[int, ...]], variant: str | None, seed: int) -> Searcher:
        if name == "expected":
            return Expecting(self._pool, self._advice)
        if name != "tpe":
            plain: dict[str, type[Random]] = {
                "random": Random, "local": Local, "genetic": Genetic, "exhaustive": Exhaustive,
            }  # fmt: skip
            return plain[name](self._pool)
        fix: dict[str, str | int] = dict(self._fix)
        only = variant or (next(iter(self._narrow)) if len(self._narrow) == 1 else None)
        if only is not None:
            fix[VARIANT] = only
        letters = {name: tuple(space.domains) for name, space in self.variants.items()}
        return Guided(self._pool, Tpe(letters, domains, fix, seed))

    def _next(self) -> Proposal | None:
        while self._queue:
            wanted, origin = self._queue.popleft()
            if self._pool.fresh(wanted):
                return Proposal(wanted, origin)
        proposal = self._searcher.propose()
        if proposal is not None and proposal.origin == EXPECTED:
            self._outlooks.append(self._searcher.outlook)
        return proposal

    def _refusal(self, wanted: Candidate) -> str | None:
        space = self._narrow.get(wanted.variant)
        if space is None:
            return f"variant {wanted.variant} is left out of this run"
        return space.contains(wanted.config) or self._unwanted(wanted)

    def _unwanted(self, wanted: Candidate) -> str | None:
        if wanted not in self._opinions:
            self._opinions[wanted] = self._keep(wanted.variant, wanted.config)
        return self._opinions[wanted]

    def _insist(self) -> None:
        """SpaceError unless something of this run's space is left to ask or to look back on."""
        known = chain(self._past, self._others.values())
        if self._pool.any() or any(self._refusal(one) is None for one in known):
            return
        for name, space in self._narrow.items():
            reason = space.why_empty() or next((self._unwanted(candidate(name, c)) for c in space.iterate()), None)
            raise SpaceError(f"{self.name.rpartition(' #')[0]}: no candidate is left to search; {name}: {reason}")

    # -- trials

    def _start(self, proposal: Proposal) -> Ask | None:
        wanted = proposal.candidate
        attrs = {"status": "running", "origin": proposal.origin}
        held = str(lease.grant(self._lease_s))
        id, number = self._study.add(wanted.variant, wanted.config, "running", attrs, lease=held)
        ask = Ask(number, wanted.variant, wanted.config, proposal.origin, id)
        self._mine[number] = ask
        self._leased[number] = time.monotonic()
        self._pool.known[wanted] = number
        self._searcher.begun(wanted, proposal.number)
        others: list[Trial] = []
        if number != self._top + 1:  # another process has asked since the study was read, perhaps for the same
            others = self._read()
        self._top = max(self._top, number)
        for trial in others:
            same = candidate(trial.variant, trial.config) == wanted and trial.number < number
            if same and _counts(trial) and trial.state != "failed":
                self._study.finish(
                    id, "refused", {"status": "duplicate", "reason": f"duplicate of trial {trial.number}"}
                )
                self.counts.duplicates += 1
                del self._mine[number]
                del self._pool.known[wanted]
                self._seen.add(number)
                self._searcher.dropped(wanted)
                self._sync(others)
                return None
        self._sync(others)
        earlier = [*(p.number for p in self._past.values()), *self._others, *self._mine]
        if sum(n < number for n in earlier) >= self.trials:
            self.abandon(ask)
            return None
        return ask

    def _waste(self, proposal: Proposal, status: str, gate: str, reason: str) -> None:
        variant, config = proposal.candidate.variant, proposal.candidate.config
        attrs = {"status": status, "gate": gate, "reason": reason, "origin": proposal.origin}
        _, number = self._study.add(variant, config, "refused", {k: v for k, v in attrs.items() if v})
        self._seen.add(number)
        if number == self._top + 1:
            self._top = number
        self._searcher.wasted(proposal)

    def _duplicate(self, proposal: Proposal, of: int) -> None:
        self._waste(proposal, "duplicate", "", f"duplicate of trial {of}")
        self.counts.duplicates += 1

    def _tell(self, ask: Ask, state: State, attrs: dict[str, Any], seconds: float | None) -> None:
        if ask.number not in self._mine:
            raise ValueError(f"trial {ask.number} was not asked here or is told already")
        number = ask.number
        if not self._study.finish(ask.id, state, attrs, seconds):  # its lease ran out and somebody told it FAIL
            attrs = {"origin": ask.origin, **attrs}
            _, number = self._study.add(ask.variant, ask.config, state, attrs, seconds)
        del self._mine[ask.number]
        self._seen.update((ask.number, number))
        self._keep_past(number, ask.variant, ask.config, seconds, {"origin": ask.origin, **attrs})

    def _keep_past(
        self, number: int, variant: str, config: dict[str, int], seconds: float | None, attrs: dict[str, Any]
    ) -> None:
        done = candidate(variant, config)
        gate, reason, origin = (str(attrs.get(key, "")) for key in ("gate", "reason", "origin"))
        status: Literal["measured", "rejected"] = "rejected" if seconds is None else "measured"
        self._past[done] = Past(number, variant, config, status, seconds, gate, reason, origin, attrs)
        self._pool.known.setdefault(done, number)
        self._searcher.told(done, seconds)

    def _sync(self, trials: Iterable[Trial]) -> None:
        """Learn what others have told; fail what dead processes have left running."""
        for trial in trials:
            if trial.number in self._mine or trial.number in self._seen:
                continue
            done = candidate(trial.variant, trial.config)
            if trial.state == "running":
                if not self._alive(trial):
                    self._bury(trial, done)
                elif trial.number not in self._others:
                    self._others[trial.number] = done
                    if self._pool.known.setdefault(done, trial.number) == trial.number:
                        self._searcher.begun(done, None)
                continue
            self._seen.add(trial.number)
            was_running = self._others.pop(trial.number, None) is not None
            if trial.state == "failed" and trial.attrs.get("status") == "stale":
                self._deaths[done] += 1
            if _counts(trial) and trial.state != "failed":
                if done not in self._past or self._past[done].seconds is None:
                    self._keep_past(trial.number, trial.variant, trial.config, trial.seconds, trial.attrs)
            elif was_running and self._pool.known.get(done) == trial.number:
                del self._pool.known[done]
                self._searcher.dropped(done)

    def _bury(self, trial: Trial, done: Candidate) -> None:
        if self._others.pop(trial.number, None) is not None and self._pool.known.get(done) == trial.number:
            del self._pool.known[done]
            self._searcher.dropped(done)
        self._deaths[done] += 1
        self._seen.add(trial.number)
        attrs = {"status": "stale", "reason": "its process died"}
        if self._study.finish(trial.id, "failed", attrs) and self._deaths[done] <= _LIVES:
            origin = str(trial.attrs.get("origin", "resumed"))
            if self._refusal(done) is None and done not in self._pool.known:
                self._queue.append((done, origin))

    def _alive(self, trial: Trial) -> bool:
        held = lease.parse(trial.lease)
        if held is not None:
            return held.alive
        return trial.start is not None and datetime.now() - trial.start < timedelta(seconds=self._lease_s)

    def _renew(self) -> None:
        """Leases that are half over are made whole again."""
        now = time.monotonic()
        for number, ask in self._mine.items():
            if now - self._leased[number] > self._lease_s / 2:
                self._study.renew(ask.id, str(lease.grant(self._lease_s)))
                self._leased[number] = now


def _counts(trial: Trial) -> bool:
    """The trial's candidate is past the space gate."""
    return trial.state != "refused" or trial.attrs.get("gate", "space") != "space"
