"""Timing a library on a device: its calls are recorded into a graph over rotating operands, and replays are timed.

The same for every library, ours too; only whose stream and whose graph object it is differs. Events are recorded
around each replay, all replays of a turn are queued behind a first one that is not timed, so that the device neither
sleeps nor waits for the host in between.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

WAKING_S = 2e-3  # of untimed replays at the start of a turn: clocks rise, the other processes' work has ended
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
        self.launches, self.seconds = 1, 1.0

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
        self.seconds = float(start.elapsed_time(end)) * 1e-3 / ROUGH
        return self.seconds

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
        self.graph, self.launches = graph, launches

    def replay(self, repeat: int) -> list[float]:
        with self.torch.cuda.stream(self.stream):
            for _ in range(_waking(self.seconds * self.launches)):
                self.graph.replay()
            pairs = []
            for _ in range(repeat):
                start = self._event()
                self.graph.replay()
                pairs.append((start, self._event()))
        self.stream.synchronize()
        return [float(start.elapsed_time(end)) * 1e-3 / self.launches for start, end in pairs]

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
        self.graph: Any = None
        self.launches, self.seconds = 1, 1.0

    def _event(self) -> Any:
        event = self.xp.cuda.Event()
        event.record(self.stream)
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(self.xp.cuda.get_elapsed_time(start, end)) * 1e-3

    def rough(self, call: Callable[[], Any]) -> float:
        with self.stream:
            call()
            start = self._event()
            for _ in range(ROUGH):
                call()
            end = self._event()
        end.synchronize()
        self.seconds = self._between(start, end) / ROUGH
        return self.seconds

    def capture(self, calls: Sequence[Callable[[], Any]], launches: int) -> None:
        self.graph = None
        with self.stream:
            for call in calls:
                call()
            self.stream.synchronize()
            self.stream.begin_capture()
            try:
                for i in range(launches):
                    calls[i % len(calls)]()
            finally:
                graph = self.stream.end_capture()
        self.graph, self.launches = graph, launches
        graph.upload(self.stream)

    def replay(self, repeat: int) -> list[float]:
        with self.stream:
            for _ in range(_waking(self.seconds * self.launches)):
                self.graph.launch(self.stream)
            pairs = []
            for _ in range(repeat):
                start = self._event()
                self.graph.launch(self.stream)
                pairs.append((start, self._event()))
        self.stream.synchronize()
        return [self._between(start, end) / self.launches for start, end in pairs]

    def release(self) -> None:
        self.graph = None
        self.xp.get_default_memory_pool().free_all_blocks()

    def synchronize(self) -> None:
        self.device.synchronize()


def _waking(seconds: float) -> int:
    return max(1, math.ceil(WAKING_S / max(seconds, 1e-6)))


KINDS: dict[str, Callable[[int], Graphs]] = {"torch": TorchGraphs, "cupy": CupyGraphs}
