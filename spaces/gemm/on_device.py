"""`kernsearch.matmul` for arrays on a device: one launch of gemm, or of bmm for leading dimensions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from kernsearch import registry
from kernsearch.errors import ArrayError, CacheError, DtypeError, ProblemError
from kernsearch.launch import BASE_BYTES, ArrayView, contiguous, itemsize
from kernsearch.problem import Problem
from kernsearch.runtime import libraries
from kernsearch.runtime import plans as runtime
from kernsearch.runtime.device import Bound, DevicePlan, view_on
from kernsearch.runtime.libraries import BY_TYPE, Library
from kernsearch.runtime.strides import check_apart, overlap
from kernsearch.runtime.views import broadcast, broadcast_shapes, canonical, lifted, merged, parts, span, swapped

from . import ACTIVATIONS, OP

_NAMES = ("A", "B", "bias", "C", "D")  # of the textbook program: a, b, bias, c, out
_ARGUMENTS = ("a", "b", "bias", "c", "out")

Shape = tuple[int, ...]
Given = dict[str, ArrayView]  # by the name of the argument


class _Ready(NamedTuple):
    """A call that this thread has made before: arrays of these shapes, strides and alignments go straight to the
    kernels.

    order    for each operand of the plan, which of (a, b, bias, c, out) it is
    out      which operand is the output
    in_place which operand may be the output: c, if its strides are the same; else -1
    scalars  for each scalar of the plan, which of (alpha, beta) it is
    """

    bound: Bound
    order: tuple[int, ...]
    out: int
    in_place: int
    shape: Shape
    scalars: tuple[int, ...]


def matmul(
    a: Any, b: Any, bias: Any, activation: Any, alpha: float, beta: float, c: Any, out: Any, library: Library
) -> Any:
    """As `public.matmul`, when one of the arrays is on a device; `library` is that of the first such one."""
    key: Any = None
    if BY_TYPE.get(type(a)) is library and BY_TYPE.get(type(b)) is library:
        form = library.form
        at_a, form_a = form(a)
        at_b, form_b = form(b)
        addresses = [at_a, at_b, 0, 0, 0]
        key = (form_a, form_b, activation)
        if bias is not None or c is not None or out is not None:
            key = _whole_key(key, (bias, c, out), addresses, library)
        try:
            ready = runtime.memory.calls.get(key)
        except TypeError:  # an activation that cannot be hashed
            ready = key = None
        if ready is not None:
            try:
                result = library.empty(a, ready.shape) if out is None else out
            except (MemoryError, RuntimeError):
                return _matmul(a, b, bias, activation, alpha, beta, c, out, key, library)  # which says it in one line
            if out is None:
                addresses[4] = library.address(result)
            placed = [addresses[i] for i in ready.order]
            if _safe(ready, placed, out is None):
                scalars = (alpha, beta)
                ready.bound.run(placed, tuple([scalars[i] for i in ready.scalars]), library)
                return result
    return _matmul(a, b, bias, activation, alpha, beta, c, out, key, library)


def _whole_key(key: tuple[Any, ...], more: tuple[Any, ...], addresses: list[int], library: Library) -> Any:
    """The key with bias, c and out; None when one of them is of another library. Fills in their addresses."""
    for place, array in enumerate(more, 2):
        if array is None:
            key += (None,)
        elif BY_TYPE.get(type(array)) is library:
            addresses[place], form = library.form(array)
            key += (form,)
        else:
            return None
    return key


def _safe(ready: _Ready, addresses: list[int], is_new: bool) -> bool:
    """Is the output where plans want a new array, or apart from all inputs, or just where c is?"""
    at, spans = addresses[ready.out], ready.bound.spans
    if is_new:
        return not at % BASE_BYTES
    mine = spans[ready.out]
    for i, address in enumerate(addresses):
        if i != ready.out and overlap(at, mine, address, spans[i]) and (i != ready.in_place or address != at):
            return False
    return True


def _matmul(
    a: Any, b: Any, bias: Any, activation: Any, alpha: float, beta: float, c: Any, out: Any, key: Any, library: Library
) -> Any:
    """Any arrays at all: check them, bring them to two dimensions, find the plan, and remember simple calls."""
    given, dtype, device = _views(dict(zip(_ARGUMENTS, (a, b, bias, c, out), strict=True)))
    if activation not in (None, "none", *ACTIVATIONS):
        raise ProblemError(f"activation {activation!r}: want one of {', '.join(ACTIVATIONS)}")
    batch, (m, n, k), shape = _sizes(given["a"], given["b"])
    flat = {"a": len(given["a"].shape) == 1, "b": len(given["b"].shape) == 1}
    _check_shapes(given, shape, n)
    result, home = out, libraries.of(a) or library
    if out is None:
        nbytes = math.prod(shape) * itemsize(dtype)
        like = home.taken(a)
        result = libraries.room(home.empty, like, shape, what=f"a result of {nbytes} bytes", device=device)
        given["out"], _ = view_on("out", result, device)
    if math.prod(shape):
        where = runtime.device_of(f"cuda:{device}")
        alive = None
        if k == 0:  # a sum of nothing equals one of a single zero, whatever alpha is
            alive, zero = _zero(itemsize(dtype), home.stream(device), device)
            given |= {"a": replace(zero, shape=(m, 1)), "b": replace(zero, shape=(1, n))}
            alpha, k, key = 1.0, 1, None
        given = _as_matrices(given, batch, flat, (m, n, k))
        epilogue = _epilogue("bias" in given, activation, "c" in given)
        done = _run(given, (m, n, k), dtype, epilogue, where, {"alpha": alpha, "beta": beta}, home)
        if key is not None and done is not None and not (out is None and given["out"].address % BASE_BYTES):
            runtime.remember(key, _ready(done, given, shape))
        del alive
    return home.given(result, a) if out is None else result


def _views(arguments: dict[str, Any]) -> tuple[Given, str, int]:
    """(where the given arrays lie, their dtype, their device)."""
    on_device = [name for name, array in arguments.items() if array is not None and libraries.of(array) is not None]
    first = on_device[0]
    library = libraries.of(arguments[first])
    assert library is not None
    _, dtype, device = library.view(first, library.taken(arguments[first]))
    found: Given = {}
    for name, array in arguments.items():
        if array is None:
            continue
        if libraries.of(array) is None:
            raise ArrayError(f"{name} is in host memory, {first} on cuda:{device}: want all arrays in one place")
        found[name], own = view_on(name, array, device)
        if own != dtype:
            raise DtypeError(f"{first} is {dtype}, {name} is {own}: want the same dtype; nothing is converted")
    if dtype not in OP.dtypes["cuda"]:
        raise DtypeError(f"{first} is {dtype}: want {', '.join(OP.dtypes['cuda'])}; nothing is converted")
    for name in ("a", "b"):
        if not found[name].shape:
            raise ArrayError(f"{name} has no dimensions: want at least one; for a scalar, use *")
    return found, dtype, device


def _sizes(a: ArrayView, b: ArrayView) -> tuple[Shape, tuple[int, int, int], Shape]:
    """Leading dimensions of the result, (M, N, K), and the shape of the result."""
    a2 = a.shape if len(a.shape) > 1 else (1, *a.shape)
    b2 = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if a2[-1] != b2[-2]:
        raise ArrayError(f"a {a.shape} and b {b.shape}: want as many columns of a as rows of b")
    batch = broadcast_shapes(a2[:-2], b2[:-2])
    if batch is None:
        raise ArrayError(f"a {a.shape} and b {b.shape}: leading dimensions do not broadcast")
    m, n, k = a2[-2], b2[-1], a2[-1]
    return batch, (m, n, k), (*batch, *((m,) if len(a.shape) > 1 else ()), *((n,) if len(b.shape) > 1 else ()))


def _check_shapes(given: Given, shape: Shape, n: int) -> None:
    if "bias" in given and given["bias"].shape != (n,):
        raise ArrayError(f"bias has shape {given['bias'].shape}: want {(n,)}")
    if "out" in given and given["out"].shape != shape:
        raise ArrayError(f"out has shape {given['out'].shape}: want {shape}")
    if "out" in given:
        check_apart("out", shape, given["out"].strides, 1)
    if "c" in given:
        c = broadcast(given["c"], shape)
        if c is None:
            raise ArrayError(f"c has shape {given['c'].shape}: want {shape}, or one that broadcasts to it")
        given["c"] = c


def _zero(size: int, stream: int, device: int) -> tuple[Any, ArrayView]:
    """(what keeps it alive, a single zero of `size` bytes)."""
    from kernsearch.backends.cuda import copies

    kept = copies.zero(stream, device)
    return kept, ArrayView(kept.data.ptr, (1, 1), (0, 0), size)


def _as_matrices(given: Given, batch: Shape, flat: dict[str, bool], sizes: tuple[int, int, int]) -> Given:
    """All but the bias with two dimensions and, when there are several matrices, leading ones of the same extents."""
    m, n, k = sizes
    found = dict(given)
    if len(found["a"].shape) == 1:
        found["a"] = lifted(found["a"], 0)
    if len(found["b"].shape) == 1:
        found["b"] = lifted(found["b"], -1)
    for name in ("c", "out"):
        if name in found:
            if flat["b"]:
                found[name] = lifted(found[name], -1)
            if flat["a"]:
                found[name] = lifted(found[name], -2)
    if batch:
        for name, matrix in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)), ("out", (m, n))):
            if name in found and not (name == "b" and len(found["b"].shape) == 2):
                stretched = broadcast(found[name], (*batch, *matrix))
                assert stretched is not None
                found[name] = stretched
    return found


def _run(
    given: Given, sizes: tuple[int, int, int], dtype: str, epilogue: str, where: Any, scalars: dict[str, float],
    library: Library,
) -> tuple[DevicePlan, Bound, Given] | None:  # fmt: skip
    """One launch when possible. Returns (plan, how it was launched, the arrays as it took them) when it was only one
    and took them as they are."""
    _, n, k = sizes
    lead = len(given["out"].shape) - 2
    if not lead:
        return _gemm(given, sizes, dtype, epilogue, where, scalars, library)
    if len(given["b"].shape) == 2:
        rows = {name: view if name in ("b", "bias") else merged(view, 0, lead + 1) for name, view in given.items()}
        if all(view is not None for view in rows.values()):
            folded = cast(Given, rows)
            return _gemm(folded, (folded["a"].shape[0], n, k), dtype, epilogue, where, scalars, library)
        given = {**given, "b": cast(ArrayView, broadcast(given["b"], (*given["a"].shape[:-2], k, n)))}
    given, alive = _apart(given, where.index, library)
    outer = next(d for d in range(lead) if d == lead - 1 or _merge(given, d, lead) is not None)
    stacks = [name for name in given if name != "bias"]
    done = None
    for views in parts([given[name] for name in stacks], outer):
        one = {**given, **dict(zip(stacks, views, strict=True))}
        done = _bmm(cast(Given, _merge(one, 0, lead - outer)), sizes, dtype, epilogue, where, scalars, library)
    return done if outer == 0 and not alive else None


def _apart(given: Given, device: int, library: Library) -> tuple[Given, list[Any]]:
    """Inputs that overlap the output copied, when one launch could write what the next one reads; and what keeps the
    copies alive."""
    from kernsearch.backends.cuda import copies

    found, alive, out = dict(given), [], given["out"]
    for name, view in given.items():
        in_place = name == "c" and (view.address, view.strides) == (out.address, out.strides)
        if name != "out" and not in_place and overlap(out.address, span(out), view.address, span(view)):
            with copies.on_stream(library.stream(device), device):
                alive.append(copies.contiguous(view, device))
            found[name] = ArrayView(alive[-1].data.ptr, view.shape, contiguous(view.shape), view.itemsize)
    return found, alive


def _merge(given: Given, start: int, stop: int) -> Given | None:
    """All but the bias with leading dimensions start..stop as one."""
    found = {name: view if name == "bias" else merged(view, start, stop) for name, view in given.items()}
    return cast(Given, found) if all(view is not None for view in found.values()) else None


def _gemm(
    given: Given, sizes: Shape, dtype: str, epilogue: str, where: Any, scalars: dict[str, float], library: Library
) -> tuple[DevicePlan, Bound, Given] | None:
    plan = _plan("gemm", sizes, dtype, _letter(given["a"]) + _letter(given["b"]), epilogue, where)
    return _launch(plan, given, scalars, library)


def _bmm(
    given: Given, sizes: Shape, dtype: str, epilogue: str, where: Any, scalars: dict[str, float], library: Library
) -> tuple[DevicePlan, Bound, Given] | None:
    """A batch in one launch; one after the other when nothing serves bmm."""
    letters, batch = _letter(given["a"]) + _letter(given["b"]), given["out"].shape[0]
    try:
        plan = _plan("bmm", (batch, *sizes), dtype, letters, epilogue, where)
    except CacheError:
        stacks = [name for name in given if name != "bias"]
        for views in parts([given[name] for name in stacks], 1):
            _gemm({**given, **dict(zip(stacks, views, strict=True))}, sizes, dtype, epilogue, where, scalars, library)
        return None
    return _launch(plan, given, scalars, library)


def _launch(
    plan: DevicePlan, given: Given, scalars: dict[str, float], library: Library
) -> tuple[DevicePlan, Bound, Given] | None:
    views = []
    for operand in plan.plan.operands:
        view = given[_ARGUMENTS[_NAMES.index(operand.name)]]
        views.append(swapped(view) if operand.extents[-2:] in (("K", "M"), ("N", "K")) else view)
    bound = plan.launch(views, tuple(scalars[name] for name in plan.plan.scalars), library, elementwise=("C",))
    return None if bound is None else (plan, bound, given)


def _ready(done: tuple[DevicePlan, Bound, Given], given: Given, shape: Shape) -> _Ready:
    plan, bound, taken = done
    order = tuple(_NAMES.index(operand.name) for operand in plan.plan.operands)
    same = "c" in taken and canonical(taken["c"]).strides == canonical(taken["out"]).strides
    scalars = tuple(map(("alpha", "beta").index, plan.plan.scalars))
    return _Ready(bound, order, order.index(4), order.index(3) if same else -1, shape, scalars)


def _letter(view: ArrayView) -> str:
    """t when columns are contiguous and rows are not, else n."""
    (m, n), (rows, columns) = view.shape[-2:], view.strides[-2:]
    return "t" if m > 1 and rows == 1 and n > 1 and columns != 1 else "n"


def _epilogue(bias: bool, activation: str | None, residual: bool) -> str:
    steps = ["bias"] * bias + [activation] * (activation not in (None, "none")) + ["residual"] * residual
    return ",".join(filter(None, steps)) or "none"


@lru_cache(maxsize=4096)
def _problem(op: str, shape: Shape, dtype: str, layout: str, epilogue: str) -> Problem:
    return registry.op(op).problem(shape, dtype, backend="cuda", layout=layout, epilogue=epilogue)


def _plan(op: str, shape: Shape, dtype: str, layout: str, epilogue: str, where: Any) -> DevicePlan:
    return cast(DevicePlan, runtime.load_problem(_problem(op, shape, dtype, layout, epilogue), where))
