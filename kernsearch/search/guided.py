"""Optuna's TPE with the feasible set behind it."""

from __future__ import annotations

from .pool import Candidate, Pool, Proposal, candidate
from .searchers import Local, Random
from .tpe import Tpe


class Guided(Random):
    """TPE, with every third proposal a step of a local climb from the best so far.

    Replayed on a recorded space the climb lifts the unlucky runs: after 100 measurements the tenth percentile went
    from 0.87 to 0.92 of the optimum, after 220 from 0.98 to 1. The first candidates are random. After `patience`
    wasted suggestions in a row a climb, the feasible candidate nearest to the suggestion, or a random one takes over,
    and the next time patience is half as long, so that neither a rugged nor a nearly exhausted space stalls it.
    """

    def __init__(self, pool: Pool, tpe: Tpe, startup: int = 12, patience: int = 4, every: int = 3):
        super().__init__(pool)
        self.tpe = tpe
        self.startup = startup
        self.patience = self.patient = patience
        self.every = every
        self.local = Local(pool)
        self.numbers: dict[Candidate, int] = {}  # of the trials that run, as TPE counts them
        self.waste = 0
        self.turn = 0

    def propose(self) -> Proposal | None:
        if len(self.numbers) + len(self.local.seconds) < self.startup:
            return super().propose()
        patient = self.waste < self.patient
        if self.waste == 0:
            self.turn += 1
        if not patient or (self.waste == 0 and self.turn % self.every == 0):
            climbed = self.local.climb()
            if climbed is not None:
                return climbed
        number, variant, config = self.tpe.suggest()
        if patient:
            return Proposal(candidate(variant, config), "tpe", number)
        self.patient = max(1, self.patient // 2)
        self.tpe.tell(number, None)
        near = self.pool.nearest(candidate(variant, config))
        return Proposal(near, "near") if near else super().propose()

    def begun(self, candidate: Candidate, number: int | None) -> None:
        self.waste = 0
        if number is None:
            number = self.tpe.learn(candidate.variant, candidate.config)
        else:
            self.patient = self.patience
        self.numbers[candidate] = number
        self.local.begun(candidate, number)

    def told(self, candidate: Candidate, seconds: float | None) -> None:
        if candidate not in self.numbers:
            self.begun(candidate, None)
        self.tpe.tell(self.numbers.pop(candidate), seconds)
        self.local.told(candidate, seconds)

    def dropped(self, candidate: Candidate) -> None:
        if candidate in self.numbers:
            self.tpe.forget(self.numbers.pop(candidate))
        self.local.dropped(candidate)

    def wasted(self, proposal: Proposal) -> None:
        """TPE learns what a duplicate took: it concentrates on what is good, which a refusal would unlearn."""
        self.waste += 1
        if proposal.number is not None:
            self.tpe.tell(proposal.number, self.local.seconds.get(proposal.candidate))
        self.local.wasted(proposal)
