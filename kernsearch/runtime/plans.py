"""The runtime: from a problem to a plan that can be called. Needs no program, no rule and no search.

    plan = load("gemm", shape=(2304, 1544, 4096))
    plan.hit, plan.reasons       # exact, compatible, nearest or default, and why not better
    d = plan(a, b)               # NumPy arrays on the CPU; on a device CuPy arrays or tensors
    plan(a, b, out=d)            # writes into d

The first call of a plan compiles its kernels, once a process and synchronously; later calls take a few microseconds
beside the kernels. Plans may be called from many threads at once and, on the CPU, after a fork.

What is common to all plans is here; `host` knows arrays of this process, `device` those on a GPU.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .. import backends, launch, records, registry
from ..backends import Compiled
from ..device import Device
from ..errors import ArrayError, CacheError, ProblemError, RefusedError, Rejected
from ..plan import KernelPlan, Plan
from ..problem import Problem
from ..records import lookup

if TYPE_CHECKING:
    from ..records.lookup import Hit

KEEP_PLANS = 4096  # plans, and launchers a thread, that are remembered before all are forgotten


class Memory(threading.local):
    """What a thread remembers of its calls. Replaced as a whole when something that launchers depend on changes.

    calls  by a key of whoever remembers them
    call   makes a call like an earlier one, of arrays of this process: its output, or None when it is not known or the
           arrays do not lie as they must. See `host.learn`.
    table  where `call` looks
    """

    def __init__(self) -> None:
        self.calls: dict[Any, Any] = {}
        self.call: Callable[..., Any] = unknown
        self.table: Any = None


def unknown(*arguments: Any) -> None:
    """`Memory.call` of a thread that knows no call."""


memory = Memory()
_plans: dict[Any, CallPlan] = {}
_compiled: dict[tuple[int, int], tuple[Plan, tuple[Any, ...]]] = {}  # by identity: one default serves many shapes
refused: list[Plan] = []  # what the compiler did not take: the next record or default serves in its place
_lock = threading.RLock()  # held while loading and compiling; not while calling


def forget() -> None:
    """Forget what was loaded: the next call looks records up again. Objects that were compiled stay loaded."""
    global memory
    with _lock:
        _plans.clear()
        refused.clear()
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


class CallPlan(ABC):
    """The plan that serves a problem, ready to be called.

    problem          what it computes
    hit, reasons     which kind of record serves it (exact, compatible, nearest, default), and what was passed over
    record, path     that record and its file (None for a default)
    workspace_bytes  memory that a call needs beside the arrays
    """

    def __init__(self, problem: Problem, device: Device, hit: Hit, policy: str = "compatible"):
        self.problem, self.device, self.policy = problem, device, policy
        self.hit, self.record, self.reasons, self.path = hit.kind, hit.record, hit.reasons, hit.path
        self.plan = hit.record.plan
        self.inputs = tuple(i for i, o in enumerate(self.plan.operands) if o.role == "input")
        self.outputs = tuple(i for i, o in enumerate(self.plan.operands) if o.role != "input")
        self.shapes = launch.shapes(self.plan, dict(zip(self.plan.sizes, problem.shape, strict=True)))

    def __repr__(self) -> str:
        return f"<kernsearch plan {self.problem.key}: {self.hit}, {self.record.variant}>"

    @property
    @abstractmethod
    def threads(self) -> int:
        """THREADS of the plan's expressions."""

    @property
    def workspace_bytes(self) -> int:
        return lookup.call_at(self.plan, self.problem.shape, self.threads)[0].workspace_bytes

    @abstractmethod
    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Compute. Inputs in the plan's order (gemm: a, b, bias, c), or by name; scalars by name (alpha, beta)."""

    def _bind(self, arrays: Sequence[Any], named: dict[str, Any]) -> tuple[dict[int, Any], tuple[float, ...]]:
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

    @abstractmethod
    def _checked(self, which: int, array: Any) -> Any:
        """The array for an operand in the form that `launch` takes. Raises DtypeError or ArrayError."""

    def functions(self) -> tuple[Any, ...]:
        """What `_loaded` gives for each kernel. Compiles them when that has not been done, in one thread only."""
        key = id(self.plan), self.device.index
        found = _compiled.get(key)
        if found is None:
            with _lock:
                found = _compiled.get(key)
                if found is None:
                    found = (self.plan, tuple(self._function(kernel) for kernel in self.plan.kernels))
                    _compiled[key] = found
        return found[1]

    def _function(self, kernel: KernelPlan) -> Any:
        try:
            compiled = backends.get(self.device.backend).compile(kernel, self.device)
        except Rejected as error:
            raise RefusedError(f"kernel {kernel.template} of {self.problem.key} does not compile: {error}") from error
        try:
            return self._loaded(kernel, compiled)
        except (OSError, AttributeError) as error:  # a folder mounted noexec, or cleared in this moment; no such entry
            raise CacheError(f"the object of kernel {kernel.template} cannot be loaded: {error}") from error

    @abstractmethod
    def _loaded(self, kernel: KernelPlan, compiled: Compiled) -> Any:
        """A compiled kernel, loaded so that the launcher can use it."""


def number(name: str, value: Any) -> float:
    """A scalar argument as a float. Raises ProblemError."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ProblemError(f"{name} {value!r}: want a real number")


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
    plan = load_problem(problem, where, policy)
    if of_calls := [name for name in options if name in plan.plan.scalars]:
        name = of_calls[0]
        raise ProblemError(
            f"{name} {options[name]!r} is of the call, not of the plan: want plan(..., {name}={options[name]!r})"
        )
    return plan


def load_problem(problem: Problem, device: Device, policy: str = "compatible") -> CallPlan:
    """As `load`, for a problem and device at hand."""
    store = lookup.store()
    key = (problem, device.key, device.index, policy, store)
    found = _plans.get(key)
    if found is None:
        with _lock:
            found = _plans.get(key)
            if found is None:
                if len(_plans) >= KEEP_PLANS:
                    _plans.clear()
                try:
                    hit = store.find(problem, device, policy)
                except CacheError:
                    registry.op(problem.op).root(problem)  # options that contradict each other say so
                    raise
                found = _plans[key] = _kind(device)(problem, device, hit, policy)
    return found


def load_default(problem: Problem, device: Device) -> CallPlan:
    """The plan of the default candidate, whatever records there are. Raises CacheError when there is none."""
    return _kind(device)(problem, device, lookup.store().default(problem, device), "compatible")


def _kind(device: Device) -> type[CallPlan]:
    """The class of plans for arrays where a device's kernels want them."""
    if backends.get(device.backend).host_memory:
        from .host import HostPlan

        return HostPlan
    from .device import DevicePlan

    return DevicePlan


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
