"""Comparing with other libraries: each in a process of its own, one running at a time, timed in interleaved rounds.

Two thread pools in one process spoil each other's times, so every library, ours too, gets a fresh process
(`peer_child`) and preallocated arrays. A process runs only while it holds the token; it hands it on once its threads
have come to rest. All use the same clock, the same inputs, the same number of threads and the same cache policy. What
a library can do for an op is declared in the op's folder, in `peers.py`: PEERS, a tuple of `Peer`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import ceil, exp, log
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import backends, registry
from ..candidate import check_memory
from ..errors import ProblemError
from ..measure.samples import POLICY, Sample, cold_bytes
from ..measure.stats import geometric_mean, median_interval, shift_interval
from .peer import OURS, agree, check

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Problem
    from .host import Child

TURN_S = 0.01  # samples of one turn, together; at most MOST_SAMPLES
MOST_SAMPLES = 9
INNER_S = 1e-3  # a warm sample repeats a call until it takes this long, so that waking threads does not count
BUDGET_S = 12.0  # for one problem, unless rounds are given
BUDGET_DEVICE_S = 3.0  # the same on a device, where samples are short
ROUNDS = (12, 40)  # at least, at most
CONFIDENCE = 0.99
US = ""  # our process among the peers' names

# How libraries are told the number of threads; set before they are loaded.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# Variables that make a library less than it can be here; taken away, so that peers are at their best.
HANDICAPS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_WAIT_POLICY",
)


def bench(
    op: str,
    *,
    shape: Sequence[int],
    against: Sequence[str] = ("numpy",),
    dtype: str | None = None,
    device: str = "auto",
    rounds: int | None = None,
    warm: bool = False,
    ours: str = OURS,
    end_to_end: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """`bench_problems` for one problem. Raises what it raises, and ProblemError for a malformed problem."""
    backend, where = backends.resolve(device)
    problem = registry.problem(op, shape, dtype, backend=backend.name, **options)
    return bench_problems([problem], against, device=where, rounds=rounds, warm=warm, ours=ours, end_to_end=end_to_end)


def bench_problems(
    problems: Sequence[Problem],
    against: Sequence[str],
    *,
    device: Device,
    rounds: int | None = None,
    warm: bool = False,
    ours: str = OURS,
    budget_s: float | None = None,
    seed: int = 0,
    end_to_end: bool = False,
    keep_going: bool = False,
) -> dict[str, Any]:
    """Time each problem in every library.

    {"results": [{"problem", "ours": {"median_s", "ci_s", ...}, "peers": {name: {"median_s", "ratio", "ratio_ci",
    ...}}, "busy"}], "geomean": {name: ratio}, ...}; ratio = peer time / our time, above 1 we are faster; intervals
    hold with 99 %. `warm` leaves the caches as the last call left them. `ours` may name another own way of calling,
    or a peer: against itself it is the A/A control of this very comparison. `end_to_end`: on a device, also what
    comes before the first result, as "first" of each library. `keep_going`: a library that fails at a problem gets an
    "error" there, and so does a problem at which we fail.

    Raises PeerError for a library that is unknown, not installed, fails, or computes something else, DeviceError for a
    problem that the device's memory does not hold.
    """
    against = tuple(dict.fromkeys(against))
    if rounds is not None and rounds < 3:
        raise ProblemError(f"rounds {rounds}: want at least 3, fewer give no interval")
    for problem in problems:
        check(problem, against, device.backend)
        check_memory(problem, device)
    if device.backend != "cpu":
        from .device_bench import bench_device

        how = How(1, 0, rounds, budget_s or BUDGET_DEVICE_S, seed)
        found = bench_device(problems, against, ours, device, how, warm=warm, cold=end_to_end, keep_going=keep_going)
    else:
        if end_to_end:
            raise ProblemError("--end-to-end: only on a device, where compiling, loading and transfers come first")
        how = How(int(device.threads), 0 if warm else cold_bytes(device), rounds, budget_s or BUDGET_S, seed)
        rows = [_bench_one(problem, against, ours, how) for problem in problems]
        found = {"results": rows, "threads": how.threads, "policy": POLICY}
    return {
        **found,
        "geomean": {name: geometric_mean(_ratios(found["results"], name)) for name in against},
        "device": device.key,
        "device_name": device.name,
        "cache": "warm" if warm else "cold",
    }


def _ratios(results: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Of a library at the problems where both it and we could be timed."""
    peers = [row.get("peers", {}).get(name, {}) for row in results]
    return [peer["ratio"] for peer in peers if "ratio" in peer]


