"""A quick look at one candidate."""

from __future__ import annotations

import math

from .samples import Measurement, Sample, Timer, run, take

WARM_S = 0.01  # a first sample shorter than this only warms up
QUICK_S = 0.2  # what the samples of a quick look may take together
QUICK_SAMPLES = (3, 31)  # at least, at most
HOPELESS = ((1, 1.5), (3, 1.2))  # after so many samples: slower than the incumbent by this is enough to stop
BUSY_FACTOR = 2.0  # without one clean sample, hopeless means slower by this much more


def quick(timer: Timer, *, incumbent_s: float | None = None) -> Measurement:
    """A first look at a candidate, 3 to 31 samples or about 0.2 s.

    A candidate far behind `incumbent_s` is dropped after one or three samples (`hopeless`); one that seems to beat it
    is confirmed by as many samples again before it may count. Raises Rejected(gate="execution") for zero, negative,
    infinite or NaN times, and whatever the timer raises.
    """
    taken: list[Sample] = []
    first = run(timer, 1)
    pace = first[0].seconds
    if pace < WARM_S:
        more = min(math.ceil(WARM_S / pace), 20)
        pace = min(s.seconds for s in run(timer, more))
    else:
        taken += first
    least, most = QUICK_SAMPLES
    wanted = max(least, min(most, round(QUICK_S / pace)))
    for count, factor in HOPELESS:
        clean = [s.seconds for s in taken if s.clean]
        if len(clean) < count:
            take(timer, count - len(clean), taken)
            clean = [s.seconds for s in taken if s.clean]
        fastest = min(clean) if clean else min(s.seconds for s in taken) / BUSY_FACTOR
        if incumbent_s is not None and fastest > factor * incumbent_s:
            return Measurement.of(taken, hopeless=True)
    if clean and (missing := wanted - len(clean)) > 0:
        take(timer, missing, taken)
    found = Measurement.of(taken)
    if incumbent_s is not None and found.median_s < incumbent_s:
        take(timer, wanted, taken)
        found = Measurement.of(taken)
    return found
