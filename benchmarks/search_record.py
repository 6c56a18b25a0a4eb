"""Records the whole space of a small problem on this CPU, so that searches of it can be replayed.

    python benchmarks/search_record.py gemm 96x80x64 [--seconds 200] [--rounds 9] [--variants A,B]

Takes what `tune` would search, of all variants or some: each feasible candidate that the model does not call hopeless.
First each one once, as `tune` does, gates included; then those within 1.5 times the best are looked at again, in rounds
that go through all of them, so that a slow spell of the machine falls on all alike. The median of a look is one sample;
the time of a candidate is the median over rounds. The study lies in the data folder and a run ends after `--seconds`,
so a recording can be made in pieces: run the command until it says that the recording is written.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
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

NEAR = 1.5  # times the best: candidates that are timed again
CHUNK = 64  # candidates whose kernels are loaded at once


def explore(session: Session, variants: Sequence[str]) -> bool:
    """Measure what the study lacks of these variants; False when time ran out first."""
    if _lacks(session, variants):
        session.explore()
    print(f"{len(session.search.finished())} candidates, {session.search.counts}", file=sys.stderr)
    return not _lacks(session, variants)


def _lacks(session: Session, variants: Sequence[str]) -> bool:
    done = {Candidate.of(p.variant, p.config) for p in session.search.finished()}
    spaces = session.search.searched
    return any(Candidate.of(name, config) not in done and session.prospects.unwanted(name, config) is None
               for name in variants or spaces for config in spaces[name].iterate())  # fmt: skip


def again(session: Session, variants: Sequence[str], looks: Path, rounds: int, seconds: float) -> bool:
    """Time the fast ones again, a line for each round in `looks`; False when time ran out first."""
    done = looks.read_text().splitlines() if looks.exists() else []
    timed = [(p.seconds, Candidate.of(p.variant, p.config)) for p in session.search.finished()
             if p.seconds is not None and (not variants or p.variant in variants)]  # fmt: skip
    best_s = min(seconds for seconds, _ in timed)
    near = [candidate for seconds, candidate in timed if seconds <= NEAR * best_s]
    print(f"{len(near)} within {NEAR} times the best, {len(done)} rounds done", file=sys.stderr)
    for number in range(len(done), rounds):
        if session.elapsed_s > seconds:
            return False
        order = random.Random(number).sample(near, len(near))
        told = [[c.variant, dict(c.config), s] for c, s in _timed(session, order)]
        with looks.open("a") as file:
            file.write(json.dumps(told) + "\n")
    return True


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
    samples: dict[Candidate, list[float]] = {}
    for line in looks.read_text().splitlines():
        for variant, config, seconds in json.loads(line):
            samples.setdefault(Candidate.of(variant, config), []).append(float(f"{seconds:.4g}"))
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
    storage, looks = folder / f"{args.op}-{args.shape}.db", folder / f"{args.op}-{args.shape}.looks.jsonl"
    variants = args.variants.split(",") if args.variants else ()
    backend, device = backends.resolve("cpu")
    request = Request(trials=10**6, timeout=args.seconds, searcher="exhaustive", early_stop=0.0, storage=str(storage))
    with Session(registry.op(problem.op), problem, backend, device, request, lambda event: None) as session:
        if not explore(session, variants):
            print("not all measured yet: run it again")
            return
        if not again(session, variants, looks, args.rounds, args.seconds):
            print("not all timed again yet: run it again")
            return
    out = RESULTS / f"recorded-{args.op}-{args.shape}.jsonl.gz"
    write(out, recording(problem, storage, variants, looks))
    print(f"written: {out.name}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
