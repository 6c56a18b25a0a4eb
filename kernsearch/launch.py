"""From a plan and the arrays of a call to what each kernel is given: which buffers, which sizes, which scalars.

Light on purpose: the runtime calls this on the first call with new shapes or strides, and it imports nothing heavy.
Of addresses only the remainder modulo BASE_BYTES plays a part, and only in plans that assume something of it; so a
result may be kept for as long as shapes, strides, that remainder and the thread count stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from .errors import KernsearchError, ProblemError
from .plan import Buffer, KernelPlan, Operand, Plan
from .sizes import evaluate
from .workspace import ALIGNMENT, Workspace, laid_out

BASE_BYTES = ALIGNMENT  # names "A.base" are addresses modulo this; workspace and scratch start at a multiple of it
SCRATCH = "scratch"  # the buffer name that stands for a kernel's own scratch
ITEMSIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclass(frozen=True)
class ArrayView:
    """An array of the caller: `strides` in elements, one per dimension; `address` in bytes, of the first element."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True)
class Resolved:
    """One kernel launch of a call.

    buffers  names, in the order of ks_call.buffers; SCRATCH is this kernel's own scratch of `scratch_bytes`
    sizes    in the order of ks_call.sizes; strides are in elements
    scalars  in the order of ks_call.scalars
    """

    kernel: KernelPlan
    buffers: tuple[str, ...]
    sizes: tuple[int, ...]
    scalars: tuple[float, ...]
    scratch_bytes: int


@dataclass(frozen=True)
class Call:
    """A plan resolved for one set of shapes and strides; `workspace` is bytes by buffer name, `names` what expressions
    see: those of launches and maps are evaluated by the backend that has them."""

    kernels: tuple[Resolved, ...]
    workspace: dict[str, int]
    names: dict[str, int] = field(default_factory=dict)

    @cached_property
    def layout(self) -> Workspace:
        """Where workspace lies, and the scratch that kernels use one after the other. Computed once."""
        scratch = max((kernel.scratch_bytes for kernel in self.kernels), default=0)
        return laid_out({**self.workspace, SCRATCH: scratch}, [kernel.buffers for kernel in self.kernels])

    @property
    def workspace_bytes(self) -> int:
        """Bytes needed beside the caller's arrays, from a multiple of BASE_BYTES on."""
        return self.layout.size


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """C-order strides in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def itemsize(dtype: str) -> int:
    """Bytes of one element. Raises ProblemError for a dtype that no plan may hold."""
    try:
        return ITEMSIZES[dtype]
    except KeyError:
        raise ProblemError(f"dtype {dtype!r}: want one of {', '.join(sorted(ITEMSIZES))}") from None


def shapes(plan: Plan, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of each operand, in the caller's dimension order, at these sizes."""
    return {o.name: tuple(evaluate(e, sizes) for e in o.extents) for o in plan.operands}


def names(plan: Plan, arrays: Mapping[str, ArrayView], threads: int) -> dict[str, int]:
    """All that the plan's expressions may name: size letters, strides 'A.m', THREADS, ITEMSIZE.

    Raises ProblemError when an operand is missing, or arrays disagree about a size.
    """
    known: dict[str, int] = {"THREADS": threads}
    for operand in plan.operands:
        view = arrays.get(operand.name)
        if view is None:
            raise ProblemError(f"array {operand.name!r} is missing: want {', '.join(o.name for o in plan.operands)}")
        known[f"{operand.name}.base"] = view.address % BASE_BYTES
        if len(view.shape) != len(operand.axes):
            raise ProblemError(f"array {operand.name!r} has {len(view.shape)} dimensions, want {len(operand.axes)}")
        for axis, extent, size, stride in zip(operand.axes, operand.extents, view.shape, view.strides, strict=True):
            known[f"{operand.name}.{axis}"] = stride
            if extent in plan.sizes and known.setdefault(extent, size) != size:
                raise ProblemError(f"array {operand.name!r} has {size} along {axis!r}, another array {known[extent]}")
        known.setdefault("ITEMSIZE", view.itemsize)
    _check_extents(plan.operands, arrays, known)
    for buffer in plan.workspace:
        extents = tuple(evaluate(e, known) for e in buffer.extents)
        strides = contiguous(extents)
        known.update({f"{buffer.name}.{axis}": s for axis, s in zip(buffer.axes, strides, strict=True)})
        known[f"{buffer.name}.base"] = 0
    return known


