"""Optuna, and nothing else of the search: the durable study, and TPE on a copy of it in memory.

A trial is written in one transaction when it is asked for; when it is told its state is written last, so that what is
finished is whole. TPE works in memory: with the sampler on the database each parameter would be a transaction too.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy
from optuna.distributions import CategoricalDistribution
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState, create_trial

from ..errors import StorageError
from ..settings import data_dir
from .notes import Page, attributes, keep
from .storage import Storage

State = Literal["running", "measured", "refused", "failed"]
Attr = str | int | float | bool

VARIANT = "variant"
_LEASE = "kernsearch:lease"
_LONGEST = 1000  # characters of an attribute; the dashboard cuts a little later
_TELLING = 10  # measured trials without which nothing is said of parameters
_BUSY_S = 30.0  # how long SQLite waits for another writer
_GRACE_S = 5  # after which a journal's lock belongs to a dead process
_STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "measured",
    TrialState.PRUNED: "refused",
    TrialState.FAIL: "failed",
}
_BROKEN: tuple[type[Exception], ...] = (
    optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, ImportError,
    json.JSONDecodeError,
)  # fmt: skip


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
        with _guarded(url, ValueError, RuntimeError, KeyError), _quiet():
            self._storage = self.storage = optuna.storages.get_storage(_open(url, to_write=False))
            found = optuna.get_all_study_names(self._storage)
        self.names: list[str] = sorted(found)

    def trials(self, name: str) -> list[Trial]:
        """All trials of a study, by number."""
        with _guarded(self.url, KeyError):
            id = self._storage.get_study_id_from_name(name)
            frozen = self._storage.get_all_trials(id, deepcopy=False)
        return [_trial(t) for t in frozen if t.state in _STATES and VARIANT in t.params]

    def attrs(self, name: str) -> dict[str, Any]:
        """What was written of a study, such as its problem and device."""
        with _guarded(self.url, KeyError):
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
        with self._guard(ValueError, RuntimeError, KeyError), _quiet():
            study = optuna.create_study(storage=_open(url), study_name=name, direction="minimize", load_if_exists=True)
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
        return _guarded(self.url, *also)


@contextmanager
def _guarded(url: str | None, *also: type[Exception]) -> Iterator[None]:
    """Turns what a storage raises into a StorageError of one line."""
    try:
        yield
    except (*_BROKEN, *also) as error:
        raise StorageError(f"storage {_shown(url)!r}: {_cause(error)}") from error


class _Sampler(optuna.samplers.TPESampler):
    """Draws the variant first, and then the letters of that variant alone: those of all others are not asked for."""

    def __init__(self, letters: Mapping[str, tuple[str, ...]], only: str | None, **options: Any):
        super().__init__(**options)
        self._letters, self._only = letters, only
        self.space: dict[str, Any] | None = None  # of all trials, until one of a new variant is told

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> dict[str, Any]:
        if self.space is None:
            self.space = super().infer_relative_search_space(study, trial)
        return self.space

    def sample_relative(self, study: optuna.Study, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        first = {name: choices for name, choices in search_space.items() if name == VARIANT}
        drawn = super().sample_relative(study, trial, first)
        variant = self._only or drawn.get(VARIANT)
        if variant is None:
            return super().sample_relative(study, trial, search_space)
        rest = {name: search_space[name] for name in self._letters[variant] if name in search_space}
        return drawn | super().sample_relative(study, trial, rest)


class Tpe:
    """Multivariate grouped TPE over the variant and the letters of all variants, on trials in memory.

    Numbers are those of the copy in memory. `fix` holds letters (or the variant) at one value; distributions stay
    whole, so that the study can go on without it.
    """

    def __init__(self, letters: Mapping[str, tuple[str, ...]], domains: Mapping[str, tuple[int, ...]],
                 fix: Mapping[str, str | int], seed: int):  # fmt: skip
        self._letters = letters
        self._distributions = distributions(tuple(letters), domains)
        self._told: set[str] = set()  # variants
        with _quiet():
            only = fix.get(VARIANT)
            sampler: optuna.samplers.BaseSampler
            self._sampler = sampler = _Sampler(
                letters, None if only is None else str(only),
                n_startup_trials=1, multivariate=True, group=True, constant_liar=True, seed=seed,
            )  # fmt: skip
            if fix:
                sampler = optuna.samplers.PartialFixedSampler(dict(fix), sampler)
            self._study = optuna.create_study(sampler=sampler, direction="minimize")

    def suggest(self) -> tuple[int, str, dict[str, int]]:
        """A new running trial: number, variant, config. It may well be infeasible."""
        trial = self._study.ask()
        variant = self._suggest(trial, VARIANT)
        return trial.number, str(variant), {name: int(self._suggest(trial, name)) for name in self._letters[variant]}

    def learn(self, variant: str, config: Mapping[str, int]) -> int:
        """A running trial that was suggested elsewhere: its number."""
        params = {VARIANT: variant, **config}
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=params,
                distributions={name: self._distributions[name] for name in params},
            )
        )
        return len(self._study.get_trials(deepcopy=False)) - 1

    def tell(self, number: int, seconds: float | None) -> None:
        """None says that the candidate was refused."""
        told = self._study.tell(number, seconds, TrialState.PRUNED if seconds is None else TrialState.COMPLETE)
        if (variant := told.params[VARIANT]) not in self._told:
            self._told.add(variant)
            self._sampler.space = None

    def forget(self, number: int) -> None:
        """The trial came to nothing and teaches nothing."""
        self._study.tell(number, state=TrialState.FAIL)

    def _suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_categorical(name, self._distributions[name].choices)


def distributions(
    variants: tuple[str, ...], domains: Mapping[str, tuple[int, ...]]
) -> dict[str, CategoricalDistribution]:
    """Flat categoricals of strings and ints: what the dashboard can draw."""
    whole = {name: CategoricalDistribution([int(v) for v in values]) for name, values in domains.items()}
    return {VARIANT: CategoricalDistribution(list(variants)), **whole}


def importances(trials: Sequence[tuple[Mapping[str, int], float]]) -> dict[str, float]:
    """What share of the variation among configs of one variant, with their seconds, each letter explains, the largest
    first; empty where fewer than two letters vary or there are too few trials to tell."""
    values = {letter: sorted({config[letter] for config, _ in trials}) for letter in (trials[0][0] if trials else ())}
    varied: dict[str, optuna.distributions.BaseDistribution]
    varied = {letter: CategoricalDistribution(found) for letter, found in values.items() if len(found) > 1}
    if len(trials) < _TELLING or len(varied) < 2:
        return {}
    with _quiet():
        study = optuna.create_study()
        for config, seconds in trials:
            params = {letter: config[letter] for letter in varied}
            study.add_trial(create_trial(params=params, distributions=varied, value=seconds))
        judge = optuna.importance.PedAnovaImportanceEvaluator()
        return {letter: rounded(share) for letter, share in
                optuna.importance.get_param_importances(study, evaluator=judge).items()}  # fmt: skip


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


def file_of(url: str) -> Path | None:
    """The file that a storage is, or None where it is none. Raises StorageError for what is no URL."""
    if "://" not in url:
        return Path(url)
    with _guarded(url, ValueError):
        parsed = sqlalchemy.make_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def artifacts_of(url: str) -> Path:
    """The folder of the files of a storage's trials: beside an SQLite file or a journal, else in the data folder."""
    file = file_of(url)
    return data_dir() / "artifacts" if file is None else file.absolute().with_suffix(".artifacts")


