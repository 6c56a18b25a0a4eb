"""When a run ends before its trials and its time are used up."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernsearch import backends, registry
from kernsearch.candidate import Candidate
from kernsearch.device import Device
from kernsearch.feasible import FeasibleSpace
from kernsearch.search import Search
from kernsearch.space import Param
from kernsearch.tune import Event, Request
from kernsearch.tune.session import NEAR_FLOOR, Session

VALUES = (1, 2, 4, 8, 16, 32, 64)
SPACE = {"only": FeasibleSpace([Param(x, VALUES, x) for x in "ABC"], (), Device("cpu", 0, "a", "a", "a"), {})}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    return tmp_path


def trials_until_settled(gain: float, slope: float, searcher: str = "expected", most: int = 80) -> int:
    """How many trials a search takes to say that it is settled, when each step away from 1 costs `slope`."""
    with Search("toy", SPACE, searcher=searcher, trials=most, seed=1) as search:
        done = 0
        while not search.settled(gain) and (ask := search.ask()) is not None:
            steps = sum(value.bit_length() - 1 for value in ask.config.values())
            search.tell_measured(ask, 1e-3 * (1 + slope * steps))
            done += 1
        return done


def session(home: Path, listener=lambda event: None, **how: object) -> Session:
    backend, device = backends.resolve("cpu")
    problem = registry.problem("gemm", (44, 36, 52), None, backend="cpu")
    return Session(registry.op("gemm"), problem, backend, device, Request(**how), listener)  # type: ignore[arg-type]


def test_a_search_settles_when_ten_choices_in_a_row_promise_little() -> None:
    startup, choices = 9, 10
    found = trials_until_settled(gain=0.02, slope=0.2)
    assert startup + choices <= found < 80


@pytest.mark.parametrize(("gain", "mixed"), [(0.02, True), (0.9, False)])
def test_settled_is_that_each_of_the_last_ten_choices_promised_less_than_the_gain(gain: float, mixed: bool) -> None:
    promised: list[float] = []
    verdicts = set()
    with Search("toy", SPACE, searcher="expected", trials=70, seed=1) as search:
        while (ask := search.ask()) is not None:
            if ask.origin == "expected":  # steps of a climb and random candidates promise nothing in numbers
                promised.append(search._searcher.outlook)
            told = len(promised) >= 10 and all(share < gain for share in promised[-10:])
            assert search.settled(gain) is told
            verdicts.add(told)
            steps = sum(value.bit_length() - 1 for value in ask.config.values())
            search.tell_measured(ask, 1e-3 * (1 + 0.2 * steps))
    tens = [promised[i : i + 10] for i in range(len(promised) - 10)]
    assert verdicts == {True, False} and any(min(ten) < gain <= max(ten) for ten in tens) is mixed


def test_it_takes_longer_when_less_is_worth_it() -> None:
    assert trials_until_settled(gain=0.1, slope=0.2) <= trials_until_settled(gain=0.001, slope=0.2)


def test_nothing_settles_at_a_gain_of_nothing() -> None:
    assert trials_until_settled(gain=0.0, slope=0.2, most=50) == 50


@pytest.mark.parametrize("searcher", ["random", "genetic", "local", "tpe"])
def test_searchers_that_expect_nothing_never_settle(searcher: str) -> None:
    assert trials_until_settled(gain=0.9, slope=0.2, searcher=searcher, most=40) == 40


def test_a_run_is_settled_near_the_least_time_that_the_device_allows(home: Path) -> None:
    with session(home) as here, session(home, early_stop=0.0, storage=str(home / "other.db")) as never:
        candidate = Candidate.of("unpacked", {})
        for there, told in ((here, True), (never, False)):
            there.best = (1.001 * NEAR_FLOOR * there.prospects.floor_s, candidate)
            assert not there.settled
            there.best = (0.999 * NEAR_FLOOR * there.prospects.floor_s, candidate)
            assert there.settled is told


def test_a_run_that_expects_little_ends_and_says_so(home: Path) -> None:
    heard: list[Event] = []
    part = {"variant": "unpacked", "fix": {"KC": 128, "KU": 1}}
    with session(home, heard.append, early_stop=0.99, trials=500, timeout=280.0, **part) as here:
        here.explore()
        measured = here.search.counts.measured
        assert here.search.left > 0 and here.search.ask() is not None
    assert any(f"ended early after {measured} measurements" in event.text for event in heard)
