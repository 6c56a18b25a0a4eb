"""Running a case: predict and keep the prediction, compile, gate, time side by side, judge."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .. import __version__, backends
from ..backends import Backend, Compiled
from ..device import Device
from ..errors import NothingSurvived, ProblemError, Rejected
from ..gates import open_bench
from ..measure import policy
from ..measure.rounds import interleaved
from ..model import ceilings
from ..records import fingerprint
from ..tune.compiling import Outcome, compiled
from .case import Case
from .prepare import Prepared, all_prepared
from .verdict import SCHEMA, judged

ROUNDS = 15
COMPILE_TIMEOUT_S = 60.0  # for each kernel; there are few
Listener = Callable[[str], None]


def run(
    case: Case,
    *,
    device: str = "auto",
    out: Path | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    listener: Listener = lambda text: None,
) -> dict[str, Any]:
    """Run a case and return its data; with `out`, `prediction.json` is written there before anything is measured, and
    `data.json` at the end.

    Raises ProblemError where the case says nothing about the device, SpaceError when an arm does not exist there,
    NothingSurvived when one does not compile or fails a gate.
    """
    backend, where = backends.resolve(device)
    if where.backend not in case.backends:
        raise ProblemError(f"case {case.name!r} is about {' and '.join(case.backends)}, not {where.key}")
    declared = case.arms(where)
    if not declared:
        raise ProblemError(f"case {case.name!r} says nothing about {where.key}")
    arms = all_prepared(declared, case.op, backend, where, ceilings.of(backend, where))
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "case": case.name,
        "claim": case.claim,
        "mechanism": case.mechanism,
        "device": device_facts(backend, where),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "policy": policy(where),
        "arms": [arm.told() for arm in arms],
        "comparisons": [vars(comparison) for comparison in case.comparisons(where)],
    }
    if out is not None:
        keep(out / "prediction.json", data)
    listener(f"{case.name}: predicted {len(arms)} arms, measuring")
    for told, found in zip(data["arms"], measured(arms, backend, where, rounds, seed, listener), strict=True):
        told.update(found)
    told = judged(data)
    if out is not None:
        keep(out / "data.json", told)
    return told


def measured(
    arms: Sequence[Prepared], backend: Backend, device: Device, rounds: int, seed: int, listener: Listener
) -> list[dict[str, Any]]:
    """Evidence and samples of each arm, all timed in the same rounds. Raises NothingSurvived with the arm's label."""
    listener("compiling")
    plans = [arm.plan for arm in arms]
    outcomes = compiled(plans, backend, device, jobs=int(device.cores), timeout_s=COMPILE_TIMEOUT_S)
    objects = [_accepted(arm, outcome) for arm, outcome in zip(arms, outcomes, strict=True)]
    with ExitStack() as stack:
        benches: dict[tuple[str, int | None], Any] = {}
        timers, found = {}, []
        for arm, built in zip(arms, objects, strict=True):
            key = arm.problem.key, arm.arm.threads
            if key not in benches:
                opened = open_bench(arm.op, arm.problem, arm.arm.on(device), backend, seed=seed)
                benches[key] = stack.enter_context(opened)
            listener(f"gates: {arm.arm.label}")
            try:
                gates = benches[key].examine(arm.plan, built, dict(arm.candidate.config), thorough=False)
            except Rejected as refusal:
                raise _refused(arm, refusal) from refusal
            timers[arm.arm.label] = benches[key].timer(arm.plan, built)
            evidence = [dict(part.evidence) for part in built]
            found.append({"evidence": {"compile": evidence, "gates": dict(gates)}})
        try:
            times = interleaved(timers, rounds=rounds, seed=seed, listener=lambda n: listener(f"round {n} of {rounds}"))
        except Rejected as refusal:
            raise NothingSurvived(f"timing: {refusal.reason}", {}) from refusal
    return [{**told, "samples_s": times[arm.arm.label]} for arm, told in zip(arms, found, strict=True)]


def _accepted(arm: Prepared, outcome: Outcome) -> tuple[Compiled, ...]:
    if isinstance(outcome, Rejected):
        raise _refused(arm, outcome) from outcome
    return outcome


def _refused(arm: Prepared, refusal: Rejected) -> NothingSurvived:
    return NothingSurvived(f"{arm.arm.label} is refused by gate {refusal.gate}: {refusal.reason}", {})


def device_facts(backend: Backend, device: Device) -> dict[str, Any]:
    """Device, driver and versions, as results hold them."""
    return {
        "key": device.key,
        "name": device.name,
        "arch": device.arch,
        "sms": device.facts.get("sms"),
        "driver": backend.driver(device),
        "compiler": fingerprint.compiler_id(device),
        "kernsearch": __version__,
        "python": platform.python_version(),
    }


def keep(path: Path, data: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
