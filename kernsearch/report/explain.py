"""`kernsearch explain`: from the textbook to the winner, step by step, with what each step was predicted to buy.

From a record nothing is compiled, timed or ranked but the step candidates, so that it is there at once, and for devices
that are elsewhere as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .. import backends, registry
from ..claims import Claims, claims
from ..derive import Derivation, Variant, annotation
from ..errors import CacheError
from ..model import Prediction
from ..records import Record, lookup
from ..rules import all_rules
from . import bounds, searched
from .setting import Setting, here, of_record


def explanation(
    op: str, *, shape: Sequence[int], dtype: str | None = None, device: str = "auto", rank: bool = False,
    measure: int = 0, listener: Callable[[str], None] = lambda text: None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """What `explain OP --shape …` prints, as plain data: from a record where one serves this problem here, else from
    the model, whose pick of each variant is ranked then; `rank` ranks them in any case. With `measure` so many configs
    of each step's candidate are timed in turns (`timed_steps`), and the record keeps what they take."""
    backend, where = backends.resolve(device)
    problem = registry.problem(op, shape, dtype, backend=backend.name, **options)
    try:
        hit = lookup.store().find(problem, where)
    except CacheError:
        hit = None
    record = hit.record if hit is not None and hit.kind in ("exact", "compatible") else None
    setting = here(problem, backend, where, measure=rank or bool(measure) or record is None)
    told = _opening(setting) | {"hit": hit.kind if hit is not None else "none"}
    told["ranked"] = rank or record is None
    if told["ranked"]:
        told["predicted"] = _ranked(setting)
    if record is not None:
        told = _recorded(setting, record) | told
    elif told["predicted"]:
        first = told["predicted"][0]
        chosen = setting.derivation.variant(first["variant"])
        told["steps"] = _steps(setting, chosen, first["config"])
        told["bounds"] = bounds.predicted(setting, setting.predict(chosen, first["config"]))
    if measure and told.get("steps"):
        from . import timed_steps

        store = lookup.store()
        if record is not None:
            store.check(where)  # before anything is timed that could not be kept
        timed_steps.take(setting, told["steps"], backend, measure, listener=listener)
        if record is not None:
            evidence = record.evidence | {"steps": searched.kept_steps(told["steps"])}
            store.write(msgspec.structs.replace(record, evidence=evidence))
    return told


def explained(record: Record) -> dict[str, Any]:
    """The same of a record, whatever device it is of."""
    setting = of_record(record)
    return _opening(setting) | {"hit": "record", "ranked": False} | _recorded(setting, record)


def _opening(setting: Setting) -> dict[str, Any]:
    return {
        "problem": setting.problem.key,
        "device": setting.key,
        "rates": setting.rates,
        "programs": setting.derivation.graph.number_of_nodes(),
        "variants": len(setting.derivation.variants),
        "flops": setting.flops,
    }


def _ranked(setting: Setting) -> list[dict[str, Any]]:
    """The model's pick of each variant, the fastest first."""
    found = []
    for variant in setting.foremost():
        if (best := setting.pick(variant)) is not None:
            found.append(_picked(variant, *best))
    return sorted(found, key=lambda row: row["seconds"])


def _picked(variant: Variant, prediction: Prediction, config: dict[str, int]) -> dict[str, Any]:
    return {"variant": variant.name, "seconds": prediction.seconds, "bound": prediction.bound, "config": config}


def _recorded(setting: Setting, record: Record) -> dict[str, Any]:
    told: dict[str, Any] = {"winner": _winner(record)}
    variant = {v.name: v for v in setting.derivation.variants}.get(record.variant)
    prediction = None
    if variant is None:
        told["steps"], told["no_steps"] = [], f"no program of today is {record.variant}: its rules or templates changed"
    else:
        told["steps"] = _steps(setting, variant, record.config, record)
        prediction = setting.predict(variant, record.config)
    told["predicted"] = sorted(
        ({name: row[key] for name, key in (("variant", "candidate"), ("seconds", "predicted_s"), ("bound", "bound"),
                                           ("config", "config"))}
         for row in told["steps"] if row["predicted_s"] is not None), key=lambda row: row["seconds"])  # fmt: skip
    if prediction is not None:
        told["winner"] |= {"predicted_s": prediction.seconds, "bound": prediction.bound}
    told["bounds"] = bounds.of_record(setting, record, prediction)
    told["importances"] = searched.importances(record)
    told["refused"] = searched.refused(record)
    return told


