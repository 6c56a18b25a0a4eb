"""The end of a tuning run: the near-best candidates meet the default, and what wins is recorded.

Every finalist passes the thorough gates first. The winner is recorded only if it beats the default candidate with
confidence; otherwise the default is, and the result says so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .. import records
from ..candidate import Candidate
from ..errors import Rejected
from ..measure import playoff, verdict
from ..records import Measured, Record, fingerprint

if TYPE_CHECKING:
    from .request import Result
    from .session import Session, Tried

NEAR = 1.10  # finalists are within this of the fastest
FINALISTS = 5
BUDGET_SHARE = 0.2  # of the search's timeout, for gates and play-off together
BUDGET_S = (4.0, 25.0)  # at least, at most
INTERRUPTED_S = 5.0


def conclude(session: Session, predicted: list[Candidate]) -> Result:
    """Choose and record. Raises NothingSurvived when no candidate passes the thorough gates."""
    from .request import Result

    low, high = BUDGET_S
    budget = INTERRUPTED_S if session.interrupted else min(high, max(low, BUDGET_SHARE * session.request.timeout))
    deadline = time.monotonic() + budget
    finalists = _qualified(session, _finalists(session, predicted), deadline)
    if not finalists:
        raise session.nothing()
    default = next((c for c in predicted if c in finalists), next(iter(finalists)))
    session.note(f"play-off of {len(finalists)} finalists")
    names = {candidate.name: candidate for candidate in finalists}
    order = sorted(names, key=lambda name: (session.workspace_bytes(finalists[names[name]].plan), name))
    result = playoff(
        {name: session.bench.timer(finalists[c].plan, finalists[c].compiled) for name, c in names.items()},
        incumbent=default.name,
        order=order,
        budget_s=max(1.0, deadline - time.monotonic()),
        seed=session.request.seed,
    )
    told = verdict(result)
    session.note(told.sentence)
    kept = finalists[names[told.keep]]
    against = tuple(1 / bound for bound in reversed(result.ratios[told.keep].ci)) if told.keep in result.ratios else ()
    measured = Measured.of(result.measurements[told.keep])
    record = Record(
        problem=session.problem,
        fingerprint=fingerprint.here(kept.plan, session.device),
        plan=kept.plan,
        variant=kept.candidate.variant,
        config=dict(kept.candidate.config),
        derivation=tuple(step.to_json() for step in session.variants[kept.candidate.variant].steps),
        measurement=measured,
        default_measurement=Measured.of(result.measurements[default.name]),
        tie=told.keep in result.tied and result.tie,
        evidence={
            "compile": [dict(compiled.evidence) for compiled in kept.compiled],
            **kept.evidence,
            "gflops": session.flops / measured.median_s / 1e9,
            **({"against_default": against} if against else {}),
            "default": {"variant": default.variant, "config": dict(default.config)},
            "finalists": {name: Measured.of(m).median_s for name, m in sorted(result.measurements.items())},
            "verdict": told.sentence,
            "refusals": dict(session.refusals),
        },
        counts=session.search.counts.to_json(),
        created=records.now(),
    )
    path = session.store.write(record)
    return Result(
        record=record,
        path=path,
        counts=session.search.counts.to_json(),
        resumed=session.search.resumed,
        elapsed_s=session.elapsed_s,
        interrupted=session.interrupted,
        default_kept=not told.beats_default,
        refusals=dict(session.refusals),
    )


def _finalists(session: Session, predicted: list[Candidate]) -> list[Candidate]:
    """The default first, then the fastest of this and earlier runs."""
    timed = sorted((p.seconds, p.number, p) for p in session.search.finished() if p.seconds is not None)
    near = [Candidate.of(p.variant, p.config) for seconds, _, p in timed if seconds <= NEAR * timed[0][0]]
    measured = {Candidate.of(p.variant, p.config) for _, _, p in timed}
    default = next((c for c in predicted if c in measured), None)
    return list(dict.fromkeys(([default] if default else []) + near[:FINALISTS]))


def _qualified(session: Session, wanted: list[Candidate], deadline: float) -> dict[Candidate, Tried]:
    """Those that pass the thorough gates, the default and the fastest first; time may end the list early."""
    found: dict[Candidate, Tried] = {}
    outcomes = session.compile(wanted) if wanted else []
    for candidate, outcome in zip(wanted, outcomes, strict=True):
        if len(found) >= 2 and deadline - time.monotonic() < _half(session):
            break
        try:
            if isinstance(outcome, Rejected):
                raise outcome
            found[candidate] = session.examine_thoroughly(candidate, outcome)
        except Rejected as refusal:
            session.refusals[f"{refusal.gate or 'execution'}: {refusal.reason}"] += 1
            session.note(f"{candidate.name} fell at the thorough gates: {refusal.reason}")
    return found


def _half(session: Session) -> float:
    """Half of the budget belongs to the play-off."""
    return 0.5 * min(BUDGET_S[1], max(BUDGET_S[0], BUDGET_SHARE * session.request.timeout))
