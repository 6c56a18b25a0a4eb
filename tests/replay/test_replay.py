"""Replayed searches: what they count, what they never do, and what random search comes to."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from made import TINY, kernel_tuner

from kernsearch.replay import Budget, Entry, Recording, read, replay
from kernsearch.replay.result import best_of, hit, quantile, result, uniform
from kernsearch.replay.run import looked
from kernsearch.search import SEARCHERS
from kernsearch.search.pool import Candidate


@pytest.fixture(scope="module")
def ridge(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Some 600 points of four letters with a narrow ridge, steps, failures and holes; one is the best."""
    rng = random.Random(7)
    values = (1, 2, 4, 8, 16, 32)
    times = {}
    for a, b, c, d in itertools.product(values, values, values, (0, 1, 2)):
        if a * b > 128 or rng.random() < 0.1:
            continue
        far = abs(math.log2(a * b) - 6) + abs(math.log2(c / a)) + (2 if d == 1 else 0.3 * d)
        times[a, b, c, d] = "CompilationFailedConfig" if c * b > 600 else 1.0 + 0.4 * far + 0.05 * rng.random()
    path = tmp_path_factory.mktemp("ridge") / "ridge.json"
    path.write_text(json.dumps(kernel_tuner(times, ("A", "B", "C", "D"))))
    return read(path)


def asked(recording: Recording, searcher: str, count: int, seed: int = 3) -> list[Candidate]:
    (run,) = replay(recording, searcher, Budget(count), [seed])
    return [step.candidate for step in run.steps]


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_nothing_infeasible_and_nothing_twice_is_evaluated(ridge: Recording, searcher: str) -> None:
    (run,) = replay(ridge, searcher, Budget(60), [1])
    assert run.infeasible == run.duplicates == 0
    seen = [step.candidate for step in run.steps]
    assert len(set(seen)) == len(seen) == 60 and set(seen) <= set(ridge.entries)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_the_same_seed_makes_the_same_trials_whatever_the_budget(ridge: Recording, searcher: str) -> None:
    long = asked(ridge, searcher, 45)
    assert asked(ridge, searcher, 45) == long
    assert asked(ridge, searcher, 20) == long[:20]
    if searcher != "exhaustive":
        assert asked(ridge, searcher, 20, seed=4) != long[:20]


ELSEWHERE = """
import sys
from kernsearch.replay import Budget, read, replay
for name in sys.argv[2:]:
    print(*(step.candidate for run in replay(read(sys.argv[1]), name, Budget(30), [3]) for step in run.steps))
"""


def test_another_process_makes_the_same_trials(ridge: Recording) -> None:
    """Whatever the order in which it keeps its sets."""
    told = {subprocess.run([sys.executable, "-c", ELSEWHERE, ridge.name, *SEARCHERS], check=True, capture_output=True,
                           text=True, env={**os.environ, "PYTHONHASHSEED": salt}).stdout for salt in "12"}  # fmt: skip
    assert len(told) == 1 and told.pop().count("\n") == len(SEARCHERS)


def test_a_small_space_is_searched_to_its_end(tiny: Path) -> None:
    recording = read(tiny)
    (run,) = replay(recording, "expected", Budget(50), [0])
    assert len(run.steps) == 6 and run.steps[-1].fraction == 1.0
    told = result(recording, "expected", [run], 50, 50).to_json()
    assert told["fraction"] == {"median": 1.0, "p10": 1.0, "p90": 1.0}


def test_expected_improvement_is_ahead_of_random_search(ridge: Recording) -> None:
    found = result(ridge, "expected", replay(ridge, "expected", Budget(40), range(5)), 40, 40)
    chance = uniform(ridge, 40, 40)
    assert found.fraction["p10"] > 0.95 > chance.fraction["median"] + 0.1


def test_seconds_are_what_was_recorded_and_the_search(tiny: Path) -> None:
    (run,) = replay(read(tiny), "exhaustive", Budget(6), [0])
    recorded = 6 * (0.1 + 0.02 + 0.03)
    assert run.steps[-1].seconds <= recorded + run.search_s + 1e-9
    assert run.steps[-1].seconds > 6 * 0.12
    (short,) = replay(read(tiny), "exhaustive", Budget(seconds=0.2), [0])
    assert 0 < len(short.steps) < 6


def test_a_hopeless_candidate_takes_fewer_of_its_samples() -> None:
    entry = Entry(0.09, (0.09, 0.1, 0.08, 0.09))
    assert looked(entry, None) == (pytest.approx(0.09), 0.75)
    assert looked(entry, 0.02) == (pytest.approx(0.09), 0.25)
    assert looked(Entry(0.09), 0.02) == (0.09, 1.0)


def test_what_the_restrictions_allow_and_nobody_recorded_counts_as_refused(tmp_path: Path) -> None:
    from kernsearch.replay import restrictions

    path, rules = tmp_path / "holes.json", tmp_path / "rules.txt"
    path.write_text(json.dumps(kernel_tuner({k: t for k, t in TINY.items() if k != (1, 2)})))
    rules.write_text("BM <= 2")
    (run,) = replay(read(path, restrictions(rules)), "expected", Budget(10), [0])
    assert len(run.steps) == 4 and run.infeasible == 0 and run.steps[-1].fraction == 1.0


def test_an_early_end_is_one_that_promises_nothing(ridge: Recording) -> None:
    (whole,) = replay(ridge, "expected", Budget(150), [2])
    (early,) = replay(ridge, "expected", Budget(150), [2], early_stop=0.01)
    assert len(early.steps) < 150
    assert [s.candidate for s in early.steps] == [s.candidate for s in whole.steps[: len(early.steps)]]
    assert early.steps[-1].fraction > 0.97


def test_a_near_recording_leads_to_the_best_sooner(ridge: Recording, tmp_path: Path) -> None:
    slower = {tuple(c.config.values()): 3e3 * e.seconds if e.seconds else "RuntimeFailedConfig"
              for c, e in ridge.entries.items()}  # fmt: skip
    path = tmp_path / "near.json"
    path.write_text(json.dumps(kernel_tuner(slower, ("A", "B", "C", "D"))))
    (warm,) = replay(ridge, "expected", Budget(10), [0], sources=[read(path).source()])
    assert max(s.fraction for s in warm.steps[:4]) == 1.0


def every_choice(fractions: Iterable[float], drawn: int) -> list[float]:
    return sorted(max(chosen) for chosen in itertools.combinations(fractions, drawn))


@pytest.mark.parametrize("drawn", [1, 2, 3, 5, 7])
def test_random_search_in_closed_form_is_what_counting_gives(drawn: int) -> None:
    fractions = [1.0, 0.9, 0.9, 0.7, 0.5, 0.2, 0.0]
    best = every_choice(fractions, drawn)
    for q in (0.1, 0.5, 0.9):
        at_least = best[max(0, math.ceil(q * len(best) - 1e-9) - 1)]
        assert best_of(fractions, drawn, q) == pytest.approx(at_least)
    assert hit(7, 3, drawn) == pytest.approx(sum(b >= 0.9 for b in best) / len(best))


def test_quantiles_are_linear_between_order_statistics() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.1) == pytest.approx(0.1)


def test_goals_that_half_of_the_runs_missed_have_no_median(ridge: Recording) -> None:
    told = result(ridge, "random", replay(ridge, "random", Budget(2), range(4)), 2, 2).to_json()
    assert told["to_99"] == {"evaluations": None, "seconds": None}
    assert set(told) == {"file", "searcher", "budget", "seeds", "fraction", "to_95", "to_99", "infeasible_asks",
                         "duplicate_evaluations"}  # fmt: skip
