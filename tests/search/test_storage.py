"""Our reading and writing of whole trials against Optuna's own, which makes the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from kernsearch.search.storage import Storage

NOBODY = 99
UNORDERED = ("_user_attrs", "_system_attrs", "intermediate_values")
PARAMS = {"variant": CategoricalDistribution(["b", "a"]), "BM": CategoricalDistribution([1, 2, 4])}


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the process believes to be."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def trial(state: TrialState, **more: Any) -> FrozenTrial:
    params = {"variant": "a", "BM": 4}
    return create_trial(state=state, params=params, distributions=PARAMS, **more)


def whole(trials: list[FrozenTrial]) -> list[dict[str, Any]]:
    """All that a trial holds; parameters in their order, which has a meaning."""
    return [vars(t) | {name: sorted(vars(t)[name].items()) for name in UNORDERED} for t in trials]


def test_trials_are_read_as_optuna_reads_them(url: str, zone: None) -> None:
    """Of every state, and of a study that somebody else made: reports, several values, infinities, other parameters."""
    ours = Storage(url)
    mine = optuna.create_study(storage=ours, study_name="mine")
    attrs = {"z": 1.5, "a": "text", "yes": True}
    ours.add(mine._study_id, trial(TrialState.COMPLETE, value=1e-3, user_attrs=attrs, system_attrs={"lease": "x"}))
    ours.add(mine._study_id, trial(TrialState.PRUNED))
    ours.add(mine._study_id, trial(TrialState.RUNNING))
    theirs = optuna.create_study(storage=url, study_name="theirs", directions=["minimize", "maximize"])
    other = {"x": FloatDistribution(1e-3, 1.0, log=True), "n": IntDistribution(1, 9, step=2)}
    steps = {3: float("nan"), 1: 2.0, 2: float("inf")}
    theirs.add_trial(
        create_trial(
            values=[float("-inf"), 2.0], params={"x": 0.5, "n": 3}, distributions=other, intermediate_values=steps
        )
    )
    theirs.enqueue_trial({"x": 0.1})
    for study in (mine, theirs):
        (want, got) = (RDBStorage(url).get_all_trials(study._study_id), ours.get_all_trials(study._study_id))
        assert len(got) > 1 and repr(whole(got)) == repr(whole(want))  # by text, since nan is not nan


@pytest.mark.parametrize("after", [-1, 1, 3, 9])
@pytest.mark.parametrize("before", [set(), {1}, {1, 2}, {3, 9}])
@pytest.mark.parametrize("states", [None, (TrialState.PRUNED, TrialState.RUNNING)])
def test_what_a_cache_asks_for_is_what_it_gets(url: str, after: int, before: set[int], states: Any) -> None:
    ours = Storage(url)
    ours_id = optuna.create_study(storage=ours)._study_id
    other_id = optuna.create_study(storage=url)._study_id
    for id in (ours_id, other_id):
        for state in (TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL, TrialState.PRUNED):
            ours.add(id, trial(state))
    for id in (ours_id, other_id):
        want = RDBStorage(url)._get_trials(id, states, set(before), after)
        assert [t._trial_id for t in ours._get_trials(id, states, set(before), after)] == [t._trial_id for t in want]


def test_a_study_that_there_is_not_is_a_key_error(url: str) -> None:
    with pytest.raises(KeyError):
        Storage(url).get_all_trials(NOBODY)


def test_moments_are_those_of_the_clock_wherever_it_is(url: str, zone: None) -> None:
    """Optuna's tables hold UTC; a trial that looks hours old would be taken from who works on it."""
    ours, before = Storage(url), datetime.now()
    study = optuna.create_study(storage=ours)._study_id
    started = trial(TrialState.RUNNING)
    started.datetime_start, started.datetime_complete = before, None
    id, _ = ours.add(study, started)
    ours.finish(id, TrialState.COMPLETE, {}, [1.0])
    (read,) = RDBStorage(url).get_all_trials(study)
    assert read.datetime_start == before and read.datetime_complete is not None
    assert timedelta() <= read.datetime_complete - before < timedelta(minutes=30)
