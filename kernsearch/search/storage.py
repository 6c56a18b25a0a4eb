"""Optuna's relational storage with a few statements for a trial, where it takes several for each parameter of it.

The tables and what is in them are Optuna's own. Statements are SQLAlchemy's core, without its objects, which take most
of the time that writing or reading a trial takes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Connection, Table, bindparam, func, insert, or_, select, update

_STUDIES: Any = models.StudyModel.__table__
_TRIALS: Any = models.TrialModel.__table__
_PARAMS: Any = models.TrialParamModel.__table__
_ATTRS: Any = models.TrialUserAttributeModel.__table__
_SYSTEM: Any = models.TrialSystemAttributeModel.__table__
_PAGES: Any = models.StudySystemAttributeModel.__table__
_VALUES: Any = models.TrialValueModel.__table__
_STEPS: Any = models.TrialIntermediateValueModel.__table__

# Statements are made once: SQLAlchemy looks up what it compiled by a key that takes longer to make than to run them.
_IN_STUDY = _TRIALS.c.study_id == bindparam("of_study")
_THIS = _TRIALS.c.trial_id == bindparam("of_trial")
_HOLD = select(_STUDIES.c.study_id).where(_STUDIES.c.study_id == bindparam("of_study")).with_for_update()
_COUNT = select(func.count()).select_from(_TRIALS).where(_IN_STUDY)
_EARLIER = _COUNT.where(_TRIALS.c.trial_id < bindparam("of_trial"))
_NUMBER = update(_TRIALS).where(_THIS).values(number=bindparam("told"))
_FINISH = (
    update(_TRIALS)
    .where(_THIS & _TRIALS.c.state.in_([TrialState.RUNNING, TrialState.WAITING]))
    .values(state=bindparam("to"), datetime_complete=bindparam("now"))
)
_KEYS = select(_ATTRS.c.key).where(_ATTRS.c.trial_id == bindparam("of_trial"))
_INSERT = {table: insert(table) for table in (_TRIALS, _PARAMS, _ATTRS, _SYSTEM, _PAGES, _VALUES)}


class Storage(optuna.storages.RDBStorage):
    """As its base, but quicker to write a whole trial, to finish one and to read all of a study."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._texts: dict[str, str] = {}  # of distributions, by parameter
        self._distributions: dict[str, BaseDistribution] = {}  # by their text: all trials of a study share theirs

    def add(self, study_id: int, trial: FrozenTrial) -> tuple[int, int]:
        """Write a trial in one transaction; its id and number."""
        with self.engine.begin() as connection:
            # Numbers are counted, so whoever writes a trial holds the study until it has its number.
            connection.execute(_HOLD, {"of_study": study_id})
            told = {"study_id": study_id, "state": trial.state, "datetime_start": _utc(trial.datetime_start),
                    "datetime_complete": _utc(trial.datetime_complete)}  # fmt: skip
            written = connection.execute(_INSERT[_TRIALS], told).inserted_primary_key
            assert written is not None  # for type checkers: it is of one row
            id = int(written[0])
            of = {"trial_id": id}
            parameters = []
            for name, value in trial.params.items():
                choices = trial.distributions[name]
                if name not in self._texts:
                    self._texts[name] = distribution_to_json(choices)
                kept = {"param_value": choices.to_internal_repr(value), "distribution_json": self._texts[name]}
                parameters.append({**of, "param_name": name, **kept})
            _insert(connection, _PARAMS, parameters)
            _insert(connection, _ATTRS, _rows(of, trial.user_attrs))
            _insert(connection, _SYSTEM, _rows(of, trial.system_attrs))
            _insert(connection, _VALUES, _values(of, trial.values))
            number = connection.execute(_EARLIER, {"of_study": study_id, "of_trial": id}).scalar_one()
            connection.execute(_NUMBER, {"of_trial": id, "told": number})
        return id, number

    def count(self, study_id: int) -> int:
        """How many trials a study has."""
        with self.engine.connect() as connection:
            return int(connection.execute(_COUNT, {"of_study": study_id}).scalar_one())

    def finish(
        self, trial_id: int, state: TrialState, attrs: Mapping[str, Any], values: Sequence[float] | None
    ) -> None:
        """Attributes, values and state of a running trial in one transaction. Raises UpdateFinishedTrialError."""
        with self.engine.begin() as connection:
            # The state comes first: whoever changes it holds the trial, and it is changed from "running" once only.
            done = connection.execute(_FINISH, {"of_trial": trial_id, "to": state, "now": _utc(datetime.now())})
            if done.rowcount == 0:
                raise optuna.exceptions.UpdateFinishedTrialError(f"trial {trial_id} is finished or unknown")
            known = set(connection.execute(_KEYS, {"of_trial": trial_id}).scalars())
            for key in attrs.keys() & known:
                this = (_ATTRS.c.trial_id == trial_id) & (_ATTRS.c.key == key)
                connection.execute(update(_ATTRS).where(this).values(value_json=json.dumps(attrs[key])))
            of = {"trial_id": trial_id}
            _insert(connection, _ATTRS, _rows(of, {key: value for key, value in attrs.items() if key not in known}))
            _insert(connection, _VALUES, _values(of, values))

    def annotate(self, study_id: int, attrs: Mapping[str, Any]) -> None:
        """System attributes of a study in one transaction, new ones and others."""
        if not attrs:
            return
        of = {"study_id": study_id}
        with self.engine.begin() as connection:
            # Whoever writes pages holds the study: two processes never add the same attribute.
            connection.execute(update(_STUDIES).where(_STUDIES.c.study_id == study_id).values(study_id=study_id))
            known = set(connection.execute(select(_PAGES.c.key).where(_PAGES.c.study_id == study_id)).scalars())
            for key in attrs.keys() & known:
                this = (_PAGES.c.study_id == study_id) & (_PAGES.c.key == key)
                connection.execute(update(_PAGES).where(this).values(value_json=json.dumps(attrs[key])))
            _insert(connection, _PAGES, _rows(of, {key: value for key, value in attrs.items() if key not in known}))

    def _get_trials(self, study_id: int, states: Container[TrialState] | None, included_trial_ids: set[int],
                    trial_id_greater_than: int) -> list[FrozenTrial]:  # fmt: skip
        """What Optuna's cache reads through: trials of a study by id, those after an id and the given ones before it.
        Raises KeyError for a study that there is not."""
        late = _TRIALS.c.trial_id > trial_id_greater_than
        earlier = sorted(id for id in included_trial_ids if id <= trial_id_greater_than)
        chosen = (_TRIALS.c.study_id == study_id) & (or_(late, _TRIALS.c.trial_id.in_(earlier)) if earlier else late)
        with self.engine.connect() as connection:
            if connection.execute(select(_STUDIES.c.study_id).where(_STUDIES.c.study_id == study_id)).first() is None:
                raise KeyError(f"no study has the id {study_id}")
            found = connection.execute(select(_TRIALS).where(chosen).order_by(_TRIALS.c.trial_id)).all()
            if not found:
                return []
            parts = [_parts(connection, table, chosen) for table in (_PARAMS, _ATTRS, _SYSTEM, _VALUES, _STEPS)]
        wanted = [row for row in found if states is None or row.state in states]
        return [self._built(row, *(part[row.trial_id] for part in parts)) for row in wanted]

    def _built(self, row: Any, params: Sequence[Any], attrs: Sequence[Any], system: Sequence[Any],
               values: Sequence[Any], steps: Sequence[Any]) -> FrozenTrial:  # fmt: skip
        choices = {p.param_name: self._distribution(p.distribution_json) for p in params}
        reported = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value
        return FrozenTrial(
            number=row.number,
            state=row.state,
            value=None,
            values=[
                models.TrialValueModel.stored_repr_to_value(v.value, v.value_type)
                for v in sorted(values, key=lambda v: v.objective)
            ]
            or None,
            datetime_start=_local(row.datetime_start),
            datetime_complete=_local(row.datetime_complete),
            params={p.param_name: choices[p.param_name].to_external_repr(p.param_value) for p in params},
            distributions=choices,
            user_attrs={a.key: json.loads(a.value_json) for a in attrs},
            system_attrs={a.key: json.loads(a.value_json) for a in system},
            intermediate_values={s.step: reported(s.intermediate_value, s.intermediate_value_type) for s in steps},
            trial_id=row.trial_id,
        )

    def _distribution(self, text: str) -> BaseDistribution:
        if text not in self._distributions:
            self._distributions[text] = json_to_distribution(text)
        return self._distributions[text]


def _parts(connection: Connection, table: Table, chosen: Any) -> Mapping[int, list[Any]]:
    """Rows of a table that belong to the chosen trials, by trial: attributes by name, others as they were written."""
    (written,) = table.primary_key.columns
    key = table.c.get("key", written)
    asked = select(table).join(_TRIALS, _TRIALS.c.trial_id == table.c.trial_id).where(chosen).order_by(key)
    found: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(asked).all():
        found[row.trial_id].append(row)
    return found


def _utc(moment: datetime | None) -> datetime | None:
    """Local time as the tables hold it."""
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None)


def _local(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_INSERT[table], rows)


def _rows(of: Mapping[str, Any], attrs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**of, "key": key, "value_json": json.dumps(value)} for key, value in attrs.items()]


def _values(of: Mapping[str, Any], values: Sequence[float] | None) -> list[dict[str, Any]]:
    found = []
    for objective, value in enumerate(values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        found.append({**of, "objective": objective, "value": stored, "value_type": kind})
    return found
