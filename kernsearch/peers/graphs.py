"""Timing a library on a device: its calls are recorded into a graph over rotating operands, and replays are timed.

The same for every library, ours too; only whose stream and whose graph object it is differs. CuPy's are those of
`backends.cuda.timing`, PyTorch's do the same: replays that do not count wake the clocks, then events stand between
replays that are all queued, so that the device neither sleeps nor waits for the host in between.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from ..backends.cuda import timing

ROUGH = 5  # launches of a first look


class Graphs(Protocol):
    """A stream of a library with its graphs."""

    def rough(self, call: Callable[[], Any]) -> float:
        """Seconds of a call, roughly: what decides how many go into a graph."""

    def capture(self, calls: Sequence[Callable[[], Any]], launches: int) -> None:
        """Record `launches` calls, taking turns among `calls`; forgets what was recorded before."""

    def replay(self, repeat: int) -> list[float]:
        """Seconds of a call, `repeat` times; each is a replay of the graph by its launches."""

    def release(self) -> None:
        """Forget the graph, and give memory back that nothing uses."""

    def synchronize(self) -> None: ...


class TorchGraphs:
    """PyTorch's; Triton launches onto the same streams."""

    def __init__(self, index: int):
        self.torch: Any = importlib.import_module("torch")
        self.torch.cuda.set_device(index)
        self.stream = self.torch.cuda.Stream()
        self.graph: Any = None
        self.launches, self.waking = 1, 1

    def _event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def rough(self, call: Callable[[], Any]) -> float:
        with self.torch.cuda.stream(self.stream):
            call()
            start = self._event()
            for _ in range(ROUGH):
                call()
            end = self._event()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / ROUGH

    def capture(self, calls: Sequence[Callable[[], Any]], launches: int) -> None:
        self.graph = None
        with self.torch.cuda.stream(self.stream):
            for call in calls:
                call()
        self.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for i in range(launches):
                calls[i % len(calls)]()
        self.graph, self.launches, self.waking = graph, launches, 1
        once = self.replay(1)[0] * launches
        self.waking = max(1, math.ceil(timing.WAKING_S / max(once, 1e-6)))

    def replay(self, repeat: int) -> list[float]:
        with self.torch.cuda.stream(self.stream):
            for _ in range(self.waking):
                self.graph.replay()
            events = [self._event()]
            for _ in range(repeat):
                self.graph.replay()
                events.append(self._event())
        self.stream.synchronize()
        return [float(start.elapsed_time(end)) * 1e-3 / self.launches for start, end in pairwise(events)]

    def release(self) -> None:
        self.graph = None
        self.torch.cuda.empty_cache()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()


class CupyGraphs:
    """CuPy's: our own kernels, and CuPy's."""

    def __init__(self, index: int):
        from ..backends.cuda import arrays

        self.xp: Any = arrays.xp()
        self.device = self.xp.cuda.Device(index)
        self.device.use()
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        self.timer: Callable[[int], list[float]] | None = None

    def rough(self, call: Callable[[], Any]) -> float:
        start, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        with self.stream:
            call()
            start.record(self.stream)
            for _ in range(ROUGH):
                call()
            end.record(self.stream)
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(start, end)) * 1e-3 / ROUGH

    def capture(self, calls: Sequence[Callable[[], Any]], launches: int) -> None:
        self.timer = None
        with self.stream:
            for call in calls:
                call()
        self.stream.synchronize()
        self.timer = timing.graph_timer(lambda copy: calls[copy](), len(calls), self.stream, launches=launches)

    def replay(self, repeat: int) -> list[float]:
        assert self.timer is not None
        return self.timer(repeat)

    def release(self) -> None:
        self.timer = None
        self.xp.get_default_memory_pool().free_all_blocks()

    def synchronize(self) -> None:
        self.device.synchronize()


KINDS: dict[str, Callable[[int], Graphs]] = {"torch": TorchGraphs, "cupy": CupyGraphs}
