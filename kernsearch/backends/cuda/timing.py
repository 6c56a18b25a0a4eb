"""How long a call takes on a GPU: graphs of launches over rotating operands, timed by events around their replay.

Nothing of a call's operands is in the second-level cache when they take turns with enough others; a graph of many
launches takes the host, and the gaps between launches, out of the time of short kernels. Whoever is compared with
(`peers`) is timed with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from . import arrays

POLICY = "cuda-graph-rotating-1"  # change it when two measurements may no longer be compared

FOOTPRINT = 2.5  # times the second-level cache is what all copies take together
MOST_COPIES = 1024  # tiny operands stay in the cache: a graph of more launches takes longer to make than to time
REPLAY_S = 200e-6  # a replay lasts at least this
MOST_LAUNCHES = 4096
WAKING_S = 2e-3  # of replays that do not count before those that do: the clocks rise
ROUGH = 3  # launches of a first look


def copies_for(nbytes: int, l2_bytes: int) -> int:
    """Copies of `nbytes` of operands that fill FOOTPRINT times a cache of `l2_bytes`; at most MOST_COPIES."""
    return max(1, min(MOST_COPIES, math.ceil(FOOTPRINT * l2_bytes / max(1, nbytes))))


def launches_for(seconds: float, copies: int) -> int:
    """Launches of a graph that replays for REPLAY_S: a multiple of `copies`, so that each takes as many turns."""
    wanted = math.ceil(REPLAY_S / max(seconds, 1e-7))
    return copies * max(1, min(math.ceil(wanted / copies), MOST_LAUNCHES // copies))


def plan_replay(seconds: float, nbytes: int, l2_bytes: int) -> tuple[int, int]:
    """(copies, launches) for a call that takes about so long on operands of `nbytes`."""
    copies = copies_for(nbytes, l2_bytes)
    return copies, launches_for(seconds, copies)


def graph_timer(
    launch: Callable[[int], None],
    copies: int,
    stream: Any,
    *,
    launches: int | None = None,
    rough: Callable[[float], None] = lambda seconds: None,
) -> Callable[[int], list[float]]:
    """A function that times `repeat` replays: seconds of one launch each.

    `launch(copy)` puts one call on `copy`'s operands on `stream`, a CuPy stream (`Stream.from_external` for another
    library's) that is not the default one, and neither allocates nor waits. Without `launches` a first look says how
    many there are; `rough` is told the seconds of a replay. Raises CuPy's or the driver's error when a kernel fails.
    """
    xp = arrays.xp()
    with arrays.on(stream):
        if launches is None:
            launches = launches_for(_rough(xp, launch, copies, stream), copies)
        else:
            launch(0)
        stream.synchronize()
        stream.begin_capture()
        try:
            for i in range(launches):
                launch(i % copies)
        finally:
            graph = stream.end_capture()
    graph.upload(stream)
    graph.launch(stream)
    once = _between(xp, stream, lambda: graph.launch(stream))
    rough(once)
    waking, count = max(1, math.ceil(WAKING_S / max(once, 1e-6))), launches

    def replay(repeat: int) -> list[float]:
        with arrays.on(stream):
            for _ in range(waking):
                graph.launch(stream)
            events = [_event(xp, stream)]
            for _ in range(repeat):
                graph.launch(stream)
                events.append(_event(xp, stream))
        stream.synchronize()
        return [float(xp.cuda.get_elapsed_time(*pair)) * 1e-3 / count for pair in pairwise(events)]

    return replay


def _event(xp: Any, stream: Any) -> Any:
    event = xp.cuda.Event()
    event.record(stream)
    return event


def _between(xp: Any, stream: Any, work: Callable[[], Any]) -> float:
    start = _event(xp, stream)
    work()
    end = _event(xp, stream)
    end.synchronize()
    return float(xp.cuda.get_elapsed_time(start, end)) * 1e-3


def _rough(xp: Any, launch: Callable[[int], None], copies: int, stream: Any) -> float:
    """Seconds of a launch, by single launches: too long for short kernels, which the host cannot feed fast enough."""
    launch(0)

    def several() -> None:
        for i in range(ROUGH):
            launch(i % copies)

    first = _between(xp, stream, several) / ROUGH
    if first > REPLAY_S:
        return first
    stream.begin_capture()
    try:
        for i in range(ROUGH * 8):
            launch(i % copies)
    finally:
        graph = stream.end_capture()
    graph.launch(stream)
    return _between(xp, stream, lambda: graph.launch(stream)) / (ROUGH * 8)
