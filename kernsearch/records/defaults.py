"""Default records: what runs where nothing was tuned. `python -m kernsearch.records.defaults` writes the shipped ones.

For each class of devices the model picks a variant and a config at a few shapes, from nominal facts of the class, so
that every machine generates the same files. Defaults have no measurement; lookup takes that of the nearest shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path

from .. import backends, launch, model, registry
from ..candidate import lower
from ..derive import Derivation, Variant, derive
from ..device import Device
from ..feasible import FeasibleSpace
from ..model import ceilings
from ..problem import Problem
from ..space import Op
from .fingerprint import Fingerprint, source_tokens
from .packing import pack
from .record import Record

# Class of devices to nominal facts: a machine of the class with ordinary caches.
_ORDINARY = {"threads": 4, "cores": 4, "l1d_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 16 << 20,
             "line_bytes": 64, "memory_bytes": 16 << 30}  # fmt: skip
CLASSES: dict[str, dict[str, int | str]] = {
    "x86_64-avx512": {"isa": "avx512", "vector_bytes": 64, "vector_registers": 32},
    "x86_64-avx2": {"isa": "avx2", "vector_bytes": 32, "vector_registers": 16},
    "aarch64-neon": {"isa": "neon", "vector_bytes": 16, "vector_registers": 32},
    "any": {"isa": "scalar", "vector_bytes": 16, "vector_registers": 16},
}


def device(arch: str) -> Device:
    """The nominal device of a class."""
    return Device("cpu", 0, "", arch, f"cpu-{arch}", {**_ORDINARY, **CLASSES[arch]})


def problems(op: Op, arch: str) -> Iterator[Problem]:
    """The problems of an op that have defaults, in a fixed order; for `any`, that few machines need, at one shape."""
    for dtype, shape in product(op.dtypes["cpu"], op.typical[:1] if arch == "any" else op.typical):
        names = [spec.name for spec in op.options]
        for values in product(*(spec.values for spec in op.options)):
            yield op.problem(shape, dtype, backend="cpu", **dict(zip(names, values, strict=True)))


def record(problem: Problem, where: Device) -> Record:
    """The default for a problem on a nominal device."""
    name, config = _pick(_plain(problem), where.arch)
    variant = _variants(problem)[name]
    plan = lower(variant, dict(config), problem, backends.get("cpu"), where)
    sources = {kernel.source: source_tokens(kernel.source) for kernel in plan.kernels}
    return Record(
        problem=problem,
        fingerprint=Fingerprint(device=where.key, name=where.name, arch=where.arch, sources=sources, compiler=None),
        plan=plan,
        variant=name,
        config=dict(config),
        derivation=tuple(step.to_json() for step in variant.steps),
    )


def records(op: Op, arch: str) -> Iterator[Record]:
    """All defaults of an op for a class of devices."""
    where = device(arch)
    return (record(problem, where) for problem in problems(op, arch))


def _plain(problem: Problem) -> Problem:
    """The problem with each option at its default: it decides which variant all the others get."""
    op = registry.op(problem.op)
    return op.problem(problem.shape, problem.dtype, backend="cpu")


@cache
def _derivation(problem: Problem) -> Derivation:
    return derive(problem, registry.op(problem.op), registry.templates("cpu"))


@cache
def _variants(problem: Problem) -> dict[str, Variant]:
    return {variant.name: variant for variant in _derivation(problem).variants}


@cache
def _pick(problem: Problem, arch: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The model's choice among deterministic variants of one kernel, which every epilogue has under the same name."""
    op, where = registry.op(problem.op), device(arch)
    sizes = {**op.sizes(problem), "THREADS": where.threads, "ITEMSIZE": launch.itemsize(problem.dtype)}
    rates = ceilings.guess(where)
    best: tuple[float, str, tuple[tuple[str, int], ...]] | None = None
    for name, variant in sorted(_variants(problem).items()):
        if len(variant.kernels) > 1 or not variant.deterministic:
            continue
        space = FeasibleSpace(variant.params, variant.constraints, where, sizes)
        for prediction, config in model.rank(variant, space, where, sizes, rates, seed=0)[:1]:
            found = (prediction.seconds, name, tuple(sorted(config.items())))
            best = found if best is None or found < best else best
    assert best is not None, f"no variant of {problem.key} is feasible on {where.key}"
    return best[1], best[2]


def write(folder: Path) -> None:
    """Write the files of all ops and classes below `folder`."""
    for op in registry.ops().values():
        for arch in CLASSES:
            path = folder / arch / f"{op.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed(records(op, arch)))


def packed(found: Iterable[Record]) -> bytes:
    """The bytes of a file of defaults; what nobody measured is left out."""
    kept = ("schema", "problem", "fingerprint", "plan", "variant", "config", "derivation")
    return pack({name: value for name, value in record.to_json().items() if name in kept} for record in found)


if __name__ == "__main__":
    import argparse

    from .lookup import shipped_folder

    parser = argparse.ArgumentParser("python -m kernsearch.records.defaults", description="Write the shipped defaults.")
    parser.add_argument("folder", nargs="?", type=Path, default=shipped_folder() / "defaults")
    write(parser.parse_args().folder)
