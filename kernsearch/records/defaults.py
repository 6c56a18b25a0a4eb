"""Default records: what runs where nothing was tuned. `python -m kernsearch.records.defaults` writes the shipped ones.

For each class of devices the model picks variants and configs at a few shapes, from nominal facts of the class, so that
every machine generates the same files. Each shape has up to two: the model's best, and where that assumes something of
sizes, strides or addresses, the best that takes anything. Lookup takes that of the nearest shape, and of one shape the
first that holds. Defaults have no measurement, and of their derivation the steps of rules only: the variant names its
templates, which have the schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

from .. import backends, files, launch, model, registry, sources
from ..candidate import lower
from ..derive import Variant, derive
from ..device import Device, lacks
from ..errors import Rejected
from ..feasible import FeasibleSpace
from ..model import ceilings
from ..plan import Plan
from ..problem import Problem
from ..space import Op
from .classes import CLASSES, DeviceClass
from .fingerprint import Fingerprint, source_tokens
from .packing import pack
from .record import Record

TRIED = 3  # configs of a variant, where a layout of the operands refuses the first
AWKWARD = 1031  # a size that is odd and beyond any tile; operands of it have odd strides and addresses
MANY = 64  # variants of a problem that are ranked, at most
SEVERAL = 3  # kernels of a variant that is looked at where no single one takes every size


@dataclass(frozen=True, order=True)
class Choice:
    """A variant and a config, and the seconds that the model predicts."""

    seconds: float
    variant: str
    config: tuple[tuple[str, int], ...]


def device(of: DeviceClass) -> Device:
    """The nominal device of a class."""
    return _device(of.backend, of.arch)


@cache
def _device(backend: str, arch: str) -> Device:
    return next(of for of in CLASSES if (of.backend, of.arch) == (backend, arch)).device()


def problems(op: Op, of: DeviceClass) -> Iterator[Problem]:
    """The problems of an op that have defaults in a class, in a fixed order: the shapes of one lie together."""
    names = [spec.name for spec in op.options]
    for dtype in op.dtypes.get(of.backend, ()):
        if lacks(device(of), dtype) or not _extends(op, dtype, of):
            continue
        for values in product(*(spec.values for spec in op.options)):
            for shape in op.typical.get(of.backend, ())[: of.shapes]:
                yield op.problem(shape, dtype, backend=of.backend, **dict(zip(names, values, strict=True)))


def _extends(op: Op, dtype: str, of: DeviceClass) -> bool:
    """Has a class that extends another a kernel of its own that does all of an op in a dtype? True for all others."""
    if not of.unit:
        return True
    any_shape = op.problem((1024,) * len(op.letters), dtype, backend=of.backend)
    alone = (v.templates[0] for v in _variants(_plain(any_shape), of.backend).values() if len(v.templates) == 1)
    return any(step[0] == "unit" and step[2] == of.unit for template in alone for step in template.ann)


def records(op: Op, of: DeviceClass) -> Iterator[Record]:
    """All defaults of an op for a class of devices."""
    with sources.unchanging():
        for problem in problems(op, of):
            yield from at(problem, of)


def at(problem: Problem, of: DeviceClass) -> list[Record]:
    """The defaults for a problem: the best, and if that is not for all arrays, the best that is."""
    return [_record(problem, choice, of) for choice in _chosen(_like(problem), of.backend, of.arch)]


def _record(problem: Problem, choice: Choice, of: DeviceClass) -> Record:
    where, variant = device(of), _variants(_shapeless(problem), of.backend)[choice.variant]
    plan = _plan(_shapeless(problem), choice.variant, choice.config, of.backend, of.arch)
    tokens = {kernel.source: source_tokens(kernel.source) for kernel in plan.kernels}
    return Record(
        problem=problem,
        fingerprint=Fingerprint(device=where.key, name=where.name, arch=where.arch, sources=tokens, compiler=None),
        plan=plan,
        variant=choice.variant,
        config=dict(choice.config),
        derivation=tuple(step.to_json() for step in variant.path),
        evidence={"model": {"seconds": _seconds(_plain(problem), choice.variant, choice.config, of.backend, of.arch)}},
    )


def seconds(default: Record, of: DeviceClass) -> float:
    """What the model says now of a default of a class; what it said when the default was made is its evidence."""
    config = tuple(sorted(default.config.items()))
    return _seconds(_plain(default.problem), default.variant, config, of.backend, of.arch)


@cache
def _seconds(plain: Problem, variant: str, config: tuple[tuple[str, int], ...], backend: str, arch: str) -> float:
    where, found = _device(backend, arch), _variants(_shapeless(plain), backend)[variant]
    predicted = model.predict(found, dict(config), where, _sizes(plain, where), ceilings.guess(where)).seconds
    return float(f"{predicted:.4g}")


# What is derived once for many problems ------------------------------------------------------------------------------


def _shapeless(problem: Problem) -> Problem:
    """The problem at a size that stands for all: programs and plans hold no shape."""
    return problem.at((1024,) * len(problem.shape))


def _plain(problem: Problem) -> Problem:
    """The problem with each option at its default: the model sees no difference."""
    op = registry.op(problem.op)
    return Problem(problem.op, problem.shape, problem.dtype, tuple((s.name, s.default) for s in op.options))


def _like(problem: Problem) -> Problem:
    """The problem with each option at its default but for the first: the layout of the operands, which decides what
    can be moved in bulk. All the others get the variants and configs of this one."""
    op = registry.op(problem.op)
    kept = {op.options[0].name: problem.option(op.options[0].name)} if op.options else {}
    return Problem(problem.op, problem.shape, problem.dtype, tuple({**dict(_plain(problem).options), **kept}.items()))


def _richest(problem: Problem) -> Problem:
    """The problem with each option at its last value."""
    op = registry.op(problem.op)
    options = tuple((s.name, (s.values or (s.default,))[-1]) for s in op.options)
    return Problem(problem.op, problem.shape, problem.dtype, options)


@cache
def _variants(shapeless: Problem, backend: str) -> dict[str, Variant]:
    found = derive(shapeless, registry.op(shapeless.op), registry.templates(backend)).variants
    return {variant.name: variant for variant in found}


@cache
def _plan(shapeless: Problem, variant: str, config: tuple[tuple[str, int], ...], backend: str, arch: str) -> Plan:
    """Raises Rejected where the variant's maps cannot hold an operand."""
    found = _variants(shapeless, backend)[variant]
    return lower(found, dict(config), shapeless, backends.get(backend), _device(backend, arch))