def _open(url: str | None, *, to_write: bool = True) -> optuna.storages.BaseStorage:
    """`to_write=False`: nothing is written to an SQLite file or a journal, not even a lock."""
    if url is None:
        return optuna.storages.InMemoryStorage()
    if "://" not in url:
        url = os.path.abspath(url)  # the lock of a journal is a link to its target
        if url.endswith(".log"):
            lock = JournalFileSymlinkLock(url, grace_period=_GRACE_S)
            if to_write:
                _mend(Path(url), lock)
            return optuna.storages.JournalStorage(JournalFileBackend(url, lock_obj=lock))
        url = f"sqlite:///{url}"
    parsed = sqlalchemy.make_url(url)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parsed.get_backend_name() == "sqlite":
        args, kwargs = parsed.get_dialect()().create_connect_args(parsed)
        connect = _connect_sqlite if to_write else _connect_to_read
        options = {"creator": partial(connect, *args, **{**kwargs, "timeout": _BUSY_S})}
    for last in (False, False, False, True):
        try:
            return Storage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=dict(options))
        except sqlalchemy.exc.DBAPIError as error:  # another process may create the same tables in this moment
            if last or not ("already exists" in str(error) or isinstance(error, sqlalchemy.exc.IntegrityError)):
                raise
            time.sleep(0.2)
    raise AssertionError


def _connect_sqlite(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    """A write-ahead log: readers never wait for a writer, and what was told survives a killed process."""
    connection = sqlite3.connect(*args, **kwargs)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _connect_to_read(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    connection = sqlite3.connect(*args, **kwargs)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _mend(journal: Path, lock: JournalFileSymlinkLock) -> None:
    """Cut a half-written last line, which a full disk leaves, so that the next line is not glued to it."""
    if not journal.exists() or not journal.stat().st_size:
        return
    lock.acquire()
    try:
        with journal.open("rb+") as file:
            tail_at = max(0, file.seek(0, os.SEEK_END) - (1 << 20))
            file.seek(tail_at)
            tail = file.read()
            if not tail.endswith(b"\n"):
                file.truncate(tail_at + tail.rfind(b"\n") + 1)
    finally:
        lock.release()


def _shown(url: str | None) -> str:
    """The URL without its password."""
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True) if url and "://" in url else str(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return str(url)


def _cause(error: BaseException) -> str:
    """The innermost message in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces studies and experimental features; whoever tunes did not ask."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module="optuna")
            yield
    finally:
        logger.setLevel(level)
