"""Calls on device arrays like one that this thread made before: straight to its kernels.

Preparing a call takes a hundred microseconds of Python: views, checks, which plan, how it is launched. All of that is
decided by shapes, strides, dtypes, alignments and options, so a call that has these in common with an earlier one needs
addresses only, and to know that its output lies apart from what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..launch import BASE_BYTES, ArrayView
from . import plans
from .device import Bound, DevicePlan
from .libraries import BY_TYPE, Library
from .strides import apart
from .views import canonical

Key = tuple[Any, ...]


class _Ready(NamedTuple):
    """How a call goes. For each operand of the plan:

    sources  which array of the call it is; the output is the last
    offsets  bytes from the address of that array to where the kernels' operand begins

    output    which operand is the output; in_place: those that may be where it is
    plain     the operands are the arrays in their order, each from its beginning
    scalars   in the order of `plan.scalars`
    shape     of a new result
    """

    bound: Bound
    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    output: int
    in_place: frozenset[int]
    plain: bool
    scalars: tuple[float, ...]
    shape: tuple[int, ...]


class Asked:
    """A call: the library of its arrays, inputs (None where there is none), the output or None for a new one, and what
    else decides how it goes. `key` is None for a call that cannot be known again."""

    def __init__(self, library: Library | None, inputs: Sequence[Any], out: Any, *how: Any):
        self.key: Key | None = None
        self._library, self._first, self._out = library, inputs[0], out
        if library is None:
            return
        told, addresses, form, kind = [*how], [], library.form, type(inputs[0])
        for array in (*inputs, out):
            if array is None:
                address, what = 0, None
            elif type(array) is kind or BY_TYPE.get(type(array)) is library:
                address, what = form(array)
            else:
                return
            told.append(what)
            addresses.append(address)
        self._addresses = addresses
        self.key = tuple(told)

    def again(self) -> Any:
        """The result, computed as an earlier call like this one was; None when there was none, or when this one has to
        be looked at after all."""
        if self.key is None:
            return None
        try:
            ready: _Ready | None = plans.memory.calls.get(self.key)
        except TypeError:  # an option that cannot be hashed
            self.key = None
            return None
        if ready is None:
            return None
        library, result, addresses = self._library, self._out, self._addresses
        assert library is not None
        if result is None:
            try:
                result = library.empty(self._first, ready.shape)
            except (MemoryError, RuntimeError):
                return None  # which is said in one line elsewhere
            addresses[-1] = library.address(result)
            if addresses[-1] % BASE_BYTES:
                return None
        if not ready.plain:
            addresses = [addresses[i] + offset for i, offset in zip(ready.sources, ready.offsets, strict=True)]
        if self._out is not None and not apart(ready.bound.spans, addresses, ready.output, ready.in_place):
            return None
        ready.bound.run(addresses, ready.scalars, library)
        return result

    def learn(
        self, plan: DevicePlan, bound: Bound | None, views: Sequence[ArrayView], scalars: tuple[float, ...],
        sources: Mapping[str, int], shape: tuple[int, ...], result: Any, elementwise: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Keep how a call went that was one launch of a plan, on these views of its operands.

        bound    what the launch returned: None when arrays had to be copied, and nothing is kept
        sources  by the name of an operand, which of the inputs it is; the output is not among them
        shape    of the result, which lies in `result`
        elementwise  operands of which each element is read only to write the same element of the output
        """
        library = self._library
        if bound is None or self.key is None or library is None:
            return
        addresses = [*self._addresses[:-1], library.address(result)]
        if self._out is None and addresses[-1] % BASE_BYTES:
            return
        operands = plan.plan.operands
        placed = [canonical(view) for view in views]
        (output,) = plan.outputs
        where = tuple(sources.get(operand.name, len(addresses) - 1) for operand in operands)
        same = frozenset(
            i for i, operand in enumerate(operands)
            if operand.name in elementwise and placed[i].strides == placed[output].strides
        )  # fmt: skip
        offsets = tuple(view.address - addresses[i] for view, i in zip(placed, where, strict=True))
        plain = where == tuple(range(len(addresses))) and not any(offsets)
        plans.remember(self.key, _Ready(bound, where, offsets, output, same, plain, scalars, shape))