# What the model says -------------------------------------------------------------------------------------------------


@cache
def _chosen(like: Problem, backend: str, arch: str) -> tuple[Choice, ...]:
    """The best choice that can be made and holds for contiguous arrays, and the best that holds for any."""
    where = _device(backend, arch)
    best: Choice | None = None
    for choice in _ranked(_plain(like), backend, arch):
        try:
            plan = _plan(_shapeless(like), choice.variant, choice.config, backend, arch)
        except Rejected:
            continue
        if best is None and launch.unmet(plan, launch.call_at(plan, like.shape, where.facts["threads"])[1]) is None:
            best = choice
        if takes_anything(plan):
            return (choice,) if best == choice else (best, choice) if best is not None else (choice,)
    raise AssertionError(f"no variant of {like.key} takes any arrays on {where.key}")


def takes_anything(plan: Plan) -> bool:
    """Does a plan hold whatever the sizes, strides and alignment of the arrays? (Sizes beyond 32 bits apart.)"""
    extents = launch.shapes(plan, dict.fromkeys(plan.sizes, AWKWARD))
    views = {}
    for operand in plan.operands:
        shape, itemsize = extents[operand.name], launch.itemsize(operand.dtype)
        strides = tuple(3 * stride for stride in launch.contiguous(shape))
        views[operand.name] = launch.ArrayView(itemsize, shape, strides, itemsize)
    return launch.unmet(plan, launch.names(plan, views, 1)) is None


def _ranked(plain: Problem, backend: str, arch: str) -> tuple[Choice, ...]:
    """Choices among deterministic variants that all options have under the same name, the fastest first."""
    key = (_stand_in(plain, backend, arch), backend, arch)
    if key not in _rankings:
        _rankings[key] = _ranking(*key)
    return _rankings[key]


