"""Plans on arrays of a device: CuPy arrays, PyTorch tensors, and whatever else can be seen through DLPack.

A call runs on the current stream of the arrays' library and does not wait for it. Results and workspace come from that
library's own pool. A plan may assume something of strides and addresses (a multiple of 16 bytes, as a rule); arrays
that do not give it get another plan, one that takes them as they are, and only when there is none are they copied.

Inside a CUDA-graph capture a call that was made before is captured like any kernel; one that would have to compile or
load something raises. Workspace of a captured call belongs to the graph: it is kept until the graph is gone. A
new result is the caller's to keep for as long as the graph may run; with CuPy, whose pool knows nothing of graphs, pass
`out` instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .. import launch
from ..backends import Compiled
from ..device import lacks
from ..errors import ArrayError, CacheError, DeviceError, DtypeError, RefusedError, Rejected
from ..launch import BASE_BYTES, ArrayView, contiguous
from ..plan import KernelPlan
from ..records import lookup
from . import libraries, plans
from .libraries import BY_TYPE, Library
from .strides import apart, check_apart, overlap
from .views import canonical, span

_LEGACY = 2  # stream handles below this are the legacy default stream's


class Bound:
    """A launcher for arrays of certain shapes, strides and alignments that its kernels take as they are.

    spans   for each operand (first byte, one past the last) relative to its address
    bytes   of workspace that a call takes from the caller's pool
    """

    def __init__(self, plan: DevicePlan, views: Sequence[ArrayView]):
        from ..backends.cuda import capture
        from ..backends.cuda.launcher import Launcher

        self.plan, self.device = plan, plan.device.index
        call = launch.resolve(plan.plan, plan.named(views), threads=plan.threads)
        try:
            launcher = Launcher(plan.plan, call, plan.functions(), plan.device)
        except Rejected as error:
            raise DeviceError(f"{plan!r} cannot be launched for these arrays: {error}") from error
        self._go = launcher.run
        self.bytes = launcher.workspace_bytes
        self.spans = tuple(span(view) for view in views)
        self._capture = capture

    def run(self, addresses: Sequence[int], scalars: tuple[float, ...], library: Library) -> None:
        """Launch on the current stream. Addresses in the order of the plan's operands."""
        device = self.device
        stream = library.stream(device)
        if not self.bytes:
            self._go(addresses, scalars, stream, 0)
            return
        block, workspace = self._room(library)
        if stream >= _LEGACY and self._capture.active(stream):
            self._capture.keep(stream, block)
        self._go(addresses, scalars, stream, workspace)

    def _room(self, library: Library) -> tuple[Any, int]:
        try:
            return library.memory(self.bytes, self.device)
        except (MemoryError, RuntimeError):  # asked again, to say it in one line
            what = f"{self.bytes} bytes of workspace of {self.plan!r}"
            return libraries.room(library.memory, self.bytes, self.device, what=what, device=self.device)


