"""How fast searches came near the best: time from a study's first trial until one within a share of it was measured.

    python benchmarks/convergence.py studies.db [--within 0.03] [--best US] [--name PART] [--trace] [--json]

--best   microseconds that count as the best; default: of each study, its own
--name   studies whose name holds this
--trace  each trial that was faster than all before it, too
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import optuna


def trace(study: optuna.Study) -> Iterator[tuple[float, int, float]]:
    """(seconds since the first trial began, finished trials so far, seconds measured) of each measured trial, in the
    order in which they were done. Time between runs of a resumed study counts as well."""
    done = [t for t in study.get_trials(deepcopy=False) if t.datetime_start and t.datetime_complete]
    started = min((t.datetime_start for t in done if t.datetime_start), default=None)
    done.sort(key=lambda t: (t.datetime_complete, t.number))
    tried = 0
    for trial in done:
        tried += trial.user_attrs.get("gate") != "space" and trial.user_attrs.get("status") != "duplicate"
        if trial.values and started is not None and trial.datetime_complete is not None:
            yield (trial.datetime_complete - started).total_seconds(), tried, trial.values[0]


def summary(study: optuna.Study, within: float, best_s: float | None) -> dict[str, Any]:
    """The best of a study, and when a trial within `within` of `best_s`, or of its own best, was measured: seconds and
    trials, None when none was."""
    found = list(trace(study))
    own = min((seconds for _, _, seconds in found), default=None)
    goal = best_s or own
    near = next(((at, tried) for at, tried, seconds in found if goal and seconds <= goal * (1 + within)), (None, None))
    steps, fastest = [], float("inf")
    for at, tried, seconds in found:
        if seconds < fastest:
            fastest = seconds
            steps.append([round(at, 3), tried, seconds])
    return {"study": study.study_name, "best_s": own, "goal_s": goal, "near_s": near[0], "near_trials": near[1],
            "measured": len(found), "last_s": found[-1][0] if found else None, "trace": steps}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("storage", help="the path of an SQLite file, or an Optuna URL")
    parser.add_argument("--within", type=float, default=0.03)
    parser.add_argument("--best", type=float, help="microseconds")
    parser.add_argument("--name", default="")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    url = args.storage if "://" in args.storage else f"sqlite:///{args.storage}"
    storage = optuna.storages.RDBStorage(url)
    for name in sorted(n for n in optuna.get_all_study_names(storage) if args.name in n):
        study = optuna.load_study(study_name=name, storage=storage)
        told = summary(study, args.within, args.best * 1e-6 if args.best else None)
        if args.json:
            print(json.dumps(told))
        elif told["measured"]:
            reached = (
                "not reached" if told["near_s"] is None else f"{told['near_s']:.1f} s, {told['near_trials']} trials"
            )
            print(f"{name}: best {told['best_s'] * 1e6:.2f} us; within {args.within:.0%}: {reached}; "
                  f"{told['measured']} measured in {told['last_s']:.1f} s")  # fmt: skip
            for at, tried, seconds in told["trace"] if args.trace else ():
                print(f"  {at:8.1f} s  trial {tried:4}  {seconds * 1e6:.2f} us")


if __name__ == "__main__":
    main()