_Key = tuple[Problem, str, str]
_rankings: dict[_Key, tuple[Choice, ...]] = {}


def _stand_in(problem: Problem, backend: str, arch: str) -> Problem:
    """The problem in the first dtype that the model cannot tell from its own."""
    rates = ceilings.guess(_device(backend, arch)).flops

    def seen(dtype: str) -> tuple[int, float | None]:
        return launch.itemsize(dtype), rates.get(dtype)

    alike = (d for d in registry.op(problem.op).dtypes[backend] if seen(d) == seen(problem.dtype))
    return Problem(problem.op, problem.shape, next(alike), problem.options)


def _ranking(plain: Problem, backend: str, arch: str) -> tuple[Choice, ...]:
    where = _device(backend, arch)
    rates = ceilings.guess(where)
    sizes = _sizes(plain, where)
    common = _variants(_richest(_shapeless(plain)), backend)
    fitting = [v for name, v in _variants(_shapeless(plain), backend).items() if v.deterministic and name in common]
    if backend == "cpu" or not all(v.templates[0].assumes for v in fitting if len(v.templates) == 1):
        fitting = [v for v in fitting if len(v.templates) == 1 or (backend != "cpu" and "SPLIT" in v.symbols)]
    else:  # a kernel that does it all holds some sizes only: several kernels take the others
        fitting = [v for v in fitting if len(v.templates) <= SEVERAL]
    found = []
    for variant in model.foremost(fitting, where, sizes, rates, MANY):
        space = FeasibleSpace(variant.params, variant.constraints, where, sizes)
        for _, config in model.rank(variant, space, where, sizes, rates, seed=0)[:TRIED]:
            alone = model.predict(variant, config, where, sizes, rates)  # not as one of many, which may differ
            found.append(Choice(alone.seconds, variant.name, tuple(sorted(config.items()))))
    return tuple(sorted(found))


def _sizes(problem: Problem, where: Device) -> dict[str, int]:
    sizes = registry.op(problem.op).sizes(problem)
    return {**sizes, "THREADS": int(where.threads), "ITEMSIZE": launch.itemsize(problem.dtype)}


# Files ---------------------------------------------------------------------------------------------------------------


def write(folder: Path, jobs: int = 2) -> None:
    """Write the files of all ops and classes below `folder`, in `jobs` processes."""
    ops = [op for op in registry.ops().values() if op.typical]
    keys = dict.fromkeys(
        (_stand_in(_plain(problem), of.backend, of.arch), of.backend, of.arch)
        for op in ops
        for of in CLASSES
        for problem in problems(op, of)
    )
    with ProcessPoolExecutor(jobs) as pool:
        rankings = dict(zip(keys, pool.map(_rank_one, keys), strict=True))
        groups = [(op.name, backend) for op in ops for backend in sorted(op.typical, reverse=True)]
        for _ in pool.map(partial(_write, folder, rankings), groups):
            pass


def _rank_one(key: _Key) -> tuple[Choice, ...]:
    return _ranking(*key)


def _write(folder: Path, rankings: dict[_Key, tuple[Choice, ...]], group: tuple[str, str]) -> None:
    """The files of an op and a backend: programs are derived once for all classes."""
    _rankings.update(rankings)
    op, backend = registry.op(group[0]), group[1]
    for of in (of for of in CLASSES if of.backend == backend and any(True for _ in problems(op, of))):
        path = folder / of.arch / f"{op.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        files.put(path, packed(records(op, of)))


def packed(found: Iterable[Record]) -> bytes:
    """The bytes of a file of defaults; what nobody measured is left out."""
    kept = ("schema", "problem", "fingerprint", "plan", "variant", "config", "derivation", "evidence")
    return pack({name: value for name, value in record.to_json().items() if name in kept} for record in found)


if __name__ == "__main__":
    import argparse

    from .lookup import shipped_folder

    parser = argparse.ArgumentParser("python -m kernsearch.records.defaults", description="Write the shipped defaults.")
    parser.add_argument("folder", nargs="?", type=Path, default=shipped_folder() / "defaults")
    write(parser.parse_args().folder)
