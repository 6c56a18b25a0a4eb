"""A candidate, and its lowering to a launch plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from .backends import Backend
from .backends.expressions import fold
from .derive import Variant
from .device import Device
from .errors import DeviceError
from .launch import itemsize
from .plan import Buffer, Operand, Plan
from .problem import Problem
from .program import Place, Program
from .registry import op as find_op
from .sizes import evaluate

MEMORY_SHARE = 0.8  # of the device's memory that a problem's arrays and their float64 reference may take


@dataclass(frozen=True, order=True)
class Candidate:
    """A variant by name and one value for each of its parameters, sorted by letter. The problem goes without saying."""

    variant: str
    config: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, variant: str, config: Mapping[str, int]) -> Candidate:
        return cls(variant, tuple(sorted(config.items())))

    @property
    def name(self) -> str:
        """Readable and unique: 'register_tiled KC=256 MR=8'."""
        return " ".join([self.variant, *(f"{letter}={value}" for letter, value in self.config)])


def lower(variant: Variant, config: Mapping[str, int], problem: Problem, backend: Backend, device: Device) -> Plan:
    """The launch plan of a variant at a config: kernels in order, and the arrays they read and write."""
    program = variant.program
    kernels = tuple(
        backend.kernel_plan(matched.binding(), matched.template, config, device) for matched in variant.kernels
    )
    return Plan(
        backend=backend.name,
        sizes=find_op(problem.op).letters,
        operands=tuple(operands(program)),
        scalars={name: 1.0 for name in dict.fromkeys(s for kernel in kernels for s in kernel.scalars)},
        workspace=tuple(_workspace(program, config)),
        kernels=kernels,
        assumes=tuple(
            dict.fromkeys([*_assumed(variant, config), *(text for kernel in kernels for text in kernel.assumes)])
        ),
        deterministic=variant.deterministic,
    )


def _assumed(variant: Variant, config: Mapping[str, int]) -> Iterator[str]:
    return (fold(text, config) for matched in variant.kernels for text in matched.assumes)


def operands(program: Program) -> Iterator[Operand]:
    """The caller's arrays: inputs, then outputs."""
    for name in program.inputs:
        field = program.nodes[name].fields[0]
        yield Operand(name, program.nodes[name].dtype, field.axes, _extents(program, field.axes, {}), "input")
    for out in program.outs:
        axes = program.at((out.node, out.field)).axes
        yield Operand(out.name, program.nodes[out.node].dtype, axes, _extents(program, axes, {}), "output")


def array_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes of the caller's arrays together."""
    return sum(itemsize(o.dtype) * prod(evaluate(e, sizes) for e in o.extents) for o in operands(program))


def check_memory(problem: Problem, device: Device) -> int:
    """How many elements the caller's arrays have. Raises DeviceError where they and their float64 reference take too
    much of a device's memory."""
    op = find_op(problem.op)
    sizes = op.sizes(problem)
    elements = sum(prod(evaluate(e, sizes) for e in o.extents) for o in operands(op.root(problem)))
    wanted, memory = elements * (itemsize(problem.dtype) + 8), int(device.memory_bytes)
    if wanted > MEMORY_SHARE * memory:
        raise DeviceError(
            f"{problem.key}: its arrays and their float64 reference take {wanted / 2**30:.1f} GiB, "
            f"{device.key} has {memory / 2**30:.1f} GiB"
        )
    return elements


def _workspace(program: Program, config: Mapping[str, int]) -> Iterator[Buffer]:
    outputs = {(out.node, out.field) for out in program.outs}
    places: list[Place] = sorted(program.materialised - outputs, key=lambda place: program.arrays[place])
    for place in places:
        axes = program.at(place).axes
        dtype = program.nodes[place[0]].dtype
        yield Buffer(program.arrays[place], dtype, axes, _extents(program, axes, config))


def _extents(program: Program, axes: tuple[str, ...], config: Mapping[str, int]) -> tuple[str, ...]:
    """Extents with the values of parameters folded in."""
    return tuple(
        re.sub(r"\b[A-Z]\w*\b", lambda word: str(config.get(word[0], word[0])), program.extents[axis]) for axis in axes
    )
