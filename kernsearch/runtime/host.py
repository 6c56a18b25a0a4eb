"""Plans on arrays of this process: NumPy's, of any strides, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import launch
from ..backends import Compiled
from ..backends.cpu import known
from ..backends.cpu.call import Launcher, address_of, function
from ..device import Device
from ..errors import ArrayError, DtypeError
from ..namespace import numpy_dtype
from ..plan import KernelPlan
from ..problem import Problem
from . import libraries, plans
from .strides import check_apart, offsets, overlap, span, usable, view_of

if TYPE_CHECKING:
    from ..records.lookup import Hit


def learn(
    arguments: tuple[Any, ...],
    bound: Bound | None,
    operands: Sequence[int],
    output: int,
    scalars: Sequence[int | float],
    make: tuple[Any, ...],
    *,
    in_place: int = -1,
    owners: Sequence[Any] = (),
) -> None:
    """Have `plans.memory.call(*arguments)` of this thread make such a call from now on; see `known.Calls.add`."""
    memory = plans.memory
    if bound is None:
        return
    if memory.table is None and (made := known.table()) is not None:
        memory.table, memory.call = made
    if memory.table is not None:
        memory.table.add(
            arguments, bound.launcher, operands=operands, spans=bound.spans, mask=bound.mask, output=output,
            scalars=scalars, make=make, in_place=in_place, owners=owners,
        )  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """A launcher for arrays of certain shapes and strides that can be used as they are.

    spans   for each operand (first byte, one past the last) relative to its address
    mask    address bits that must be 0 for every operand
    """

    launcher: Launcher
    spans: tuple[tuple[int, int], ...]
    mask: int


class HostPlan(plans.CallPlan):
    """A plan whose kernels work on NumPy arrays."""

    def __init__(self, problem: Problem, device: Device, hit: Hit, policy: str = "compatible"):
        super().__init__(problem, device, hit, policy)
        self.dtypes = {operand.name: numpy_dtype(operand.dtype) for operand in self.plan.operands}
        self._scalars = tuple(self.plan.scalars.values())

    @property
    def threads(self) -> int:
        return plans.get_threads()

    def __call__(self, *arrays: np.ndarray, out: Any = None, **named: Any) -> Any:
        """Compute. Inputs in the plan's order (gemm: a, b, bias, c), or by name; scalars by name (alpha, beta).

        Arrays have the problem's shapes and dtypes and any strides. `out` may overlap inputs. Raises ArrayError,
        DtypeError or ProblemError for what does not fit, CompilerError when nothing can compile the kernels. Several
        outputs are returned, and given, as a tuple in the plan's order.
        """
        if not named:
            result = plans.memory.call(self, *arrays, out)
            if result is not None:
                return result
        if len(self.outputs) > 1:
            return self._several(arrays, out, named)
        (where,) = self.outputs
        arguments = (self, *arrays, out)
        given, scalars = self._bind(arrays, named)
        operand = self.plan.operands[where]
        if out is None:
            out = np.empty(self.shapes[operand.name], self.dtypes[operand.name])
        given[where] = self._checked(where, out)
        check_output(operand.name, given[where])
        operands = [given[i] for i in range(len(self.plan.operands))]
        self.launch(operands, scalars)
        if not named:
            places = {i: at for at, i in enumerate((*self.inputs, where), 1)}
            order = [places[i] for i in range(len(operands))]
            make = (self.shapes[operand.name], self.dtypes[operand.name])
            learn(arguments, self.remembered(operands), order, where, scalars, make, owners=(self,))
        return out

    def _several(self, arrays: Sequence[Any], out: Any, named: dict[str, Any]) -> tuple[np.ndarray, ...]:
        names = [self.plan.operands[o].name for o in self.outputs]
        given, scalars = self._bind(arrays, named)
        if out is None:
            out = [np.empty(self.shapes[name], self.dtypes[name]) for name in names]
        if not isinstance(out, tuple | list) or len(out) != len(names):
            raise ArrayError(f"out: want {len(names)} arrays, {', '.join(names)}")
        for o, array in zip(self.outputs, out, strict=True):
            given[o] = self._checked(o, array)
            check_output(self.plan.operands[o].name, given[o])
        for one, other in combinations(self.outputs, 2):
            if np.shares_memory(given[one], given[other]):
                both = f"{self.plan.operands[one].name} and {self.plan.operands[other].name}"
                raise ArrayError(f"out: {both} share memory: want arrays that do not")
        self.launch([given[i] for i in range(len(self.plan.operands))], scalars)
        return tuple(out)

    def _checked(self, which: int, array: Any) -> np.ndarray:
        name = self.plan.operands[which].name
        if type(array) is not np.ndarray and libraries.of(array) is not None:
            raise ArrayError(f"{name} is {libraries.whereabouts(array)}, this plan runs on the CPU: want a NumPy array")
        array = on_host(name, array)
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
            return plans.memory.calls[key]
        except KeyError:
            return plans.remember(key, self.bound(arrays))

    def bound(self, arrays: Sequence[np.ndarray]) -> Bound | None:
        """A launcher for this thread and these shapes and strides; None when such arrays must be copied first."""
        itemsizes = [array.itemsize for array in arrays]
        views = {o.name: view_of(array) for o, array in zip(self.plan.operands, arrays, strict=True)}
        threads = plans.get_threads()
        if not all(map(usable, arrays)):
            return None
        if launch.unmet(self.plan, launch.names(self.plan, views, threads)):
            return None
        call = launch.resolve(self.plan, views, threads=threads)
        launcher = Launcher(self.plan, call, self.functions(), threads)
        return Bound(launcher, tuple(span(array) for array in arrays), max(itemsizes) - 1)

    def _loaded(self, kernel: KernelPlan, compiled: Compiled) -> int:
        """The address of the compiled kernel. Raises OSError or AttributeError when it cannot be loaded."""
        return function(compiled.path, compiled.entry)

    def _overlaps(self, arrays: Sequence[np.ndarray], addresses: Sequence[int], spans: Sequence[tuple[int, int]],
                  elementwise: Sequence[str]) -> bool:  # fmt: skip
        for o in self.outputs:
            for i in self.inputs:
                if overlap(addresses[o], spans[o], addresses[i], spans[i]):
                    same = addresses[i] == addresses[o] and arrays[i].strides == arrays[o].strides
                    if not (same and self.plan.operands[i].name in elementwise):
                        return True
        return False

    def _launch_tamed(self, arrays: list[np.ndarray], scalars: tuple[float, ...]) -> None:
        """The slow path: copies what the kernels cannot take as it is, results back."""
        wanted = list(arrays)
        for i, operand in enumerate(self.plan.operands):
            if not usable(arrays[i]) or address_of(arrays[i]) % arrays[i].itemsize:
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
            unmet = launch.unmet(self.plan, launch.names(self.plan, views, plans.get_threads()))
            if unmet is None:
                return
            for i, operand in enumerate(self.plan.operands):
                if f"{operand.name}." in unmet and not arrays[i].flags.c_contiguous:
                    arrays[i] = _copy(arrays[i], operand.role)


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


def checked(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of the caller's as NumPy's. Raises DtypeError or ArrayError, in one line, for another dtype or shape."""
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"{name} is {type(array).__name__}: want a NumPy array")
    if array.dtype.newbyteorder("=") != dtype:
        raise DtypeError(f"{name} is {array.dtype}: want {dtype}; nothing is converted")
    if array.shape != shape:
        raise ArrayError(f"{name} has shape {array.shape}: want {shape}")
    return np.asarray(array)


def on_host(name: str, array: Any) -> np.ndarray:
    """An argument as a NumPy array. Raises DtypeError for what NumPy cannot read, like PyTorch's bfloat16."""
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{name} is a masked array, whose mask would have no say: want a plain one")
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise DtypeError(
            f"{name} is {type(array).__name__}, which NumPy cannot read ({said}): want an array"
        ) from error


def output(array: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Where a result goes: the caller's `out`, or a new array for None. Raises DtypeError or ArrayError for one that
    does not fit, that is read-only, or that visits an element twice."""
    if array is None:
        return np.empty(shape, dtype)
    found = checked("out", array, shape, dtype)
    check_output("out", found)
    return found


def check_output(name: str, array: np.ndarray) -> None:
    """Raise ArrayError for an array that no result can be written to."""
    if not array.flags.writeable:
        raise ArrayError(f"{name} is read-only: want an array that can be written")
    check_apart(name, array.shape, array.strides, array.itemsize)
