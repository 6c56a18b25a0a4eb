"""Running a case: predict and keep the prediction, compile, gate, time side by side, judge."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__, backends
from ..backends import Backend, Compiled
from ..device import Device
from ..errors import NothingSurvived, ProblemError, Rejected
from ..gates import OpenBench, open_bench
from ..measure import Timer, Timing, policy
from ..measure.rounds import interleaved
from ..model import ceilings
from ..model.shown import resident, seen
from ..records import fingerprint
from ..tune.compiling import Outcome, compiled
from . import recordings
from .case import Case
from .prepare import Prepared, all_prepared
from .recordings import keep
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
        instead = f"; {shipped}" if (shipped := recordings.seen(case.name, *case.backends)) else ""
        raise ProblemError(f"case {case.name!r} is about {' and '.join(case.backends)}, not {where.key}{instead}")
    declared = case.arms(where)
    if not declared:
        raise ProblemError(f"case {case.name!r} says nothing about {where.key}")
    arms = all_prepared(declared, case.op, backend, where, ceilings.of(backend, where))
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "case": case.name,
        "claim": case.claim,
        "mechanism": case.mechanism,
        **({"means": dict(case.means)} if case.means else {}),
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
        benches: dict[tuple[str, int | None, bool], OpenBench] = {}
        timers, found = {}, []
        for arm, built in zip(arms, objects, strict=True):
            key = arm.problem.key, arm.arm.threads, arm.arm.zeros
            if key not in benches:
                where = arm.arm.on(device)
                opened = open_bench(arm.op, arm.problem, where, backend, seed=seed, zeros=arm.arm.zeros)
                benches[key] = stack.enter_context(opened)
            listener(f"gates: {arm.arm.label}")
            found.append(_examined(arm, built, benches[key], device))
            timer = benches[key].timer(arm.plan, built, cold=not arm.arm.warm)
            timers[arm.arm.label] = shortest(timer, arm.arm.best_of)
        try:
            times = interleaved(timers, rounds=rounds, seed=seed, listener=lambda n: listener(f"round {n} of {rounds}"))
        except Rejected as refusal:
            raise NothingSurvived(f"timing: {refusal.reason}", {}) from refusal
    return [{**told, "samples_s": times[arm.arm.label]} for arm, told in zip(arms, found, strict=True)]


def _examined(arm: Prepared, built: tuple[Compiled, ...], bench: OpenBench, device: Device) -> dict[str, Any]:
    """What compiler and gates say of an arm. A refusal is news where the arm is doubted, and the end elsewhere."""
    compiled = [dict(part.evidence) for part in built]
    evidence: dict[str, Any] = {"compile": compiled}
    shown = seen(arm.plan, compiled, arm.problem, device)
    if (blocks := resident(arm.plan, shown, arm.problem, device)) is not None:
        evidence |= {"occupancy": blocks, "shared_bytes": shown["smem"]}
    try:
        gates = bench.examine(arm.plan, built, dict(arm.candidate.config), thorough=False)
    except Rejected as refusal:
        if not arm.arm.doubted or refusal.gate != "correctness":
            raise _refused(arm, refusal) from refusal
        refused = {"gate": refusal.gate, "reason": refusal.reason}
        return {"evidence": {**evidence, "gates": {}}, "refused": refused}
    return {"evidence": {**evidence, "gates": dict(gates)}}


def shortest(timer: Timer, of: int) -> Timer:
    """A timer each of whose repeats is the shortest of so many runs, as a benchmark has it that wants to look good."""
    if of <= 1:
        return timer

    def best(repeat: int) -> Timing:
        taken = [timer(of) for _ in range(repeat)]
        at = [min(range(of), key=lambda i, t=one: t.seconds[i]) for one in taken]  # type: ignore[misc]
        columns = ("seconds", "cpu_seconds", "wait_seconds")
        return Shortest(*([getattr(t, name)[i] for t, i in zip(taken, at, strict=True)] for name in columns))

    return best


@dataclass(frozen=True)
class Shortest:
    """The runs that were shortest, one entry a repeat."""

    seconds: list[float]
    cpu_seconds: list[float]
    wait_seconds: list[float]


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
