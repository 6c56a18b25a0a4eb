"""One library on a device in its own process: keeps its context over many problems, prepares and times one at a time.

`load` may happen in all processes at once: it makes the inputs on the host and starts the library. Everything else
touches the device, so the host asks one process at a time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .peer import DEFAULT, OURS, Copy, OnDevice, as_float, peers_of

if TYPE_CHECKING:
    import numpy as np

    from ..problem import Problem
    from .graphs import Graphs


class DeviceServer:
    """Answers the host's messages: load, prepare, capture, turn, release."""

    def __init__(self, settings: Mapping[str, Any]):
        self.name, self.index, self.seed = settings["name"], settings["index"], settings["seed"]
        self.ours = self.name in (OURS, DEFAULT)
        self.graphs: Graphs | None = None
        self.copies: list[Copy] = []

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        match message["do"]:
            case "load":
                return self.load(message["problem"])
            case "prepare":
                return self.prepare(cold=message["cold"])
            case "capture":
                return self.capture(message["copies"], message["launches"])
            case "turn":
                assert self.graphs is not None
                return {"samples": [(seconds, 0.0, 0.0) for seconds in self.graphs.replay(message["repeat"])]}
            case "release":
                return self.release()
        raise ValueError(message["do"])

    def load(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs on the host, the same in every process; the library is loaded and makes its context."""
        import numpy as np

        from .. import registry
        from ..problem import Problem

        self.problem = Problem.from_json(problem)
        started = time.perf_counter()
        kind = "cupy" if self.ours else peers_of(self.problem.op, "cuda")[self.name].graphs
        if self.graphs is None:
            from .graphs import KINDS

            self.graphs = KINDS[kind](self.index)
            self.graphs.synchronize()
        starting = time.perf_counter() - started
        made = registry.op(self.problem.op).inputs[0].make(self.problem, np.random.default_rng(self.seed))
        self.inputs, self.scalars = made[0], dict.fromkeys(made[1], 1.0)
        return {"first": {"library and context": starting}}

    def prepare(self, *, cold: bool) -> dict[str, Any]:
        """Compile, tune, and call once on a first copy; `cold` also times each step that comes before a result."""
        from .child import projection

        graphs = self.graphs
        assert graphs is not None
        first: dict[str, float] = {}
        clock = _Clock(graphs, first)
        if self.ours:
            ready, library = _ours(self.problem, self.inputs, self.scalars, self.index, self.name, clock, cold), ""
        else:
            peer = peers_of(self.problem.op, "cuda")[self.name]
            ready, library = peer.prepare(self.problem, self.inputs, self.scalars, self.index), ""
        self.ready: OnDevice = ready
        clock.start()
        copy = ready.copy()
        clock.stop("operands to device")
        copy.call()
        clock.stop("first call")
        result = copy.fetch()
        clock.stop("result to host")
        if not self.ours:
            library = peer.describe()
        self.copies = [copy]
        check = projection(result, self.seed)
        seconds = graphs.rough(copy.call)
        size = sum(array.nbytes for array in self.inputs.values()) + _result_bytes(self.problem, result)
        details = dict(ready.details)
        return {"check": check, "library": library, "details": details, "seconds": seconds, "bytes": size,
                "first": first}  # fmt: skip

    def capture(self, copies: int, launches: int) -> dict[str, Any]:
        """Record the graph over so many sets of operands; the seconds of a first replay."""
        assert self.graphs is not None
        while len(self.copies) < copies:
            self.copies.append(self.ready.copy())
        del self.copies[copies:]
        gc.collect()
        gc.disable()
        self.graphs.capture([copy.call for copy in self.copies], launches)
        return {"seconds": min(self.graphs.replay(3))}

    def release(self) -> dict[str, Any]:
        """Give the problem's memory back."""
        gc.enable()
        self.copies = []
        self.ready = self.inputs = None  # type: ignore[assignment]
        gc.collect()
        if self.graphs is not None:
            self.graphs.release()
        return {}


class _Clock:
    """Seconds between moments at which the device has done everything."""

    def __init__(self, graphs: Graphs, taken: dict[str, float]):
        self._graphs, self._taken = graphs, taken
        self.start()

    def start(self) -> None:
        self._graphs.synchronize()
        self._last = time.perf_counter()

    def stop(self, name: str) -> None:
        self._graphs.synchronize()
        now = time.perf_counter()
        self._taken[name] = now - self._last
        self._last = now


def _result_bytes(problem: Problem, result: np.ndarray) -> int:
    from ..launch import itemsize

    return result.size * itemsize(problem.dtype)


def _ours(
    problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float], index: int, name: str,
    clock: _Clock, cold: bool,
) -> OnDevice:  # fmt: skip
    """The recorded kernel, called as a user of `kernsearch.load` does; or the default candidate, whatever there is."""
    from .. import backends, runtime
    from ..backends.cuda import arrays

    backend = backends.get("cuda")
    device = backend.device(index)
    plan = runtime.load_problem(problem, device) if name == OURS else runtime.load_default(problem, device)
    if cold:
        clock.start()
        _compile_anew(backend, device, plan.plan)
        clock.stop("compile")
    clock.start()
    plan.functions()
    clock.stop("module load" if cold else "load")
    operands = plan.plan.operands
    named = {key: value for key, value in scalars.items() if plan.plan.scalars.get(key, value) != value}
    (output,) = (operand for operand in operands if operand.role == "output")

    def copy() -> Copy:
        given = [arrays.from_host(inputs[o.name]) for o in operands if o.role == "input"]
        out = arrays.empty(plan.shapes[output.name], output.dtype)
        return Copy(lambda: plan(*given, out=out, **named), lambda: as_float(arrays.to_host(out)))

    details = {"hit": plan.hit, "variant": plan.record.variant, "config": dict(plan.record.config)}
    return OnDevice(copy, details)


def _compile_anew(backend: Any, device: Any, plan: Any) -> None:
    """Compile a plan's kernels as if they had never been: with one more define, that no source knows."""
    import msgspec

    for kernel in plan.kernels:
        defines = {**kernel.defines, "ANEW": time.time_ns() % (1 << 31)}
        compiled = backend.compile(msgspec.structs.replace(kernel, defines=defines), device, timeout_s=120.0)
        compiled.path.unlink(missing_ok=True)
        compiled.path.with_suffix(".json").unlink(missing_ok=True)