def _winner(record: Record) -> dict[str, Any]:
    evidence, measured, default = record.evidence, record.measurement, record.default_measurement
    return {
        "variant": record.variant,
        "config": record.config,
        "median_s": measured.median_s if measured else None,
        "ci_s": list(measured.ci_s) if measured else None,
        "default": evidence.get("default"),
        "default_median_s": default.median_s if default else None,
        "speedup": evidence.get("speedup"),
        "runner_up": searched.runner_up(record),
        "tie": record.tie,
        "verdict": evidence.get("verdict"),
        "refusals": evidence.get("refusals", {}),
        "counts": record.counts,
    }


def _steps(
    setting: Setting, variant: Variant, config: dict[str, int], record: Record | None = None
) -> list[dict[str, Any]]:
    """Each rule step: what the program costs after it, and its plainest candidate, that with the fewest schedule steps,
    as predicted and as measured. The winner's schedule is the last step, and all of it at once."""
    pictures = {rule.name: (rule.rewrites.__doc__ or "").strip().partition("\n")[0] for rule in all_rules()}
    known, derivation = {**setting.sizes, **config}, setting.derivation
    programs = [derivation.root]
    for step in variant.path:
        programs.append(_after(derivation, programs[-1].key, step))
    names = ["textbook", *(step.rule for step in variant.path)]
    rows: list[dict[str, Any]] = []
    before: Claims | None = None
    for name, program in zip(names, programs, strict=True):
        what = pictures.get(name, "") if before is not None else "the definition, a kernel for each value"
        after = claims(program, known, config)
        rows.append(_row(name, what, after, before) | _candidate(setting, program.key, record, len(rows)))
        before = after
    named = {key: name for name, key in variant.program.keys.items()}
    said = ", ".join(annotation(step.site.choice, named) for step in variant.steps[len(variant.path) :])
    prediction = setting.predict(variant, config)
    row = _row("schedule", said, claims(variant, known, config), before) | _as_candidate(variant, config, prediction)
    kept = searched.kept_step(record, len(rows), variant.name)
    found = _timed(kept[1]) if kept is not None else searched.measured(record, variant.name, config)
    return [*rows, row | found]


def _timed(seconds: float) -> dict[str, Any]:
    return {"measured_s": seconds, "measured_in": "rounds"}


def _candidate(setting: Setting, program: str, record: Record | None, at: int) -> dict[str, Any]:
    """The plainest variant of a program that has a feasible config here; where nothing is known of the device, the
    plainest at all."""
    variants = [v for v in setting.derivation.variants if v.partition.key == program]
    for variant in sorted(variants, key=lambda v: (setting.derivation.length(v), v.name)):
        if kept := searched.kept_step(record, at, variant.name):
            return _as_candidate(variant, kept[0], setting.predict(variant, kept[0])) | _timed(kept[1])
        prediction, config = setting.pick(variant) or (None, None)
        if prediction is not None or setting.device is None:
            return _as_candidate(variant, config, prediction) | searched.measured(record, variant.name)
    return dict.fromkeys(("candidate", "config", "predicted_s", "bound", "measured_s", "measured_in"))


def _as_candidate(variant: Variant, config: dict[str, int] | None, prediction: Prediction | None) -> dict[str, Any]:
    return {"candidate": variant.name, "config": config, "predicted_s": prediction and prediction.seconds,
            "bound": prediction and prediction.bound}  # fmt: skip


def _after(derivation: Derivation, key: str, step: Any) -> Any:
    for _, reached, data in derivation.graph.out_edges(key, data=True):
        if data["step"] == step:
            return derivation.graph.nodes[reached]["program"]
    raise AssertionError("a path follows the edges of its graph")


def _row(rule: str, what: str, cost: Claims, before: Claims | None) -> dict[str, Any]:
    row = {"rule": rule, "what": what, "bytes": cost.bytes, "flops": cost.flops, "launches": cost.launches}
    if before is not None:
        row["saved_bytes"] = before.bytes - cost.bytes
    return row
