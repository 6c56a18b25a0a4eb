"""The runtime: from a problem to a plan that can be called. Needs no program, no rule and no search.

    plan = load("gemm", shape=(2304, 1544, 4096))
    plan.hit, plan.reasons       # exact, compatible, nearest or default, and why not better
    d = plan(a, b)               # NumPy arrays; plan(a, b, out=d) writes into d

The first call of a plan compiles its kernels, once a process and synchronously; later calls take a few microseconds
beside the kernels. Plans may be called from many threads at once and after a fork.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backends, launch, records, registry
from ..backends.cpu.call import Launcher, address_of, function
from ..device import Device
from ..errors import ArrayError, CacheError, CompilerError, DtypeError, ProblemError, Rejected
from ..plan import KernelPlan, Plan
from ..problem import Problem
from ..records import lookup
from .strides import offsets, overlap, span, usable, view_of

if TYPE_CHECKING:
    from ..records.lookup import Hit

KEEP_PLANS = 4096  # plans, and launchers a thread, that are remembered before all are forgotten


class Memory(threading.local):
    """What a thread remembers of its calls. Replaced as a whole when something that launchers depend on changes."""

    def __init__(self) -> None:
        self.calls: dict[Any, Any] = {}


memory = Memory()
_plans: dict[Any, CallPlan] = {}
_compiled: dict[int, tuple[Plan, tuple[int, ...]]] = {}  # by identity: one default serves many shapes
_lock = threading.RLock()  # held while loading and compiling; not while calling


def forget() -> None:
    """Forget what was loaded: the next call looks records up again. Objects that were compiled stay loaded."""
    global memory
    with _lock:
        _plans.clear()
    get_threads.cache_clear()
    device_of.cache_clear()
    memory = Memory()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that held it in the parent does not exist in the child


os.register_at_fork(after_in_child=_new_lock)
records.on_write(forget)


@cache
def get_threads() -> int:
    """How many threads a call may use, the calling one included."""
    from ..backends.cpu import pool

    return pool.get_threads()


@cache
def device_of(spec: str) -> Device:
    """The device that a person names: auto, cpu, cuda:0. Raises DeviceError."""
    return backends.resolve(spec)[1]


def set_threads(count: int) -> None:
    """Let calls use up to `count` threads. Raises ProblemError for anything but a whole number of at least 1."""
    from ..backends.cpu import pool

    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ProblemError(f"threads {count!r}: want a whole number of at least 1")
    pool.set_threads(count)
    forget()


@dataclass(frozen=True)
class Bound:
    """A launcher for arrays of certain shapes and strides that can be used as they are.

    spans   for each operand (first byte, one past the last) relative to its address
    mask    address bits that must be 0 for every operand
    """

    launcher: Launcher
    spans: tuple[tuple[int, int], ...]
    mask: int


class CallPlan:
    """The plan that serves a problem, ready to be called.

    problem          what it computes
    hit, reasons     which kind of record serves it (exact, compatible, nearest, default), and what was passed over
    record, path     that record and its file (None for a default)
    workspace_bytes  memory that a call needs beside the arrays
    """

    def __init__(self, problem: Problem, device: Device, hit: Hit):
        self.problem, self.device = problem, device
        self.hit, self.record, self.reasons, self.path = hit.kind, hit.record, hit.reasons, hit.path
        self.plan = hit.record.plan
        self.inputs = tuple(i for i, o in enumerate(self.plan.operands) if o.role == "input")
        self.outputs = tuple(i for i, o in enumerate(self.plan.operands) if o.role != "input")
        self.shapes = launch.shapes(self.plan, dict(zip(self.plan.sizes, problem.shape, strict=True)))
        self.dtypes = {operand.name: np.dtype(operand.dtype) for operand in self.plan.operands}

    def __repr__(self) -> str:
        return f"<kernsearch plan {self.problem.key}: {self.hit}, {self.record.variant}>"

    @property
    def workspace_bytes(self) -> int:
        return lookup.call_at(self.plan, self.problem.shape, get_threads())[0].workspace_bytes

    def __call__(self, *arrays: np.ndarray, out: np.ndarray | None = None, **named: Any) -> np.ndarray:
        """Compute. Inputs in the plan's order (gemm: a, b, bias, c), or by name; scalars by name (alpha, beta).

        Arrays have the problem's shapes and dtypes and any strides. `out` may overlap inputs. Raises ArrayError,
        DtypeError or ProblemError for what does not fit, CompilerError when nothing can compile the kernels.
        """
        given, scalars = self._bind(arrays, named)
        (where,) = self.outputs
        operand = self.plan.operands[where]
        if out is None:
            out = np.empty(self.shapes[operand.name], self.dtypes[operand.name])
        given[where] = self._checked(where, out)
        if not out.flags.writeable:
            raise ArrayError("out is read-only: want an array that can be written")
        self.launch([given[i] for i in range(len(self.plan.operands))], scalars)
        return out

    def _bind(self, arrays: Sequence[Any], named: dict[str, Any]) -> tuple[dict[int, np.ndarray], tuple[float, ...]]:
        names = [self.plan.operands[i].name for i in self.inputs]
        like = f"want {', '.join(names)}"
        if len(arrays) > len(names):
            raise ArrayError(f"{len(arrays)} arrays: {like}")
        given = {i: self._checked(i, array) for i, array in zip(self.inputs, arrays, strict=False)}
        by_name = {self.plan.operands[i].name.lower(): i for i in self.inputs}
        values = dict(self.plan.scalars)
        for name, value in named.items():
            if name in values:
                values[name] = number(name, value)
            elif name.lower() in by_name and by_name[name.lower()] not in given:
                given[by_name[name.lower()]] = self._checked(by_name[name.lower()], value)
            else:
                raise ArrayError(f"argument {name!r}: {like}, each once, or a scalar of {', '.join(values) or 'none'}")
        if missing := [self.plan.operands[i].name for i in self.inputs if i not in given]:
            raise ArrayError(f"array {missing[0]} is missing: {like}")
        return given, tuple(values.values())

    def _checked(self, which: int, array: Any) -> np.ndarray:
        name = self.plan.operands[which].name
        array = np.asarray(array)
        if array.dtype != self.dtypes[name] and array.dtype.newbyteorder("=") != self.dtypes[name]:
            raise DtypeError(f"{name} is {array.dtype}: want {self.dtypes[name]}; nothing is converted")
        if array.shape != self.shapes[name]:
            raise ArrayError(f"{name} has shape {array.shape}: want {self.shapes[name]}")
        return array

    def launch(self, arrays: Sequence[np.ndarray], scalars: tuple[float, ...], elementwise: Sequence[str] = ()) -> None:
        """Run on checked arrays in the order of the plan's operands; scalars in that of `plan.scalars`.

        `elementwise` names inputs of which each element is read only to write the same element of the output, so that
        such an input may be the output.
        """
        bound = self.remembered(arrays)
        if bound is not None:
            addresses = [address_of(array) for array in arrays]
            if not (misplaced(addresses, bound.mask) or self._overlaps(arrays, addresses, bound.spans, elementwise)):
                bound.launcher.run(addresses, scalars)
                return
        self._launch_tamed(list(arrays), scalars)

    def launch_each(self, arrays: Sequence[np.ndarray], batch: tuple[int, ...], scalars: tuple[float, ...]) -> None:
        """As `launch` for stacks of matrices whose leading dimensions broadcast to `batch`; 1-D arrays are shared."""
        arrays = list(arrays)
        for i in self.inputs:
            if any(np.may_share_memory(arrays[i], arrays[o]) for o in self.outputs):
                arrays[i] = _copy(arrays[i], "input")
        places = [[0] * math.prod(batch) if a.ndim < 2 else offsets(a, batch) for a in arrays]
        first = [a if a.ndim < 2 else a[(0,) * (a.ndim - 2)] for a in arrays]
        bound, base = self.bound(first), [address_of(a) for a in arrays]
        each = [[b + p for b, p in zip(base, steps, strict=True)] for steps in zip(*places, strict=True)]
        if bound is not None and not any(misplaced(addresses, bound.mask) for addresses in each):
            for addresses in each:
                bound.launcher.run(addresses, scalars)
            return
        stacks = [a if a.ndim < 2 else _stack(a, batch) for a in arrays]
        for index in np.ndindex(batch):
            self.launch([a if a.ndim < 2 else a[index] for a in stacks], scalars)

    def remembered(self, arrays: Sequence[np.ndarray]) -> Bound | None:
        """As `bound`, made once."""
        key = (self, *[(a.shape, a.strides, a.dtype) for a in arrays])
        try:
            return memory.calls[key]
        except KeyError:
            return remember(key, self.bound(arrays))

    def bound(self, arrays: Sequence[np.ndarray]) -> Bound | None:
        """A launcher for this thread and these shapes and strides; None when such arrays must be copied first."""
        itemsizes = [array.itemsize for array in arrays]
        views = {o.name: view_of(array) for o, array in zip(self.plan.operands, arrays, strict=True)}
        threads = get_threads()
        if not all(usable(array, o.role) for o, array in zip(self.plan.operands, arrays, strict=True)):
            return None
        if launch.unmet(self.plan, launch.names(self.plan, views, threads)):
            return None
        call = launch.resolve(self.plan, views, threads=threads)
        launcher = Launcher(self.plan, call, self.functions(), threads)
        return Bound(launcher, tuple(span(array) for array in arrays), max(itemsizes) - 1)

    def functions(self) -> tuple[int, ...]:
        """Addresses of the compiled kernels. Compiles them when that has not been done, in one thread only."""
        found = _compiled.get(id(self.plan))
        if found is None:
            with _lock:
                found = _compiled.get(id(self.plan))
                if found is None:
                    found = (self.plan, tuple(self._function(kernel) for kernel in self.plan.kernels))
                    _compiled[id(self.plan)] = found
        return found[1]

    def _function(self, kernel: KernelPlan) -> int:
        try:
            compiled = backends.get(self.device.backend).compile(kernel, self.device)
        except Rejected as error:
            raise CompilerError(f"kernel {kernel.template} of {self.problem.key} does not compile: {error}") from error
        try:
            return function(compiled.path, compiled.entry)
        except (OSError, AttributeError) as error:  # a folder mounted noexec, or cleared in this moment; no such entry
            raise CacheError(f"the object of kernel {kernel.template} cannot be loaded: {error}") from error

    def _overlaps(self, arrays: Sequence[np.ndarray], addresses: Sequence[int], spans: Sequence[tuple[int, int]],
                  elementwise: Sequence[str]) -> bool:  # fmt: skip
        for o in self.outputs:
            for i in self.inputs:
                same = addresses[i] == addresses[o] and arrays[i].strides == arrays[o].strides
                if same and self.plan.operands[i].name in elementwise:
                    continue
                if overlap(addresses[o], spans[o], addresses[i], spans[i]):
                    return True
        return False

    def _launch_tamed(self, arrays: list[np.ndarray], scalars: tuple[float, ...]) -> None:
        """The slow path: copies what the kernels cannot take as it is, results back."""
        wanted = list(arrays)
        for i, operand in enumerate(self.plan.operands):
            if not usable(arrays[i], operand.role) or address_of(arrays[i]) % arrays[i].itemsize:
                arrays[i] = _copy(arrays[i], operand.role)
        self._meet_assumptions(arrays)
        for i in self.inputs:
            if any(np.may_share_memory(arrays[i], arrays[o]) for o in self.outputs):
                arrays[i] = _copy(arrays[i], "input")
        bound = self.bound(arrays)
        if bound is None:
            raise ArrayError(f"{self!r} assumes {', '.join(self.plan.assumes)}, which these arrays cannot give")
        bound.launcher.run([address_of(array) for array in arrays], scalars)
        for o in self.outputs:
            if arrays[o] is not wanted[o]:
                wanted[o][...] = arrays[o]

    def _meet_assumptions(self, arrays: list[np.ndarray]) -> None:
        """Copy each operand of which a plan assumes more than it has."""
        for _ in self.plan.operands:
            views = {o.name: view_of(array) for o, array in zip(self.plan.operands, arrays, strict=True)}
            unmet = launch.unmet(self.plan, launch.names(self.plan, views, get_threads()))
            if unmet is None:
                return
            for i, operand in enumerate(self.plan.operands):
                if f"{operand.name}." in unmet and not arrays[i].flags.c_contiguous:
                    arrays[i] = _copy(arrays[i], operand.role)


def number(name: str, value: Any) -> float:
    """A scalar argument as a float. Raises ProblemError."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ProblemError(f"{name} {value!r}: want a real number")


