"""From what an arm asks for to a candidate with its prediction: nothing is compiled or measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from .. import model, registry
from ..backends import Backend
from ..candidate import Candidate
from ..device import Device
from ..errors import SpaceError
from ..model import Prediction
from ..model.banks import shared_turns
from ..model.ceilings import Ceilings
from ..model.shown import waves
from ..plan import Plan
from ..problem import Problem
from ..tune.prospects import Prospects
from ..tune.request import Request
from .case import Arm

if TYPE_CHECKING:
    from ..space import Op

LARGE = 1 << 62  # workspace without a limit


@dataclass(frozen=True)
class Prepared:
    """An arm ready to be compiled and timed."""

    arm: Arm
    op: Op
    problem: Problem
    candidate: Candidate
    plan: Plan
    prediction: Prediction
    waves: float | None  # of the last launch, one block a multiprocessor; None on the CPU
    turns: Mapping[str, Mapping[str, int]]  # of shared memory in a block, as `model.banks` counts them, by access

    def told(self) -> dict[str, Any]:
        """What is known before measuring, for data.json."""
        useful = {} if self.op.useful_bytes is None else {"useful_bytes": self.op.useful_bytes(self.problem)}
        counted = {"turns": self.turns} if self.turns else {}
        return {
            "label": self.arm.label,
            "problem": self.problem.key,
            "variant": self.candidate.variant,
            "config": dict(self.candidate.config),
            "flops": self.op.flops(self.problem),
            "predicted_s": self.prediction.seconds,
            "predicted_bound": self.prediction.bound,
            "predicted_parts": dict(self.prediction.parts),
            "waves": self.waves,
            "how": self.arm.how(),
            **useful,
            **counted,
        }


def all_prepared(
    arms: Sequence[Arm], op_name: str, backend: Backend, device: Device, ceilings: Ceilings
) -> list[Prepared]:
    """Choose the candidates of arms, in order, so that one may be like an earlier one."""
    found: dict[str, Prepared] = {}
    known: dict[tuple[str, int | None], Prospects] = {}
    named = tuple(dict.fromkeys(name for arm in arms for name in arm.variant))
    for arm in arms:
        like = dict(found[arm.like].candidate.config) if arm.like else {}
        held = replace(arm, fix={**like, **arm.fix})
        found[arm.label] = prepared(held, arm.op or op_name, backend, arm.on(device), ceilings, known, named)
    return list(found.values())


def prepared(
    arm: Arm, op_name: str, backend: Backend, device: Device, ceilings: Ceilings,
    known: dict[tuple[str, int | None], Prospects], named: Sequence[str],
) -> Prepared:  # fmt: skip
    """Choose the candidate of an arm. `known`: prospects of earlier arms, by problem and threads; `named`: variants
    of all arms.

    Raises SpaceError when the problem has no such variant or config.
    """
    problem = registry.problem(op_name, arm.shape, arm.dtype, backend=backend.name, **arm.options)
    op = registry.op(problem.op)
    if (key := (problem.key, arm.threads)) not in known:
        known[key] = Prospects(op, problem, backend, device, ceilings, Request(max_workspace=LARGE), named)
    prospects = known[key]
    name = next((name for name in arm.variant if name in prospects.spaces), None)
    if name is None:
        raise SpaceError(f"{problem.key}: no variant {' or '.join(arm.variant)} on {device.key}")
    variant, space = prospects.variants[name], prospects.spaces[name].narrowed(arm.fix)
    ranked = model.rank(variant, space, device, prospects.sizes, ceilings)
    wanted = (pair for pair in ranked if prospects.unwanted(name, pair[1]) is None)
    found = next(wanted, None)
    if found is None:
        held = ", ".join(f"{letter}={value}" for letter, value in arm.fix.items())
        why = space.why_empty() or prospects.unwanted(name, ranked[0][1])
        raise SpaceError(f"{problem.key}: {name} with {held}: {why}")
    prediction, config = found
    candidate = Candidate.of(name, config)
    plan = _flagged(prospects.plan(candidate), arm.flags)
    turns = shared_turns(variant, config, prospects.sizes)
    return Prepared(arm, op, problem, candidate, plan, prediction, waves(plan, problem, device), turns)


def _flagged(plan: Plan, flags: tuple[str, ...]) -> Plan:
    if not flags:
        return plan
    kernels = tuple(msgspec.structs.replace(kernel, flags=(*kernel.flags, *flags)) for kernel in plan.kernels)
    return msgspec.structs.replace(plan, kernels=kernels)
