"""The ladder of an op: its templates from the plainest to the last, each at its best config, side by side.

Predictions are made and kept first. Then each rung tries the few configs that the model likes best, and the fastest of
each are timed in the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .. import backends, model, registry
from ..backends import Backend, Compiled
from ..candidate import Candidate, array_bytes, check_memory
from ..device import Device
from ..errors import NothingSurvived, ProblemError, Rejected
from ..gates import open_bench
from ..measure import policy, quick
from ..measure.rounds import interleaved
from ..model import ceilings
from ..model.ceilings import Ceilings
from ..model.shown import resident, seen, threads, waves
from ..problem import Problem
from ..tune.compiling import compiled
from ..tune.prospects import Prospects
from ..tune.request import Request
from .climbed import SCHEMA
from .prepare import LARGE
from .recordings import keep
from .running import COMPILE_TIMEOUT_S, device_facts

TRIED = 6  # configs of each rung
ROUNDS = 11
Listener = Callable[[str], None]


def rungs(op: str, backend: str) -> tuple[str, ...]:
    """Names of the templates of an op's ladder, the plainest first. Raises ProblemError where there is none."""
    found = getattr(registry.companion(op, "ladder"), "RUNGS", {})
    if backend not in found:
        others = f", but on {' and '.join(found)}" if found else ""
        raise ProblemError(f"{op} has no ladder on {backend}{others}")
    return tuple(found[backend])


def run(
    op: str,
    *,
    shape: Sequence[int],
    dtype: str | None = None,
    device: str = "auto",
    tried: int = TRIED,
    rounds: int = ROUNDS,
    seed: int = 0,
    out: Path | None = None,
    listener: Listener = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """Climb the ladder for one problem and return what `ladder --json` prints.

    With `out` the predictions are written there before anything is measured, and everything at the end. A rung that the
    problem or the device cannot have is listed with its reason. Raises ProblemError where the op has no ladder, and
    NothingSurvived when a rung that has passed the gates fails while it is timed.
    """
    if tried < 1:
        raise ProblemError(f"--tried {tried}: want at least 1")
    backend, where = backends.resolve(device)
    problem = registry.problem(op, shape, dtype, backend=backend.name, **options)
    names = rungs(op, backend.name)
    check_memory(problem, where)
    roof = ceilings.of(backend, where)
    prospects = Prospects(registry.op(problem.op), problem, backend, where, roof, Request(max_workspace=LARGE), names)
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "problem": problem.key,
        "device": device_facts(backend, where),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "policy": policy(where),
        "floor_s": floor_s(problem, roof),
        "flops": registry.op(problem.op).flops(problem),
        "rungs": [],
    }
    chosen: dict[str, list[dict[str, int]]] = {}
    for name in names:
        row: dict[str, Any] = {"rung": name}
        told["rungs"].append(row)
        if name not in prospects.spaces:
            row["absent"] = prospects.why_absent(name)
            continue
        ranked = model.rank(prospects.variants[name], prospects.spaces[name], where, prospects.sizes, roof)
        wanted = [(p, config) for p, config in ranked if prospects.unwanted(name, config) is None][:tried]
        if not wanted:
            row["absent"] = prospects.unwanted(name, ranked[0][1]) if ranked else "no config is feasible"
            continue
        row["predicted_s"], row["predicted_bound"] = wanted[0][0].seconds, wanted[0][0].bound
        chosen[name] = [config for _, config in wanted]
    if out is not None:
        keep(out, told)
    _measure(told, chosen, prospects, backend, where, problem, roof, rounds, seed, listener)
    if out is not None:
        keep(out, told)
    return told


def floor_s(problem: Problem, roof: Ceilings) -> float:
    """The least time that arithmetic and memory allow: the larger of operations by the dtype's peak and bytes by the
    copy rate."""
    op = registry.op(problem.op)
    sizes = op.sizes(problem)
    moved = array_bytes(op.root(problem), sizes)
    peak = roof.flops.get(problem.dtype, max(roof.flops.values()))
    return max(op.flops(problem) / peak, moved / roof.copy)


def _measure(
    told: dict[str, Any], chosen: Mapping[str, list[dict[str, int]]], prospects: Prospects, backend: Backend,
    device: Device, problem: Problem, roof: Ceilings, rounds: int, seed: int, listener: Listener,
) -> None:  # fmt: skip
    """Try the configs of each rung, and time the fastest of all rungs in the same rounds."""
    rows = {row["rung"]: row for row in told["rungs"]}
    candidates = [Candidate.of(name, config) for name, configs in chosen.items() for config in configs]
    plans = {candidate: prospects.plan(candidate) for candidate in candidates}
    listener(f"compiling {len(candidates)} candidates")
    wanted = [plans[candidate] for candidate in candidates]
    outcomes = compiled(wanted, backend, device, jobs=int(device.cores), timeout_s=COMPILE_TIMEOUT_S)
    with open_bench(prospects.op, problem, device, backend, seed=seed) as bench:
        best: dict[str, tuple[float, Candidate, tuple[Compiled, ...], dict[str, Any]]] = {}
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            listener(f"{candidate.name}")
            try:
                if isinstance(outcome, Rejected):
                    raise outcome
                gates = bench.examine(plans[candidate], outcome, dict(candidate.config), thorough=False)
                seconds = quick(bench.timer(plans[candidate], outcome)).median_s
            except Rejected as refusal:
                rows[candidate.variant].setdefault("refused", []).append(f"{refusal.gate}: {refusal.reason}")
                continue
            if candidate.variant not in best or seconds < best[candidate.variant][0]:
                best[candidate.variant] = (seconds, candidate, outcome, dict(gates))
        timers = {name: bench.timer(plans[b[1]], b[2]) for name, b in best.items()}
        try:
            times = interleaved(timers, rounds=rounds, seed=seed, listener=lambda n: listener(f"round {n} of {rounds}"))
        except Rejected as refusal:
            raise NothingSurvived(f"timing: {refusal.reason}", {}) from refusal
    for name, (_, candidate, built, gates) in best.items():
        plan = plans[candidate]
        evidence = [dict(part.evidence) for part in built]
        predicted = model.predict(prospects.variants[name], dict(candidate.config), device, prospects.sizes, roof)
        rows[name].update(
            config=dict(candidate.config),
            config_predicted_s=predicted.seconds,
            samples_s=times[name],
            median_s=median(times[name]),
            of_floor=told["floor_s"] / median(times[name]),
            waves=waves(plan, problem, device),
            error=gates.get("error"),
            **_resources(plan, evidence, problem, device),
        )
    for name in chosen:
        if name not in best:
            rows[name]["absent"] = rows[name].get("refused", ["nothing passed the gates"])[0]


def _resources(plan: Any, evidence: list[dict[str, Any]], problem: Problem, device: Device) -> dict[str, Any]:
    """Registers, spills, shared bytes and occupancy of the launch that needs the most; empty on the CPU."""
    found: dict[str, Any] = {}
    for key in ("registers", "spill_stores", "vector_spills", "stack_bytes"):
        values = [e[key] for e in evidence if key in e]
        if values:
            found[key] = max(values)
    shown = seen(plan, evidence, problem, device)
    blocks = resident(plan, shown, problem, device)
    if blocks is None:
        return found
    return {**found, "shared_bytes": shown["smem"], "threads": threads(plan, problem, device), "occupancy": blocks}
