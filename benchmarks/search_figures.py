"""Figures of the search itself, replayed on recorded spaces. No idle machine is needed: recorded time is counted, and
of the search processor time.

    python benchmarks/search_figures.py recorded FILE... [--restrict FILE] [--seeds 100] [--searchers expected,tpe]
    python benchmarks/search_figures.py table
    python benchmarks/search_figures.py seeded FILE [--seeds 50]
    python benchmarks/search_figures.py transfer [--seeds 10]
    python benchmarks/search_figures.py cost

recorded   searchers side by side: fraction of the best after 50 and 100 evaluations and random search in closed form,
           a file for each recording in results/replay; rows of searchers that are not run again are kept
table      what `recorded` has found so far, in Markdown
seeded     evaluations to within 3 % of the best of one of our own recordings, with our model's seeds and without
transfer   the same on kernels that an H200 has timed, with what near shapes teach and without
cost       processor time of the search for each of 500 trials

`search_record.py` makes recordings of our own.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from common import RESULTS, keep, machine
from search_cost import cost

from kernsearch.replay import Budget, Entry, Recording, read, replay, restrictions
from kernsearch.replay.result import BASELINE, quantile, result, uniform
from kernsearch.replay.run import Run, evaluations
from kernsearch.search.pool import candidate

WITHIN = 1 / 1.03
BUDGETS = (50, 100)
LONGEST = 100
SEARCHERS = "expected,tpe,genetic,local"
KERNELS = RESULTS / "h200" / "kernels.json.gz"


@cache
def _read(file: str, restrict: str | None) -> Recording:
    return read(file, restrictions(restrict) if restrict else ())


def _one(file: str, restrict: str | None, searcher: str, count: int, seed: int, warm: bool) -> Run:
    (run,) = replay(_read(file, restrict), searcher, Budget(count), [seed], warm=warm)
    return run


def searches(file: str, restrict: str | None, searcher: str, count: int, seeds: int, warm: bool = False) -> list[Run]:
    """A search for each seed, as many at once as there are processors."""
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        jobs = [workers.submit(_one, file, restrict, searcher, count, seed, warm) for seed in range(seeds)]
        return [job.result() for job in jobs]


def recorded(files: Sequence[str], restrict: str | None, seeds: int, searchers: Sequence[str]) -> None:
    for file in files:
        recording = _read(file, restrict)
        for searcher in searchers:
            runs = searches(file, restrict, searcher, max(BUDGETS), seeds)
            _keep(recording, searcher, [result(recording, searcher, runs, n, n).to_json() for n in BUDGETS])
        _keep(recording, BASELINE, [uniform(recording, n, n).to_json() for n in BUDGETS])


def _keep(recording: Recording, searcher: str, fresh: Sequence[dict[str, Any]]) -> None:
    """Put the rows of a searcher in place of those that are there."""
    name = Path(recording.name).name
    out = RESULTS / "replay" / (name.partition(".")[0].removeprefix("recorded-") + ".json")
    rows, here = json.loads(out.read_text())["results"] if out.exists() else [], machine()["device"]
    rows = [row for row in rows if row["searcher"] != searcher] + [
        {**row, "file": name, "searched_on": here} for row in fresh
    ]
    told = {
        "figure": out.stem,
        "title": f"searches of {name}, {len(recording.entries)} configurations",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "command": "python benchmarks/search_figures.py recorded",
        "recorded_on": recording.device,
        "results": rows,
    }
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{name}: {searcher}", file=sys.stderr)


def table() -> None:
    for path in sorted((RESULTS / "replay").glob("*.json")):
        told = json.loads(path.read_text())
        print(f"\n{told['title']}\n")
        print("| searcher | after 50 | after 100 | evaluations to 95 % | to 99 % | seeds |")
        print("| --- | --- | --- | --- | --- | --- |")
        rows = {(row["searcher"], row["budget"]): row for row in told["results"]}
        for searcher in [name for name in (*SEARCHERS.split(","), BASELINE) if (name, BUDGETS[0]) in rows]:
            few, many = (rows[searcher, n] for n in BUDGETS)
            found = [f"{row['fraction']['median']:.3f} / {row['fraction']['p10']:.3f}" for row in (few, many)]
            needed = [many[goal]["evaluations"] for goal in ("to_95", "to_99")]
            shown = ["more than 100" if n is None else f"{n:g}" for n in needed]
            print("| " + " | ".join([searcher, *found, *shown, str(many["seeds"] or "computed")]) + " |")


def seeded(file: str, seeds: int) -> None:
    recording = _read(file, None)
    needed = {warm: spread(searches(file, None, "expected", LONGEST, seeds, warm)) for warm in (True, False)}
    few = {warm: found["median"] or math.inf for warm, found in needed.items()}
    keep(
        "seeded-" + Path(file).name.partition(".")[0].removeprefix("recorded-"),
        {
            "title": f"search of {Path(file).name}, {len(recording.entries)} configurations: evaluations to within 3 %",
            "wanted": "40 with seeds of the model, 80 without; target 15 and 40",
            "summary": f"{few[True]:g} with, {few[False]:g} without ({seeds} seeds)",
            "met": few[True] <= 40 and few[False] <= 80,
            "recorded_on": recording.device,
            "within": sum(recording.fraction(c) >= WITHIN for c in recording.entries),
            "with": needed[True],
            "without": needed[False],
        },
        os.getloadavg()[0],
    )


def transfer(seeds: int) -> None:
    """Each shape of the survey of an H200 is searched alone, and with the two nearest other shapes to learn from."""
    rows = json.loads(gzip.decompress(KERNELS.read_bytes()))["rows"]
    rows = [r for r in rows if r["kernels"] == "second" and r["dtype"] == "bfloat16"]
    shapes = sorted({tuple(r["shape"]) for r in rows})
    recordings = {shape: _surveyed(shape, [r for r in rows if tuple(r["shape"]) == shape]) for shape in shapes}
    told = []
    for shape, recording in recordings.items():
        others = sorted((other for other in shapes if other != shape), key=lambda other: _far(shape, other))
        near = [recordings[other].source() for other in others[:2]]
        cold = replay(recording, "expected", Budget(60), range(seeds))
        warm = replay(recording, "expected", Budget(60), range(seeds), sources=near)
        told.append({"shape": shape, "points": len(recording.entries), "learned_from": others[:2],
                     "cold": spread(cold), "warm": spread(warm)})  # fmt: skip
        print(told[-1], file=sys.stderr)
    ratios = [(row["warm"]["median"] or 60) / (row["cold"]["median"] or 60) for row in told]
    keep(
        "transfer",
        {
            "title": f"kernels timed on an H200, {len(told)} shapes: evaluations to within 3 % of the best, "
            "with the two nearest other shapes to learn from / without",
            "wanted": "below 1",
            "summary": f"{geometric_mean(ratios):.2f}x in the geometric mean (each {min(ratios):.2f} to "
            f"{max(ratios):.2f}), {seeds} seeds",
            "met": geometric_mean(ratios) < 1,
            "shapes": told,
        },
        os.getloadavg()[0],
    )


def spread(runs: Sequence[Run]) -> dict[str, float | None]:
    """Evaluations to within 3 %: median and percentiles over seeds; None where the budget did not do."""
    needed = [min(evaluations(run, WITHIN), 1e9) for run in runs]
    found = {"median": median(needed), "p10": quantile(needed, 0.1), "p90": quantile(needed, 0.9)}
    return {name: value if value < 1e8 else None for name, value in found.items()}


def _surveyed(shape: tuple[int, ...], rows: Sequence[dict[str, Any]]) -> Recording:
    domains: dict[str, dict[str, set[int]]] = {}
    for row in rows:
        for letter, value in row["config"].items():
            domains.setdefault(row["variant"], {}).setdefault(letter, set()).add(value)
    entries = {candidate(row["variant"], row["config"]): Entry(row["us"] * 1e-6) for row in rows}
    whole = {v: {letter: tuple(sorted(found)) for letter, found in letters.items()} for v, letters in domains.items()}
    return Recording("x".join(map(str, shape)), entries, whole)


def _far(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


def costs() -> None:
    with tempfile.TemporaryDirectory(prefix="kernsearch-cost-") as folder:
        found = cost("expected", 500, "sqlite", folder)
    keep(
        "search-cost",
        {
            "title": "processor time of the search for each of 500 trials, SQLite",
            "wanted": "at most 60 ms, target 20 ms",
            "summary": f"{found['ms']:.1f} ms ({found['ms_last']:.1f} ms each of the last hundred)",
            "met": found["ms"] <= 60,
            **found,
        },
        os.getloadavg()[0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["recorded", "table", "seeded", "transfer", "cost"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--restrict")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--searchers", default=SEARCHERS)
    args = parser.parse_args()
    if args.figure == "recorded":
        recorded(args.files, args.restrict, args.seeds or 100, args.searchers.split(","))
    elif args.figure == "table":
        table()
    elif args.figure == "seeded":
        seeded(args.files[0], args.seeds or 50)
    elif args.figure == "transfer":
        transfer(args.seeds or 10)
    else:
        costs()


if __name__ == "__main__":
    main()
