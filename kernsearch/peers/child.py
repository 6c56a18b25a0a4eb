"""One library in its own process: prepares a problem, then times calls whenever it is handed the token."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..problem import Problem
    from .peer import Ready

SHORT_S = 0.05  # a call that takes less runs untimed at the start of a turn, to wake threads:
WAKING_S = 0.002  # so long when the caches stay warm, once when they are emptied anyway
REST_WINDOW_S = 0.01  # threads are at rest when the process used at most a tenth of such a window
MOST_REST_S = 0.5
LINE = 64
PROJECTED = 16  # values of a result that are compared between libraries


def main(settings: Mapping[str, Any]) -> None:
    """Serve the host until it closes the commands. The environment is set by now."""
    from ..errors import KernsearchError

    with os.fdopen(settings["commands"]) as commands, os.fdopen(settings["replies"], "w") as replies:
        serve = _server(settings)
        for line in commands:
            try:
                answer = serve.answer(json.loads(line))
            except (KernsearchError, ImportError, MemoryError) as error:
                answer = {"error": str(error) or type(error).__name__}
            except Exception as error:  # a library's own, of any kind: the host reports it, others go on
                if settings["index"] is None:
                    raise
                said = str(error).strip().splitlines() or [""]
                answer = {"error": f"{type(error).__name__}: {said[0]}"}
            replies.write(json.dumps(answer) + "\n")
            replies.flush()


def _server(settings: Mapping[str, Any]) -> Any:
    if settings["index"] is None:
        return _Server(settings)
    from .device_child import DeviceServer

    return DeviceServer(settings)


class _Server:
    def __init__(self, settings: Mapping[str, Any]):
        self.settings = settings
        self.call: Callable[[], Any] = lambda: None
        self.short = True

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["do"] == "prepare":
            return self.prepare()
        return {"samples": self.turn(message["repeat"], message["inner"], message["flush_bytes"])}

    def prepare(self) -> dict[str, Any]:
        from ..problem import Problem
        from ..worker.child import Flusher

        problem = Problem.from_json(self.settings["problem"])
        ready, library = _prepared(self.settings["name"], problem, self.settings["threads"], self.settings["seed"])
        self.call, self.flusher = ready.call, Flusher()
        self.call()
        check = projection(ready.output, self.settings["seed"])
        started = time.perf_counter()
        self.call()
        self.short = time.perf_counter() - started < SHORT_S
        gc.collect()
        gc.disable()
        rest()
        return {"check": check, "library": library, "details": dict(ready.details)}

    def turn(self, repeat: int, inner: int, flush_bytes: int) -> list[tuple[float, float, float]]:
        """(seconds, CPU seconds of all threads, run-queue wait of all threads) of a call, `repeat` times."""
        from ..worker.child import run_queue_wait_ns

        call, now, used_ns = self.call, time.perf_counter_ns, time.process_time_ns
        if self.short:
            call()
            end = now() + (0 if flush_bytes else WAKING_S * 1e9)
            while now() < end:
                call()
        samples = []
        for _ in range(repeat):
            if flush_bytes:
                self.flusher.flush(flush_bytes, self.settings["threads"])
            waited, used = run_queue_wait_ns(), used_ns()
            start = now()
            for _ in range(inner):
                call()
            end = now()
            used, waited = used_ns() - used, run_queue_wait_ns() - waited
            samples.append(((end - start) / inner * 1e-9, used / inner * 1e-9, waited / inner * 1e-9))
        rest()
        return samples


def rest() -> None:
    """Wait until the library's threads have stopped spinning: they would slow down whoever runs next."""
    deadline = time.monotonic() + MOST_REST_S
    while time.monotonic() < deadline:
        used = time.process_time()
        time.sleep(REST_WINDOW_S)
        if time.process_time() - used <= REST_WINDOW_S / 10:
            return


def projection(output: np.ndarray, seed: int) -> list[float]:
    """Some rows of a result times a random vector, plus the sum of all rows: enough to see a difference."""
    import numpy as np

    rows = output.reshape(-1, output.shape[-1])
    direction = np.random.default_rng(seed).standard_normal(rows.shape[1])
    chosen = np.unique(np.linspace(0, len(rows) - 1, PROJECTED).astype(int))
    return [float(x) for x in rows[chosen].astype(np.float64) @ direction]


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy that starts on a cache line."""
    import numpy as np

    raw = np.empty(array.nbytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _prepared(name: str, problem: Problem, threads: int, seed: int) -> tuple[Ready, str]:
    """The problem in a library, on the same inputs in every process, and what the library says of itself."""
    import numpy as np

    from .. import registry
    from .peer import DEFAULT, OURS, peers_of

    inputs, scalars = registry.op(problem.op).inputs[0].make(problem, np.random.default_rng(seed))
    scalars = dict.fromkeys(scalars, 1.0)  # as measured while tuning; other values would cost some libraries a pass
    inputs = {key: aligned(array) for key, array in inputs.items()}
    if name in (OURS, DEFAULT):
        return _ours(problem, inputs, scalars, threads, name == DEFAULT), ""
    peer = peers_of(problem.op)[name]
    ready = peer.prepare(problem, inputs, scalars, threads)
    return ready, peer.describe()


def _ours(
    problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float], threads: int, default: bool
) -> Ready:
    """The recorded kernel, called as a user of `kernsearch.load` does; or the default candidate, whatever there is."""
    import numpy as np

    from .. import backends, runtime
    from ..runtime.host import HostPlan
    from .peer import Ready

    runtime.set_threads(threads)
    device = backends.get("cpu").device()
    plan = runtime.load_default(problem, device) if default else runtime.load_problem(problem, device)
    assert isinstance(plan, HostPlan)
    operands = plan.plan.operands
    arrays = [inputs[operand.name] for operand in operands if operand.role == "input"]
    (output,) = (operand.name for operand in operands if operand.role == "output")
    out = aligned(np.zeros(tuple(plan.shapes[output]), plan.dtypes[output]))
    named = {key: value for key, value in scalars.items() if plan.plan.scalars.get(key, value) != value}
    details = {"hit": plan.hit, "variant": plan.record.variant}
    return Ready(lambda: plan(*arrays, out=out, **named), out, details)
