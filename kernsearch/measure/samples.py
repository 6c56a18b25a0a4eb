"""Samples of a candidate's time, which of them count, and what they say.

A sample counts as clean when its threads waited for a processor for at most 1 % of its time (and the moment that
waking a thread takes). Unclean samples are taken again a bounded number of times; when fewer than half are clean the
measurement says that the machine was busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from ..device import Device
from ..errors import Rejected
from .stats import median_interval

POLICY = "cold-median-signedrank-1"  # change it when two measurements may no longer be compared

COLD = 2  # times the caches' size is streamed through them before a cold sample
LEAST_COLD_BYTES = 64 << 20
MEMORY_SHARE = 1 / 8  # of the machine's memory that this may take
WAIT_SHARE = 0.01  # of a sample's time; more run-queue wait makes it unclean
WAKE_S = 1e-4  # waking the pool's sleeping threads costs up to this even on an idle machine; preemption costs more
AGAIN = 2  # times that missing clean samples are tried again


def cold_bytes(device: Device) -> int:
    """Bytes to stream through the caches, by all threads together, so that none of them holds anything of the arrays.

    Threads may lie in several third-level caches, each of which must see enough.
    """
    facts = device.facts
    threads = facts.get("threads", 1)
    third = facts.get("l3_bytes", 0) * min(facts.get("l3_count", 1), threads)
    wanted = max(COLD * (third + threads * facts.get("l2_bytes", 0)), LEAST_COLD_BYTES)
    return int(min(wanted, max(MEMORY_SHARE * facts.get("memory_bytes", math.inf), LEAST_COLD_BYTES)))


def policy(device: Device) -> str:
    """The id of the policy that times on a device are taken by."""
    if device.backend == "cuda":
        from ..backends.cuda import timing

        return timing.POLICY
    return POLICY


class Timing(Protocol):
    """What a timer returns: one entry a repeat, in seconds; cpu and wait are sums over all threads."""

    @property
    def seconds(self) -> Sequence[float]: ...
    @property
    def cpu_seconds(self) -> Sequence[float]: ...
    @property
    def wait_seconds(self) -> Sequence[float]: ...


Timer = Callable[[int], Timing]


@dataclass(frozen=True)
class Sample:
    """Times of one run, or of each of many runs that were timed together; `wake_s` is its share of waking threads."""

    seconds: float
    cpu_s: float
    wait_s: float
    wake_s: float = WAKE_S

    @property
    def clean(self) -> bool:
        return self.wait_s <= max(WAIT_SHARE * self.seconds, self.wake_s)


@dataclass(frozen=True)
class Measurement:
    """median_s with its interval ci_s, which covers the true median with `confidence` (less than 0.99 below 8 samples).

    samples   the seconds that count, in the order taken: the clean ones, or all when none was clean
    cpu_s     median processor time of a sample, over all threads; wait_s: median run-queue wait
    clean     share of the samples taken that were clean; busy: under half were
    hopeless  stopped early because the incumbent is far ahead
    """

    median_s: float
    ci_s: tuple[float, float]
    confidence: float
    samples: tuple[float, ...]
    cpu_s: float
    wait_s: float
    clean: float
    busy: bool
    hopeless: bool = False
    policy: str = POLICY

    @classmethod
    def of(cls, taken: Sequence[Sample], *, hopeless: bool = False, policy: str = POLICY) -> Measurement:
        kept = [s for s in taken if s.clean]
        share = len(kept) / len(taken)
        kept = kept or list(taken)
        low, high, level = median_interval([s.seconds for s in kept])
        return cls(
            median_s=median(s.seconds for s in kept),
            ci_s=(low, high),
            confidence=level,
            samples=tuple(s.seconds for s in kept),
            cpu_s=median(s.cpu_s for s in kept),
            wait_s=median(s.wait_s for s in kept),
            clean=share,
            busy=share < 0.5,
            hopeless=hopeless,
            policy=policy,
        )


def run(timer: Timer, repeat: int) -> list[Sample]:
    """Raises Rejected at the execution gate for a time that no kernel can take."""
    timing = timer(repeat)
    if len(timing.seconds) == 0:
        raise Rejected("the timer returned no sample", gate="execution")
    for seconds in timing.seconds:
        if not (math.isfinite(seconds) and seconds > 0):
            raise Rejected(f"measured {seconds} s: want a positive time", gate="execution")
    return [Sample(*each) for each in zip(timing.seconds, timing.cpu_seconds, timing.wait_seconds, strict=True)]


def take(timer: Timer, count: int, taken: list[Sample]) -> None:
    """Adds samples until `count` more are clean, trying the missing ones twice again."""
    for _ in range(1 + AGAIN):
        new = run(timer, count)
        taken += new
        count -= sum(s.clean for s in new)
        if count <= 0:
            return