class DevicePlan(plans.CallPlan):
    """A plan whose kernels work on arrays of a device."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        if reason := lacks(self.device, self.problem.dtype):
            raise DeviceError(reason)
        self._defaults = tuple(self.plan.scalars.values())
        self._plain = tuple(range(len(self.plan.operands))) == (*self.inputs, *self.outputs)

    @property
    def threads(self) -> int:
        return int(self.device.facts["threads"])

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Compute. Inputs in the plan's order (gemm: a, b, bias, c), or by name; scalars by name (alpha, beta).

        CuPy arrays, PyTorch tensors or what DLPack gives, on the plan's device, of the problem's shapes and dtypes and
        any strides; the result is of the first one's library. `out` may overlap inputs. Runs on the current stream of
        that library and returns at once. Raises ArrayError, DtypeError or ProblemError for what does not fit,
        DeviceError for no memory or inside a capture, CompilerError when nothing can compile the kernels.
        Where the compiler refuses them, the next plan that serves does.
        """
        key: tuple[Any, ...] | None = None
        library = BY_TYPE.get(type(arrays[0])) if arrays else None
        if library is not None and not named and self._plain and len(arrays) == len(self.inputs):
            told: list[Any] = [self]
            addresses: list[int] = []
            form = library.form
            for array in arrays if out is None else (*arrays, out):
                if BY_TYPE.get(type(array)) is not library:
                    return self._call(arrays, out, named, None)
                address, what = form(array)
                addresses.append(address)
                told.append(what)
            key = tuple(told)
            ready = plans.memory.calls.get(key)
            if ready is not None:
                bound, shape = ready
                if out is not None:
                    if apart(bound.spans, addresses, len(arrays)):
                        bound.run(addresses, self._defaults, library)
                        return out
                else:
                    try:
                        result = library.empty(arrays[0], shape)
                    except (MemoryError, RuntimeError):
                        return self._call(arrays, out, named, key)  # which says it in one line
                    at = library.address(result)
                    if not at % BASE_BYTES:
                        addresses.append(at)
                        bound.run(addresses, self._defaults, library)
                        return result
        return self._call(arrays, out, named, key)

    def _call(self, arrays: Sequence[Any], out: Any, named: dict[str, Any], key: Any) -> Any:
        given, scalars = self._bind(arrays, named)
        (where,) = self.outputs
        first = next(iter(arrays)) if arrays else next(v for v in named.values() if libraries.of(v) is not None)
        library = libraries.of(first)
        assert library is not None  # `_checked` has seen it
        operand = self.plan.operands[where]
        made = out is None
        if made:
            like = library.taken(first)
            nbytes = launch.itemsize(operand.dtype)
            for extent in self.shapes[operand.name]:
                nbytes *= extent
            out = libraries.room(library.empty, like, self.shapes[operand.name], what=f"a result of {nbytes} bytes",
                                 device=self.device.index)  # fmt: skip
        given[where] = self._checked(where, out)
        check_apart(operand.name, given[where].shape, given[where].strides, 1)
        views = [given[i] for i in range(len(self.plan.operands))]
        bound = self.launch(views, scalars, library)
        if key is not None and bound is not None and not (made and views[-1].address % BASE_BYTES):
            plans.remember(key, (bound, self.shapes[operand.name]))
        return library.given(out, first) if made else out

    def _checked(self, which: int, array: Any) -> ArrayView:
        operand = self.plan.operands[which]
        view, dtype = view_on(operand.name, array, self.device.index)
        if dtype != operand.dtype:
            raise DtypeError(f"{operand.name} is {dtype}: want {operand.dtype}; nothing is converted")
        if view.shape != self.shapes[operand.name]:
            raise ArrayError(f"{operand.name} has shape {view.shape}: want {self.shapes[operand.name]}")
        return view

    def named(self, views: Sequence[ArrayView]) -> dict[str, ArrayView]:
        return {operand.name: view for operand, view in zip(self.plan.operands, views, strict=True)}

    def launch(
        self, views: Sequence[ArrayView], scalars: tuple[float, ...], library: Library, elementwise: Sequence[str] = ()
    ) -> Bound | None:
        """Run on checked arrays in the order of the plan's operands; scalars in that of `plan.scalars`.

        `elementwise` names inputs of which each element is read only to write the same element of the output, so that
        such an input may be the output. Returns how it was done when the arrays were taken as they are, else None.
        """
        views = [canonical(view) for view in views]
        bound = self.remembered(views, library)
        if bound is not None and not self._overlaps(views, elementwise):
            bound.run([view.address for view in views], scalars, library)
            return bound
        self._launch_tamed(views, scalars, library)
        return None

    def remembered(self, views: Sequence[ArrayView], library: Library) -> Bound | None:
        """As `bound`, made once."""
        key = (self, *[(v.shape, v.strides, v.address % BASE_BYTES) for v in views])
        calls = plans.memory.calls
        if key in calls:
            return calls[key]
        return plans.remember(key, self.bound(views, library))

    def bound(self, views: Sequence[ArrayView], library: Library) -> Bound | None:
        """A launcher for this thread and such arrays, of this plan or, when it assumes what they do not give or the
        compiler refuses it, of the next one that takes them; None when there is none and they must be copied. Raises
        RefusedError when no other one serves in place of what is refused."""
        plan = self if self.plan not in plans.refused and not self._unmet(views) else self._other(views)
        while plan is not None:
            try:
                plan.warm(library)
                return Bound(plan, views)
            except RefusedError as error:
                plans.refused.append(plan.plan)
                plan = self._other(views)
                if plan is None:
                    raise
                warnings.warn(f"{error}; {plan.record.variant} serves in its place", stacklevel=2)
        return None

    def _unmet(self, views: Sequence[ArrayView]) -> str | None:
        return lookup.unmet(self.plan, self.named(views), self.device)

    def _other(self, views: Sequence[ArrayView]) -> DevicePlan | None:
        try:
            store = lookup.store()
            hit = store.find(self.problem, self.device, self.policy, self.named(views), plans.refused)
        except CacheError:
            return None
        other = DevicePlan(self.problem, self.device, hit, self.policy)
        same = [o.name for o in other.plan.operands] == [o.name for o in self.plan.operands]
        return other if same and list(other.plan.scalars) == list(self.plan.scalars) else None

    def warm(self, library: Library) -> None:
        """Compile and load the kernels if that was not done. Raises DeviceError while the stream is being captured."""
        if (id(self.plan), self.device.index) not in plans._compiled:
            self._refuse_in_capture(library)
        self.functions()

    def _refuse_in_capture(self, library: Library) -> None:
        from ..backends.cuda import capture

        if capture.active(library.stream(self.device.index)):
            raise DeviceError(
                f"{self!r} is cold inside a CUDA-graph capture: call it once before capturing, with arrays alike"
            )

    def _loaded(self, kernel: KernelPlan, compiled: Compiled) -> Any:
        """The compiled kernel as a module of the device. Raises OSError when its file is gone."""
        from ..backends.cuda.modules import Module

        return Module(compiled.path, self.device.index)

    def _overlaps(self, views: Sequence[ArrayView], elementwise: Sequence[str]) -> bool:
        for o in self.outputs:
            for i in self.inputs:
                same = views[i].address == views[o].address and views[i].strides == views[o].strides
                if same and self.plan.operands[i].name in elementwise:
                    continue
                if overlap(views[o].address, span(views[o]), views[i].address, span(views[i])):
                    return True
        return False

    def _launch_tamed(self, views: list[ArrayView], scalars: tuple[float, ...], library: Library) -> None:
        """The slow path: contiguous copies of all inputs that overlap the output or are not taken, results back."""
        from ..backends.cuda import capture, copies

        stream = library.stream(self.device.index)
        if capture.active(stream):
            like = "want arrays that are aligned to 16 bytes and apart from out"
            raise ArrayError(f"{self!r} must copy these arrays first, not inside a CUDA-graph capture: {like}")
        bound = self.remembered(views, library)
        taken, made = list(views), {}
        with copies.on_stream(stream, self.device.index):
            for i, operand in enumerate(self.plan.operands):
                clash = i in self.inputs and any(
                    overlap(views[o].address, span(views[o]), views[i].address, span(views[i])) for o in self.outputs
                )
                if clash or (bound is None and not _aligned(views[i])):
                    copy = copies.contiguous(views[i], self.device.index, values=operand.role == "input")
                    made[i] = copy
                    taken[i] = ArrayView(copy.data.ptr, views[i].shape, contiguous(views[i].shape), views[i].itemsize)
            bound = self.remembered(taken, library)
            if bound is None:
                raise ArrayError(f"{self!r} assumes {self._unmet(taken)}, and no other plan serves these arrays")
            bound.run([view.address for view in taken], scalars, library)
            for o in self.outputs:
                if o in made:
                    copies.into(views[o], made[o], self.device.index)


def _aligned(view: ArrayView) -> bool:
    return view.strides == contiguous(view.shape) and not view.address % BASE_BYTES


def view_on(name: str, array: Any, device: int) -> tuple[ArrayView, str]:
    """(where an array lies, its dtype). Raises ArrayError in one line for one that is not on the device."""
    library = libraries.of(array)
    if library is None:
        raise ArrayError(f"{name} is in host memory: want an array on cuda:{device}; copy it there first")
    view, dtype, where = library.view(name, library.taken(array))
    if where != device:
        raise ArrayError(f"{name} is on cuda:{where}: want all arrays on cuda:{device}")
    return view, dtype
