"""The durable study: Optuna's, as the search writes and reads it.

A trial is written in one transaction when it is asked for; when it is told its state is written last, so that what is
finished is whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from ..errors import StorageError
from .notes import Page, attributes, keep
from .opening import artifacts_of, file_of, guarded, opened, quiet
from .storage import Storage

State = Literal["running", "measured", "refused", "failed"]
Attr = str | int | float | bool

VARIANT = "variant"
_LEASE = "kernsearch:lease"
_LONGEST = 1000  # characters of an attribute; the dashboard cuts a little later
_STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "measured",
    TrialState.PRUNED: "refused",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Trial:
    """One trial as the study holds it."""

    id: int
    number: int
    state: State
    variant: str
    config: dict[str, int]
    seconds: float | None
    attrs: dict[str, Any]
    start: datetime | None
    lease: object  # who works on it: what `add` and `renew` were given


def _trial(t: optuna.trial.FrozenTrial) -> Trial:
    config = {name: value for name, value in t.params.items() if name != VARIANT}
    return Trial(
        t._trial_id, t.number, _STATES[t.state], t.params[VARIANT], config, t.values[0] if t.values else None,
        t.user_attrs, t.datetime_start, t.system_attrs.get(_LEASE),
    )  # fmt: skip


class Studies:
    """The studies of a storage, to look at. Raises StorageError for a storage that cannot be read.

    storage  Optuna's own object for it, which reads a trial that has ended once only and writes to no file
    """

    def __init__(self, url: str):
        self.url = url
        file = file_of(url)
        if file is not None and not file.is_file():
            raise StorageError(f"storage {url!r}: want an SQLite file, a journal ending in .log, or an Optuna URL")
        with guarded(url, ValueError, RuntimeError, KeyError), quiet():
            self._storage = self.storage = optuna.storages.get_storage(opened(url, to_write=False))
            found = optuna.get_all_study_names(self._storage)
        self.names: list[str] = sorted(found)

    def trials(self, name: str) -> list[Trial]:
        """All trials of a study, by number."""
        with guarded(self.url, KeyError):
            id = self._storage.get_study_id_from_name(name)
            frozen = self._storage.get_all_trials(id, deepcopy=False)
        return [_trial(t) for t in frozen if t.state in _STATES and VARIANT in t.params]

    def attrs(self, name: str) -> dict[str, Any]:
        """What was written of a study, such as its problem and device."""
        with guarded(self.url, KeyError):
            return dict(self._storage.get_study_user_attrs(self._storage.get_study_id_from_name(name)))


class Study:
    """The durable study of one problem on one device. Raises StorageError in one line when its storage fails.

    `domains` holds the choices of every letter; `url` is an Optuna storage URL, the path of an SQLite file, a path
    ending in .log for a journal, or None to keep nothing.
    """

    def __init__(self, url: str | None, name: str, variants: tuple[str, ...], domains: Mapping[str, tuple[int, ...]]):
        self.url = url
        self.name = name
        self.distributions = distributions(variants, domains)
        with self._guard(ValueError, RuntimeError, KeyError), quiet():
            study = optuna.create_study(storage=opened(url), study_name=name, direction="minimize", load_if_exists=True)
            if study.metric_names is None:
                study.set_metric_names(["seconds"])
            self._study = study
            self._storage = study._storage
            self._id = self._storage.get_study_id_from_name(name)

    def describe(self, attrs: Mapping[str, Any]) -> None:
        """Attributes of the study itself, what its page shows; those that are there already are not written again."""
        with self._guard():
            old = self._study.user_attrs
            for key, value in plain(attrs).items():
                if old.get(key) != value:
                    self._study.set_user_attr(key, value)

    def trials(self, skip: Set[int] = frozenset()) -> list[Trial]:
        """All trials but those whose number is in `skip`, by number."""
        with self._guard():
            frozen = self._storage.get_all_trials(self._id, deepcopy=False)
        return [_trial(t) for t in frozen if t.number not in skip and t.state in _STATES and VARIANT in t.params]

    def add(self, variant: str, config: Mapping[str, int], state: State, attrs: Mapping[str, Any],
            seconds: float | None = None, lease: str = "") -> tuple[int, int]:  # fmt: skip
        """Write a trial in one transaction; its id and number."""
        now = datetime.now()
        params = {VARIANT: variant, **config}
        trial = create_trial(
            state=next(s for s, name in _STATES.items() if name == state),
            params=params,
            distributions={name: self.distributions[name] for name in params},
            user_attrs=plain(attrs),
            system_attrs={_LEASE: lease} if lease else {},
            value=None if seconds is None else rounded(seconds),
        )
        trial.datetime_start = now
        trial.datetime_complete = None if state == "running" else now
        with self._guard():
            if isinstance(backend := self._backend, Storage):
                return backend.add(self._id, trial)
            id = self._storage.create_new_trial(self._id, trial)
            return id, self._storage.get_trial_number_from_id(id)

    def count(self) -> int | None:
        """How many trials there are; None where only reading them all would tell."""
        with self._guard():
            return backend.count(self._id) if isinstance(backend := self._backend, Storage) else None

    @property
    def _backend(self) -> Any:
        return getattr(self._storage, "_backend", None)

    def finish(self, id: int, state: State, attrs: Mapping[str, Any], seconds: float | None = None) -> bool:
        """Tell a running trial. False when it was told before, as another process does when a lease has run out."""
        wanted = next(s for s, name in _STATES.items() if name == state)
        values = None if seconds is None else [rounded(seconds)]
        with self._guard():
            try:
                if isinstance(backend := self._backend, Storage):
                    backend.finish(id, wanted, plain(attrs), values)
                    return True
                for key, value in plain(attrs).items():
                    self._storage.set_trial_user_attr(id, key, value)
                self._storage.set_trial_state_values(id, wanted, values)
            except optuna.exceptions.UpdateFinishedTrialError:
                return False
        return True

    def renew(self, id: int, lease: str) -> None:
        """Renew the lease of a running trial. It is no attribute, so no page shows it."""
        with self._guard():
            try:
                self._storage.set_trial_system_attr(id, _LEASE, lease)
            except optuna.exceptions.UpdateFinishedTrialError:
                return

    def annotate(self, pages: Mapping[int | None, Page]) -> None:
        """Notes and files of trials by number, and of the study itself under None, for the dashboard. Files that cannot
        be written are left out: no search ends for them."""
        folder = None if self.url is None else artifacts_of(self.url)
        with self._guard(KeyError):
            old = self._storage.get_study_system_attrs(self._id)
            changed: dict[str, Any] = {}
            for number, page in pages.items():
                id = None if number is None else self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
                try:
                    if folder is not None:
                        for text in page.files.values():
                            keep(folder, text)
                except OSError:
                    page = Page(page.note)
                changed |= attributes(page, id, old)
            if isinstance(backend := self._backend, Storage):
                backend.annotate(self._id, changed)
            else:
                for key, value in changed.items():
                    self._storage.set_study_system_attr(self._id, key, value)

    def close(self) -> None:
        with self._guard():
            self._storage.remove_session()
            engine = getattr(getattr(self._storage, "_backend", None), "engine", None)
            if engine is not None:
                engine.dispose()

    def _guard(self, *also: type[Exception]) -> AbstractContextManager[None]:
        return guarded(self.url, *also)


def distributions(
    variants: tuple[str, ...], domains: Mapping[str, tuple[int, ...]]
) -> dict[str, CategoricalDistribution]:
    """Flat categoricals of strings and ints: what the dashboard can draw."""
    whole = {name: CategoricalDistribution([int(v) for v in values]) for name, values in domains.items()}
    return {VARIANT: CategoricalDistribution(list(variants)), **whole}


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def plain(attrs: Mapping[str, Any]) -> dict[str, Attr]:
    """Attributes as every storage and the dashboard take them: short strings and finite numbers."""
    out: dict[str, Attr] = {}
    for key, value in attrs.items():
        if isinstance(value, bool | int):
            out[key] = value
        elif isinstance(value, float) and math.isfinite(value):
            out[key] = rounded(value)
        elif value is not None:
            text = str(value)
            out[key] = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return out