class How(NamedTuple):
    threads: int
    flush_bytes: int
    rounds: int | None
    budget_s: float
    seed: int
    launches: int = 0  # on a device: calls of a graph, each sample is a replay of it


def _bench_one(problem: Problem, against: Sequence[str], ours: str, how: How) -> dict[str, Any]:
    from .host import Child

    environment: dict[str, str | None] = {name: str(how.threads) for name in THREAD_VARIABLES}
    environment |= dict.fromkeys(HANDICAPS)
    libraries = {US: ours, **{name: name for name in against}}
    with ExitStack() as stack:
        children = {
            key: stack.enter_context(Child(name, problem, environment, how.threads, how.seed))
            for key, name in libraries.items()
        }
        told = {key: child.prepare() for key, child in children.items()}
        for name in against:
            agree(problem, ours, told[US]["check"], name, told[name]["check"])
        turns = Turns(children, how)
        turns.play()
    return row_of(problem, ours, against, told, turns)


def row_of(
    problem: Problem, ours: str, against: Sequence[str], told: Mapping[str, Mapping[str, Any]], turns: Turns
) -> dict[str, Any]:
    """What is known of a problem once its turns are over; `told` is what each process said when it was prepared."""
    return {
        "problem": problem.key,
        "ours": {**turns.median(US), "called": ours, **told[US]["details"]},
        "peers": {
            name: {
                **turns.median(name),
                **turns.ratio(name),
                "library": told[name]["library"],
                "details": told[name]["details"],
            }
            for name in against
        },
        "busy": turns.busy,
    }


class Turns:
    """The samples of every process, by round."""

    def __init__(self, children: Mapping[str, Child], how: How):
        self.children, self.how = children, how
        self.times: dict[str, list[float]] = {name: [] for name in children}
        self.clean: dict[str, list[bool]] = {name: [] for name in children}
        self.taken: dict[str, list[Sample]] = {name: [] for name in children}

    def play(self) -> None:
        how = self.how
        cost, pace = 0.0, {}
        for name, child in self.children.items():
            child.turn(1, 1, how.flush_bytes)
            samples, seconds = child.turn(1, 1, how.flush_bytes)
            pace[name], cost = samples[0].seconds, cost + seconds
        longest = max(pace.values()) * max(1, how.launches)
        repeat = max(1, min(MOST_SAMPLES, ceil(TURN_S / longest)))
        cost += (repeat - 1) * len(pace) * (longest + cost / len(pace))
        least, most = ROUNDS
        rounds = how.rounds or max(least, min(most, int(how.budget_s / cost)))
        inner = {name: 1 if how.flush_bytes or how.launches else max(1, ceil(INNER_S / s)) for name, s in pace.items()}
        rng = random.Random(how.seed)
        for _ in range(rounds):
            order = list(self.children)
            rng.shuffle(order)
            for name in order:
                self._turn(name, repeat, inner[name])

    def _turn(self, name: str, repeat: int, inner: int) -> None:
        samples, _ = self.children[name].turn(repeat, inner, self.how.flush_bytes)
        if not any(s.clean for s in samples):
            samples += self.children[name].turn(repeat, inner, self.how.flush_bytes)[0]
        kept = [s.seconds for s in samples if s.clean]
        self.times[name].append(median(kept or [s.seconds for s in samples]))
        self.clean[name].append(bool(kept))
        self.taken[name] += samples

    def median(self, name: str) -> dict[str, Any]:
        kept = [s.seconds for s in self.taken[name] if s.clean] or [s.seconds for s in self.taken[name]]
        return {"median_s": median(kept), "ci_s": list(median_interval(kept, CONFIDENCE)[:2])}

    def ratio(self, peer: str) -> dict[str, Any]:
        """Peer time / our time over the rounds; those in which both were clean, when these are at least half."""
        both = list(zip(self.times[peer], self.times[US], self.clean[peer], self.clean[US], strict=True))
        kept = [row for row in both if row[2] and row[3]]
        used = kept if 2 * len(kept) >= len(both) else both
        centre, low, high = shift_interval([log(a / b) for a, b, _, _ in used], 1 - CONFIDENCE)
        return {"ratio": exp(centre), "ratio_ci": [exp(low), exp(high)], "rounds": len(used)}

    @property
    def busy(self) -> bool:
        return any(2 * sum(flags) < len(flags) for flags in self.clean.values())
