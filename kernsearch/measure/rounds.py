"""Times of several candidates side by side: every one once a round, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import median

from .samples import Timer, run

SAMPLES = 3  # of a candidate in one round; their median counts


def interleaved(
    timers: Mapping[str, Timer], *, rounds: int, seed: int = 0, listener: Callable[[int], None] = lambda done: None
) -> dict[str, list[float]]:
    """Seconds of each candidate, one value a round, after a turn for each to warm up.

    Candidates of a round are comparable whatever the clocks did between rounds. Raises Rejected for a candidate that
    fails, and for times that no kernel can take.
    """
    order, shuffler = list(timers), random.Random(seed)
    for name in order:
        run(timers[name], 1)
    times: dict[str, list[float]] = {name: [] for name in timers}
    for done in range(rounds):
        shuffler.shuffle(order)
        for name in order:
            samples = run(timers[name], SAMPLES)
            clean = [s.seconds for s in samples if s.clean] or [s.seconds for s in samples]
            times[name].append(median(clean))
        listener(done + 1)
    return times
