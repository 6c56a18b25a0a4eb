"""Variants of softmax lowered to plans, with arrays for them and what should come out."""

from __future__ import annotations

from functools import cache

import numpy as np

from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.derive import Derivation, derive
from kernsearch.gates.reference import Reference
from kernsearch.plan import Plan
from kernsearch.problem import Problem


def problem(name: str, shape, dtype="float32", backend="cuda", **options) -> Problem:
    return registry.op(name).problem(shape, dtype, backend=backend, **options)


@cache
def derived(of: Problem, backend: str) -> Derivation:
    return derive(of, registry.op(of.op), registry.templates(backend))


def plan_of(of: Problem, variant: str, config, arch="sm_90a", backend="cuda") -> tuple[Plan, list]:
    """The plan, and the bindings of its kernels."""
    device = backends.get("cuda").compile_only(arch) if backend == "cuda" else backends.get("cpu").device()
    found = derived(of.at((64, 64)), backend).variant(variant)
    plan = lower(found, config, of, backends.get(backend), device)
    return plan, [matched.binding() for matched in found.kernels]


def made(of: Problem, inputs: str, seed=0) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Inputs of the set of that name."""
    op = registry.op(of.op)
    chosen = next(one for one in op.inputs if one.name == inputs)
    return chosen.make(of, np.random.default_rng(seed))


def expected(of: Problem, arrays, scalars) -> tuple[np.ndarray, np.ndarray]:
    """The output in float64 and the error allowed."""
    (block,) = Reference(registry.op(of.op), of, arrays, scalars).blocks()
    ((_, value),) = block.expected.items()
    ((_, allowed),) = block.allowed.items()
    return value, allowed


def output_name(of: Problem) -> str:
    return "Y" if of.op == "softmax" else "DX"
