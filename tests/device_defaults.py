"""Defaults for a GPU made of the templates that run anything, so that tests of the runtime need no tuning."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import msgspec
from kernsearch.spaces.generic.templates import cuda as generic

from kernsearch import backends, registry
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.device import Device
from kernsearch.problem import Problem
from kernsearch.records import Record, defaults
from kernsearch.records.fingerprint import Fingerprint, source_tokens

EPILOGUES = ("none", "bias", "residual", "bias,relu,residual", "gelu")
SHAPES = {"gemm": (32, 32, 32), "bmm": (4, 32, 32, 32)}


def record(problem: Problem, device: Device, variant: str = "contraction", assumes: tuple[str, ...] = ()) -> Record:
    """The record of a variant of the generic templates; `assumes` is added to what its plan assumes."""
    found = derive(problem, registry.op(problem.op), generic.templates()).variant(variant)
    config = {param.name: param.values[-1] for param in found.params}
    plan = lower(found, config, problem, backends.get("cuda"), device)
    plan = msgspec.structs.replace(plan, assumes=(*plan.assumes, *assumes))
    sources = {kernel.source: source_tokens(kernel.source) for kernel in plan.kernels}
    return Record(
        problem=problem,
        fingerprint=Fingerprint(device=device.key, name=device.name, arch=device.arch, sources=sources, compiler=None),
        plan=plan,
        variant=variant,
        config=config,
        derivation=tuple(step.to_json() for step in found.steps),
    )


def write(folder: Path, device: Device, dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")) -> Path:
    """A folder of shipped records that holds nothing but these defaults."""
    for op in SHAPES:
        home = folder / "defaults" / device.arch
        home.mkdir(parents=True, exist_ok=True)
        found = [
            record(problem(op, dtype, layout, epilogue), device)
            for dtype, layout, epilogue in product(dtypes, ("nn", "nt", "tn", "tt"), EPILOGUES)
        ]
        (home / f"{op}.json").write_bytes(defaults.packed(found))
    return folder


def problem(op: str, dtype: str, layout: str = "nn", epilogue: str = "none", shape: tuple[int, ...] = ()) -> Problem:
    return registry.op(op).problem(shape or SHAPES[op], dtype, backend="cuda", layout=layout, epilogue=epilogue)
