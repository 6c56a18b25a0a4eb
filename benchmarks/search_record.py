"""Records the whole space of a small problem on this CPU, so that searches of it can be replayed.

    python benchmarks/search_record.py gemm 96x80x64 [--seconds 200] [--rounds 9] [--variants A,B]

Takes what `tune` would search, of all variants or some: each feasible candidate that the model does not call hopeless.
First each one once, as `tune` does, gates included. Then they are timed in rounds that go through all of them in random
order, so that a slow spell of the machine falls on all alike, and on none in most rounds: three rounds of all, for one
look that meets a slow spell says nothing of a candidate, and the others of those within 1.5 times the best. The median
of a look is one sample; the time of a candidate is the median over rounds. The study lies in the data folder and a run
ends after `--seconds`, so a recording can be made in pieces: run the command until it says that the recording is
written. Its name ends in the key of the device.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from common import RESULTS

from kernsearch import backends, registry, settings
from kernsearch.candidate import Candidate
from kernsearch.errors import Rejected
from kernsearch.measure import quick
from kernsearch.problem import Problem
from kernsearch.replay.export import text_of, write
from kernsearch.tune.request import Request
from kernsearch.tune.session import Session

ALL = 3  # rounds that time all candidates
NEAR = 1.5  # times the best: candidates that are timed in later rounds too
CHUNK = 64  # candidates whose kernels are loaded at once


def explore(session: Session) -> bool:
    """Measure what the study lacks of the session's space; False when time ran out first."""
    if _lacks(session):
        session.explore()
    print(f"{len(session.search.finished())} candidates, {session.search.counts}", file=sys.stderr)
    return not _lacks(session)


def _lacks(session: Session) -> bool:
    done = {Candidate.of(p.variant, p.config) for p in session.search.finished()}
    return any(Candidate.of(name, config) not in done and session.prospects.unwanted(name, config) is None
               for name, space in session.search.searched.items() for config in space.iterate())  # fmt: skip


def again(session: Session, variants: Sequence[str], looks: Path, rounds: int, seconds: float) -> bool:
    """Time what passed the gates again, a line for each round in `looks`; False when time ran out first."""
    measured = [Candidate.of(p.variant, p.config) for p in session.search.finished()
                if p.seconds is not None and (not variants or p.variant in variants)]  # fmt: skip
    done = len(looks.read_text().splitlines()) if looks.exists() else 0
    for number in range(done, rounds):
        if session.elapsed_s > seconds:
            return False
        wanted = measured if number < ALL else _near(samples_in(looks, ALL))
        print(f"round {number + 1} of {rounds}: {len(wanted)} candidates", file=sys.stderr)
        order = random.Random(number).sample(wanted, len(wanted))
        told = [[c.variant, dict(c.config), s] for c, s in _timed(session, order)]
        with looks.open("a") as file:
            file.write(json.dumps(told) + "\n")
    return True


def samples_in(looks: Path, rounds: int | None = None) -> dict[Candidate, list[float]]:
    """Seconds of each candidate, one for each of the first rounds, or of all."""
    found: dict[Candidate, list[float]] = {}
    for line in looks.read_text().splitlines()[:rounds]:
        for variant, config, seconds in json.loads(line):
            found.setdefault(Candidate.of(variant, config), []).append(float(f"{seconds:.4g}"))
    return found


def _near(samples: Mapping[Candidate, Sequence[float]]) -> list[Candidate]:
    best_s = min(median(found) for found in samples.values())
    return [candidate for candidate, found in samples.items() if median(found) <= NEAR * best_s]


def _timed(session: Session, order: list[Candidate]) -> Iterator[tuple[Candidate, float]]:
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        for candidate, outcome in zip(chunk, session.compile(chunk), strict=True):
            if isinstance(outcome, Rejected):
                continue
            timer = session.bench.timer(session.prospects.plan(candidate), outcome)
            yield candidate, quick(timer).median_s


def recording(problem: Problem, storage: Path, variants: Sequence[str], looks: Path) -> str:
    """Our export of the study's trials of these variants, with the samples of the rounds and their median."""
    samples = samples_in(looks)
    head, *rows = text_of(problem.key, "jsonl", str(storage)).splitlines()
    lines = [head]
    for row in map(json.loads, rows):
        if variants and row["variant"] not in variants:
            continue
        if found := samples.get(Candidate.of(row["variant"], row["config"])):
            row |= {"seconds": median(found), "samples_s": found}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op")
    parser.add_argument("shape")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--variants", help="these only, joined by commas")
    args = parser.parse_args()
    problem = registry.problem(args.op, tuple(map(int, args.shape.split("x"))), None, backend="cpu")
    folder = Path(settings.data_dir(), "recordings")
    folder.mkdir(parents=True, exist_ok=True)
    variants = args.variants.split(",") if args.variants else ()
    backend, device = backends.resolve("cpu")
    name = f"{args.op}-{args.shape}-{device.key}"
    storage, looks = folder / f"{name}.db", folder / f"{name}.looks.jsonl"

    def session(variant: str | None) -> Session:
        request = Request(
            trials=10**6,
            timeout=args.seconds,
            searcher="exhaustive",
            early_stop=0.0,
            storage=str(storage),
            variant=variant,
        )
        return Session(registry.op(problem.op), problem, backend, device, request, lambda event: None)

    for variant in variants or (None,):  # one by one: a run explores one variant, or all
        with session(variant) as exploring:
            if not explore(exploring):
                print("not all measured yet: run it again")
                return
    with session(None) as timing:
        if not again(timing, variants, looks, args.rounds, args.seconds):
            print("not all timed again yet: run it again")
            return
    out = RESULTS / f"recorded-{name}.jsonl.gz"
    write(out, recording(problem, storage, variants, looks))
    print(f"written: {out.name}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
