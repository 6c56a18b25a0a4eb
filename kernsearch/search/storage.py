"""Optuna's relational storage with a few statements for a trial, where it takes several for each parameter of it.

The tables and what is in them are Optuna's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState


class Storage(optuna.storages.RDBStorage):
    """As its base, but quicker to write a whole trial and to finish one."""

    def _get_prepared_new_trial(self, study_id: int, template_trial: FrozenTrial | None, session: Any) -> Any:
        if template_trial is None:
            return super()._get_prepared_new_trial(study_id, template_trial, session)
        trial = models.TrialModel(
            study_id=study_id,
            number=None,
            state=template_trial.state,
            datetime_start=template_trial.datetime_start,
            datetime_complete=template_trial.datetime_complete,
        )
        session.add(trial)
        session.flush()  # now it has its id
        of: dict[str, Any] = {"trial_id": trial.trial_id}
        parameters = []
        for name, value in template_trial.params.items():
            choices = template_trial.distributions[name]
            told = {"param_value": choices.to_internal_repr(value), "distribution_json": distribution_to_json(choices)}
            parameters.append({**of, "param_name": name, **told})
        _insert(session, models.TrialParamModel, parameters)
        _insert(session, models.TrialUserAttributeModel, _rows(of, template_trial.user_attrs))
        _insert(session, models.TrialSystemAttributeModel, _rows(of, template_trial.system_attrs))
        _insert(session, models.TrialValueModel, _values(of, template_trial.values))
        trial.number = trial.count_past_trials(session)
        return trial

    def finish(
        self, trial_id: int, state: TrialState, attrs: Mapping[str, Any], values: Sequence[float] | None
    ) -> None:
        """Attributes, values and state of a running trial in one transaction. Raises UpdateFinishedTrialError."""
        model = models.TrialUserAttributeModel
        with _create_scoped_session(self.scoped_session) as session:
            trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            self.check_trial_is_updatable(trial_id, trial.state)
            of = {"trial_id": trial_id}
            known = {key for (key,) in session.query(model.key).filter(model.trial_id == trial_id)}
            for key in attrs.keys() & known:
                self._set_trial_attr_without_commit(session, model, trial_id, key, attrs[key])
            _insert(session, model, _rows(of, {key: value for key, value in attrs.items() if key not in known}))
            _insert(session, models.TrialValueModel, _values(of, values))
            trial.state = state
            trial.datetime_complete = datetime.now()


def _insert(session: Any, model: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        session.bulk_insert_mappings(model, rows)


def _rows(of: Mapping[str, Any], attrs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**of, "key": key, "value_json": json.dumps(value)} for key, value in attrs.items()]


def _values(of: Mapping[str, Any], values: Sequence[float] | None) -> list[dict[str, Any]]:
    found = []
    for objective, value in enumerate(values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        found.append({**of, "objective": objective, "value": stored, "value_type": kind})
    return found