def _check_extents(operands: tuple[Operand, ...], arrays: Mapping[str, ArrayView], known: Mapping[str, int]) -> None:
    for operand in operands:
        for axis, extent, size in zip(operand.axes, operand.extents, arrays[operand.name].shape, strict=True):
            if (want := evaluate(extent, known)) != size:
                raise ProblemError(f"array {operand.name!r} has {size} along {axis!r}, want {want}")


def unmet(plan: Plan, known: Mapping[str, int]) -> str | None:
    """The first thing that the plan assumes and this call does not give, or None."""
    return next((rule for rule in plan.assumes if not evaluate(rule, known)), None)


def buffer_bytes(buffer: Buffer, known: Mapping[str, int]) -> int:
    return prod(evaluate(e, known) for e in buffer.extents) * itemsize(buffer.dtype)


def resolve(
    plan: Plan, arrays: Mapping[str, ArrayView], scalars: Mapping[str, float] | None = None, threads: int = 1
) -> Call:
    """Evaluate a plan's expressions for these arrays. Does not look at `plan.assumes`; see `unmet`.

    Raises ProblemError for arrays that do not fit the plan or a scalar that the plan does not have.
    """
    given = dict(scalars or {})
    if unknown := sorted(set(given) - set(plan.scalars)):
        raise ProblemError(f"scalar {unknown[0]!r}: want {', '.join(plan.scalars) or 'none'}")
    values = {**plan.scalars, **given}
    known = names(plan, arrays, threads)
    kernels = tuple(
        Resolved(
            kernel,
            kernel.buffers,
            tuple(evaluate(e, known) for e in kernel.sizes),
            tuple(float(values[s]) for s in kernel.scalars),
            evaluate(kernel.scratch, known),
        )
        for kernel in plan.kernels
    )
    return Call(kernels, {b.name: buffer_bytes(b, known) for b in plan.workspace}, known)


def call_at(plan: Plan, shape: tuple[int, ...], threads: int) -> tuple[Call, dict[str, int]]:
    """A plan resolved for C-contiguous arrays at a shape, and the names that its expressions see there."""
    extents = shapes(plan, dict(zip(plan.sizes, shape, strict=True)))
    views = {
        o.name: ArrayView(0, extents[o.name], contiguous(extents[o.name]), itemsize(o.dtype)) for o in plan.operands
    }
    return resolve(plan, views, threads=threads), names(plan, views, threads)


def flaw(plan: Plan, shape: tuple[int, ...]) -> str | None:
    """Why a plan cannot be launched at any shape like this one, as one that was damaged on disk, or None."""
    if not plan.kernels:
        return "it has no kernel"
    known = {*(o.name for o in plan.operands), *(b.name for b in plan.workspace), SCRATCH}
    used = [name for kernel in plan.kernels for name in kernel.buffers]
    if unknown := sorted(set(used) - known):
        return f"no array is called {unknown[0]!r}"
    if unwritten := [o.name for o in plan.operands if o.role == "output" and o.name not in used]:
        return f"no kernel writes {unwritten[0]!r}"
    try:
        call, seen = call_at(plan, shape, 1)
        unmet(plan, seen)
        if min(0, *call.workspace.values(), *(kernel.scratch_bytes for kernel in call.kernels)) < 0:
            return "its workspace is less than nothing"
    except (
        ArithmeticError, KernsearchError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError,
    ) as error:  # fmt: skip
        return str(error) if isinstance(error, ValueError | KernsearchError) else f"{type(error).__name__}: {error}"
    return None
