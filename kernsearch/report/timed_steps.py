"""Times of the steps of a derivation, taken side by side: `explain --measure`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from .. import model
from ..backends import Backend
from ..candidate import Candidate, lower
from ..derive import Variant
from ..errors import NothingSurvived, Rejected
from ..feasible import FeasibleSpace
from ..gates import open_bench
from ..measure.rounds import interleaved
from ..plan import Plan
from ..tune.compiling import compiled
from .setting import Setting

ROUNDS = 9
COMPILE_TIMEOUT_S = 60.0
Listener = Callable[[str], None]


class _Config(NamedTuple):
    """A config of a step's candidate. `label` is its own in all steps."""

    label: str
    variant: Variant
    config: dict[str, int]
    plan: Plan


def take(
    setting: Setting, steps: list[dict[str, Any]], backend: Backend, budget: int, *, rounds: int = ROUNDS,
    seed: int = 0, listener: Listener = lambda text: None,
) -> None:  # fmt: skip
    """Fill in what each step takes: of the `budget` configs that the model likes best of its candidate, and of the one
    it has, the fastest that passes the gates. All of them take turns in the same rounds, so steps can be compared.

    A step gets `measured_s`, `measured_in`, its config and prediction, or `refused` where no config passes. Raises
    NothingSurvived when nothing can be timed.
    """
    assert setting.device is not None  # it is this machine's
    tried = {at: list(_configs(setting, row, backend, budget)) for at, row in enumerate(steps) if row["candidate"]}
    distinct = {one.label: one for configs in tried.values() for one in configs}
    listener(f"compiling {len(distinct)} candidates")
    outcomes = compiled(
        [one.plan for one in distinct.values()], backend, setting.device, jobs=int(setting.device.cores),
        timeout_s=COMPILE_TIMEOUT_S,
    )  # fmt: skip
    refused: dict[str, Rejected] = {}
    timers = {}
    with open_bench(setting.op, setting.problem, setting.device, backend, seed=seed) as bench:
        for (label, one), outcome in zip(distinct.items(), outcomes, strict=True):
            try:
                if isinstance(outcome, Rejected):
                    raise outcome
                listener(f"gates: {label}")
                bench.examine(one.plan, outcome, one.config, thorough=False)
                timers[label] = bench.timer(one.plan, outcome)
            except Rejected as refusal:
                refused[label] = refusal
        if not timers:
            raise NothingSurvived("no candidate of a step passes the gates", {})
        times = interleaved(timers, rounds=rounds, seed=seed, listener=lambda n: listener(f"round {n} of {rounds}"))
    for at, configs in tried.items():
        passed = [one for one in configs if one.label in times]
        if not passed:
            if configs:
                why = refused[configs[0].label]
                steps[at]["refused"] = {"gate": why.gate, "reason": why.reason}
            continue
        best = min(passed, key=lambda one: median(times[one.label]))
        prediction = setting.predict(best.variant, best.config)
        steps[at] |= {
            "config": best.config,
            "measured_s": median(times[best.label]),
            "measured_in": "rounds",
            "predicted_s": prediction and prediction.seconds,
            "bound": prediction and prediction.bound,
        }


def _configs(setting: Setting, row: dict[str, Any], backend: Backend, budget: int) -> Iterator[_Config]:
    variant, device = setting.derivation.variant(row["candidate"]), setting.device
    assert device is not None and setting.roof is not None
    configs = [row["config"]] if row["config"] is not None else []
    if row["rule"] != "schedule":  # that one is the winner, as it is
        space = FeasibleSpace(variant.params, variant.constraints, device, setting.sizes)
        ranked = model.rank(variant, space, device, setting.sizes, setting.roof)
        configs += [config for _, config in islice(ranked, budget)]
    for label, config in {Candidate.of(variant.name, config).name: config for config in configs}.items():
        try:
            yield _Config(label, variant, config, lower(variant, config, setting.problem, backend, device))
        except Rejected:  # the backend has no such launch
            continue
