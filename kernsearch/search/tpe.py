"""Optuna's tree-structured Parzen estimators, and what it says of parameters, on trials in memory: with the sampler on
the database each parameter would be a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from .opening import quiet
from .study import VARIANT, distributions, rounded

_TELLING = 10  # measured trials without which nothing is said of parameters


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
        with quiet():
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


def importances(trials: Sequence[tuple[Mapping[str, int], float]]) -> dict[str, float]:
    """What share of the variation among configs of one variant, with their seconds, each letter explains, the largest
    first; empty where fewer than two letters vary or there are too few trials to tell."""
    values = {letter: sorted({config[letter] for config, _ in trials}) for letter in (trials[0][0] if trials else ())}
    varied: dict[str, optuna.distributions.BaseDistribution]
    varied = {letter: CategoricalDistribution(found) for letter, found in values.items() if len(found) > 1}
    if len(trials) < _TELLING or len(varied) < 2:
        return {}
    with quiet():
        study = optuna.create_study()
        for config, seconds in trials:
            params = {letter: config[letter] for letter in varied}
            study.add_trial(create_trial(params=params, distributions=varied, value=seconds))
        judge = optuna.importance.PedAnovaImportanceEvaluator()
        return {letter: rounded(share) for letter, share in
                optuna.importance.get_param_importances(study, evaluator=judge).items()}  # fmt: skip