def _copy(array: np.ndarray, role: str) -> np.ndarray:
    """A C-contiguous, aligned, native array of an input's values; for an output one with nothing in it yet."""
    dtype = array.dtype.newbyteorder("=")
    return np.array(array, dtype, order="C", copy=True) if role == "input" else np.empty(array.shape, dtype)


def _stack(array: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Matrices with leading dimensions `batch`; an output, which has them already, stays writable."""
    shape = (*batch, *array.shape[-2:])
    return array if array.shape == shape else np.broadcast_to(array, shape)


def misplaced(addresses: Sequence[int], mask: int) -> bool:
    """Is an address not a multiple of the itemsize?"""
    return any(address & mask for address in addresses)


def remember(key: Any, value: Any) -> Any:
    """Keep what a thread wants to find again; forgets everything when there is too much."""
    calls = memory.calls
    if len(calls) >= KEEP_PLANS:
        calls.clear()
    calls[key] = value
    return value


def load(
    op: str,
    *,
    shape: Sequence[int],
    dtype: Any = None,
    device: str = "auto",
    layout: str | None = None,
    epilogue: str | None = None,
    policy: str = "compatible",
    **options: Any,
) -> CallPlan:
    """The best known plan for a problem: the user's record, a shipped one, that of a near shape, or the default.

    shape    sizes in the op's order; gemm: (M, N, K)
    dtype    "float32", np.float64 ...; default: the backend's first
    layout, epilogue, options   of the op, when it has them; gemm: layout "nn", epilogue "none"
    policy   strict: no record made with another compiler, driver, measuring policy or package version;
             compatible: those too; any: also records of shapes far away
    Raises ProblemError, DeviceError, SpaceError or CacheError in one line. Does not compile: the first call does.
    """
    where = device_of(device)
    problem = registry.problem(op, shape, dtype, backend=where.backend, layout=layout, epilogue=epilogue, **options)
    return load_problem(problem, where, policy)


def load_problem(problem: Problem, device: Device, policy: str = "compatible") -> CallPlan:
    """As `load`, for a problem and device at hand."""
    store = lookup.store()
    key = (problem, device.key, policy, store)
    found = _plans.get(key)
    if found is None:
        with _lock:
            found = _plans.get(key)
            if found is None:
                if len(_plans) >= KEEP_PLANS:
                    _plans.clear()
                found = _plans[key] = CallPlan(problem, device, store.find(problem, device, policy))
    return found


def why(
    op: str,
    *,
    shape: Sequence[int],
    dtype: Any = None,
    device: str = "auto",
    policy: str = "compatible",
    **options: Any,
) -> dict[str, Any]:
    """Which record serves a problem and why not the others: {"hit", "reasons", "record" (path or None), "variant"}."""
    where = device_of(device)
    problem = registry.problem(op, shape, dtype, backend=where.backend, **options)
    hit = lookup.store().find(problem, where, policy)
    path = None if hit.path is None else str(hit.path)
    return {"hit": hit.kind, "reasons": list(hit.reasons), "record": path, "variant": hit.record.variant}
