"""The end of a tuning run: the near-best candidates meet the default, and what wins is recorded.

The winner is taken only if it beats the default candidate with confidence; otherwise the default is, and the result
says so. Whichever it is passes the thorough gates then, or the play-off is repeated without it: these gates may take
seconds, which are better spent on rounds than on candidates that are not recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from ..candidate import Candidate
from ..errors import Rejected
from ..measure import Playoff, Verdict, playoff, verdict
from ..records import Measured, Record, fingerprint, now
from .outcome import Result
from .session import Passed, Session

NEAR = 1.10  # finalists are within this of the fastest
FINALISTS = 5
BUDGET_SHARE = 0.2  # of the search's timeout, for gates and play-off together
BUDGET_S = (4.0, 25.0)  # at least, at most
PLAYING = 0.75  # of that is the play-off's
ROUNDS = 24  # there are no more finalists than so many rounds have time for


def conclude(session: Session) -> Result:
    """Choose and record. Raises NothingSurvived when no candidate passes the thorough gates."""
    low, high = BUDGET_S
    budget = low if session.interrupted else min(high, max(low, BUDGET_SHARE * session.request.timeout))
    deadline = time.monotonic() + PLAYING * budget
    fallen: set[Candidate] = set()
    while True:
        finalists = _finalists(session, fallen, PLAYING * budget)
        if not finalists:
            raise session.nothing()
        default = next((c for c in session.predicted if c in finalists), next(iter(finalists)))
        at_stake = default
        try:
            played = _played(session, finalists, default, max(low / 2, deadline - time.monotonic()))
            conditions = session.bench.conditions()
            told = verdict(played)
            at_stake = next(candidate for candidate in finalists if candidate.name == told.keep)
            session.step("thorough gates")
            kept = session.qualified(at_stake, finalists[at_stake].compiled)
            break
        except Rejected as refusal:
            session.refuse(refusal)
            session.note(f"{at_stake.name} fell at the end: {refusal.reason}")
            fallen.add(at_stake)
    session.note(told.sentence)
    record = _record(session, kept, default, played, told, conditions)
    path, recorded = _write(session, record)
    session.pages.end({**finalists, at_stake: kept}, played, told)
    return Result(
        record=record,
        path=path,
        recorded=recorded,
        counts=record.counts,
        resumed=session.search.resumed,
        elapsed_s=session.elapsed_s,
        interrupted=session.interrupted,
        default_kept=not told.beats_default,
        refusals=dict(session.refusals),
    )


def _played(session: Session, finalists: dict[Candidate, Passed], default: Candidate, budget_s: float) -> Playoff:
    """Raises Rejected when the default fails."""
    session.step("play-off")
    session.bench.conditions()  # of the play-off alone, from here on
    session.note(f"play-off of {len(finalists)} finalists" if len(finalists) > 1 else "one finalist is left")
    names = {candidate.name: candidate for candidate in finalists}
    return playoff(
        {name: session.bench.timer(finalists[c].plan, finalists[c].compiled) for name, c in names.items()},
        incumbent=default.name,
        order=sorted(names, key=lambda name: (session.prospects.workspace_bytes(names[name]), name)),
        budget_s=budget_s,
        seed=session.request.seed,
        policy=session.bench.policy,
    )


def _contenders(session: Session) -> list[tuple[Candidate, float]]:
    """All measured candidates of this and earlier runs with their seconds: the default first, then the fastest."""
    timed = sorted((p.seconds, p.number, p) for p in session.search.finished() if p.seconds is not None)
    seconds = {Candidate.of(p.variant, p.config): taken for taken, _, p in timed}
    default = [c for c in session.predicted if c in seconds][:1]
    return [(candidate, seconds[candidate]) for candidate in dict.fromkeys(default + list(seconds))]


def _finalists(session: Session, fallen: set[Candidate], budget_s: float) -> dict[Candidate, Passed]:
    """The default, the fastest, and those near it, as many as there is time for; those that fell are left out and the
    next ones take their place. They passed the gates when they were searched: what these found is not kept."""
    contenders = [(candidate, seconds) for candidate, seconds in _contenders(session) if candidate not in fallen]
    fastest_s = min((seconds for _, seconds in contenders), default=0.0)
    most = min(FINALISTS, int(budget_s / (ROUNDS * fastest_s)) - 2) if contenders else 0  # the default plays twice
    chosen = [candidate for number, (candidate, seconds) in enumerate(contenders)
              if number < 2 or (number <= most and seconds <= NEAR * fastest_s)]  # fmt: skip
    found: dict[Candidate, Passed] = {}
    for candidate, outcome in zip(chosen, session.compile(chosen), strict=True):
        if isinstance(outcome, Rejected):
            session.refuse(outcome)
            fallen.add(candidate)
        else:
            found[candidate] = Passed(candidate, session.prospects.plan(candidate), outcome, {})
    return found if found or not chosen else _finalists(session, fallen, budget_s)


def _record(
    session: Session, kept: Passed, default: Candidate, played: Playoff, told: Verdict, conditions: dict[str, Any]
) -> Record:
    measured = Measured.of(played.measurements[told.keep])
    evidence: dict[str, Any] = {
        "compile": [dict(compiled.evidence) for compiled in kept.compiled],
        "gates": kept.evidence,
        "gflops": session.flops / measured.median_s / 1e9,
        **({"gbytes_s": session.work / measured.median_s / 1e9} if session.unit == "B" else {}),
        "default": {"variant": default.variant, "config": dict(default.config)},
        "finalists": {name: m.median_s for name, m in sorted(played.measurements.items())},
        "verdict": told.sentence,
        "refusals": dict(session.refusals),
        "searched": _searched(session, kept.candidate.variant),
    }
    if told.keep == played.winner:
        evidence["tied"] = [name for name in played.tied if name != told.keep]
    if conditions:
        evidence["device"] = conditions
    if told.keep in played.ratios:
        ratio = played.ratios[told.keep]
        evidence["speedup"] = {"value": 1 / ratio.value, "ci": [1 / ratio.ci[1], 1 / ratio.ci[0]]}
    return Record(
        problem=session.problem,
        fingerprint=fingerprint.here(kept.plan, session.device),
        plan=kept.plan,
        variant=kept.candidate.variant,
        config=dict(kept.candidate.config),
        derivation=tuple(step.to_json() for step in session.prospects.variants[kept.candidate.variant].steps),
        measurement=measured,
        default_measurement=Measured.of(played.measurements[default.name]),
        tie=played.tie and told.keep in played.tied,
        evidence=evidence,
        counts=session.search.counts.to_json(),
        created=now(),
    )


def _searched(session: Session, variant: str) -> dict[str, Any]:
    """What the search saw on its way: the best of each variant by its short looks, which letters of the winner's
    mattered, and what the gates refused."""
    past = session.search.finished()
    best: dict[str, float] = {}
    for p in past:
        if p.seconds is not None:
            best[p.variant] = min(p.seconds, best.get(p.variant, p.seconds))
    refused = Counter((p.gate, p.reason) for p in past if p.seconds is None)
    return {
        "variants": dict(sorted(best.items())),
        "importances": session.search.importances(variant),
        "refused": [{"gate": gate, "reason": reason, "count": n} for (gate, reason), n in sorted(refused.items())],
    }


def _write(session: Session, record: Record) -> tuple[Path, bool]:
    """Keep the record, unless the one that is there is faster and the run looked at a part of the space on purpose, or
    another run has made that one meanwhile."""
    known = session.store.same_shape(session.problem, session.device)
    if known is None or not (session.request.explores or known.record.created >= session.began):
        return session.store.write(record), True
    if known.path is not None and known.record.measurement is not None:
        theirs, ours = known.record.measurement.median_s, record.measurement
        if ours is not None and theirs < ours.median_s:
            session.note(f"the record of {known.record.variant} is faster and stays")
            return known.path, False
    return session.store.write(record), True
