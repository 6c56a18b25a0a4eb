"""Comparing with other libraries: each in a process of its own, one running at a time, timed in interleaved rounds.

Two thread pools in one process spoil each other's times, so every library, ours too, gets a fresh process
(`peer_child`) and preallocated arrays. A process runs only while it holds the token; it hands it on once its threads
have come to rest. All use the same clock, the same inputs, the same number of threads and the same cache policy. What
a library can do for an op is declared in the op's folder, in `peers.py`: PEERS, a tuple of `Peer`.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, exp, isfinite, log
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import backends, registry
from ..errors import DeviceError, PeerError, ProblemError
from ..measure.samples import POLICY, Sample, cold_bytes
from ..measure.stats import geometric_mean, median_interval, shift_interval

if TYPE_CHECKING:
    import numpy as np

    from ..device import Device
    from ..problem import Problem
    from .host import Child

OURS = "kernsearch"
TURN_S = 0.01  # samples of one turn, together; at most MOST_SAMPLES
MOST_SAMPLES = 9
INNER_S = 1e-3  # a warm sample repeats a call until it takes this long, so that waking threads does not count
BUDGET_S = 12.0  # for one problem, unless rounds are given
ROUNDS = (12, 40)  # at least, at most
CONFIDENCE = 0.99
_US = ""  # our process among the peers' names
AGREE = 1e-3  # of the largest value: what libraries may differ by and still compute the same

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


class Ready(NamedTuple):
    """A problem prepared in a library: a call without arguments, and the array it writes."""

    call: Callable[[], Any]
    output: np.ndarray
    details: Mapping[str, str] = {}


@dataclass(frozen=True)
class Peer:
    """A library that computes an op.

    needs     problem -> names of the packages it takes, the library itself first
    prepare   (problem, inputs by name, scalars, threads) -> Ready; runs in the child, loads the library
    describe  () -> version and whatever tells how the library runs here; after `prepare`
    own       another way to call kernsearch itself, no library to compare with
    """

    name: str
    needs: Callable[[Problem], tuple[str, ...]]
    prepare: Callable[[Problem, Mapping[str, np.ndarray], Mapping[str, float], int], Ready]
    describe: Callable[[], str] = lambda: ""
    own: bool = False


def peers_of(op: str) -> dict[str, Peer]:
    """What an op can be compared with, by name. Raises ProblemError for an unknown op."""
    module = registry.companion(op, "peers")
    return {peer.name: peer for peer in getattr(module, "PEERS", ())}


def check(problem: Problem, against: Sequence[str]) -> None:
    """Raise PeerError for a library that is unknown or lacks a package."""
    known = {name: peer for name, peer in peers_of(problem.op).items() if not peer.own}
    if not against:
        raise PeerError(f"nothing to compare with: want {', '.join(known) or 'a peer, of which there is none'}")
    for name in against:
        if name not in known:
            raise PeerError(f"peer {name!r}: {problem.op} compares with {', '.join(known) or 'none'}")
        for package in known[name].needs(problem):
            if importlib.util.find_spec(package) is None:
                raise PeerError(f"peer {name!r} needs the package {package!r}: pip install {package}")


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
    **options: Any,
) -> dict[str, Any]:
    """`bench_problems` for one problem. Raises what it raises, and ProblemError for a malformed problem."""
    backend, where = backends.resolve(device)
    problem = registry.problem(op, shape, dtype, backend=backend.name, **options)
    return bench_problems([problem], against, device=where, rounds=rounds, warm=warm, ours=ours)


def bench_problems(
    problems: Sequence[Problem],
    against: Sequence[str],
    *,
    device: Device,
    rounds: int | None = None,
    warm: bool = False,
    ours: str = OURS,
    budget_s: float = BUDGET_S,
    seed: int = 0,
) -> dict[str, Any]:
    """Time each problem in every library.

    {"results": [{"problem", "ours": {"median_s", "ci_s", ...}, "peers": {name: {"median_s", "ratio", "ratio_ci",
    ...}}, "busy"}], "geomean": {name: ratio}, ...}; ratio = peer time / our time, above 1 we are faster; intervals
    hold with 99 %. `warm` leaves the caches as the last call left them. `ours` may name another own way of calling,
    or a peer: against itself it is the A/A control of this very comparison.

    Raises PeerError for a library that is unknown, not installed, fails, or computes something else; DeviceError for
    anything but a CPU.
    """
    against = tuple(dict.fromkeys(against))
    if device.backend != "cpu":
        raise DeviceError(f"device {str(device)!r}: bench times the cpu only")
    if rounds is not None and rounds < 3:
        raise ProblemError(f"rounds {rounds}: want at least 3, fewer give no interval")
    for problem in problems:
        check(problem, against)
    how = _How(int(device.threads), 0 if warm else cold_bytes(device), rounds, budget_s, seed)
    results = [_bench_one(problem, against, ours, how) for problem in problems]
    return {
        "results": results,
        "geomean": {name: geometric_mean([row["peers"][name]["ratio"] for row in results]) for name in against},
        "device": device.key,
        "threads": how.threads,
        "cache": "warm" if warm else "cold",
        "policy": POLICY,
    }


class _How(NamedTuple):
    threads: int
    flush_bytes: int
    rounds: int | None
    budget_s: float
    seed: int


def _bench_one(problem: Problem, against: Sequence[str], ours: str, how: _How) -> dict[str, Any]:
    from .host import Child

    environment: dict[str, str | None] = {name: str(how.threads) for name in THREAD_VARIABLES}
    environment |= dict.fromkeys(HANDICAPS)
    libraries = {_US: ours, **{name: name for name in against}}
    with ExitStack() as stack:
        children = {
            key: stack.enter_context(Child(name, problem, environment, how.threads, how.seed))
            for key, name in libraries.items()
        }
        told = {key: child.prepare() for key, child in children.items()}
        for name in against:
            _agree(problem, ours, told[_US]["check"], name, told[name]["check"])
        turns = _Turns(children, how)
        turns.play()
    return {
        "problem": problem.key,
        "ours": {**turns.median(_US), "called": ours, **told[_US]["details"]},
        "peers": {
            name: {**turns.median(name), **turns.ratio(name), "library": told[name]["library"]} for name in against
        },
        "busy": turns.busy,
    }


def _agree(problem: Problem, ours: str, our: Sequence[float], name: str, their: Sequence[float]) -> None:
    """Both computed the same, seen through a random projection."""
    scale = max((abs(x) for x in our), default=0.0)
    off = [abs(x - y) for x, y in zip(our, their, strict=True)]
    if not all(error <= AGREE * scale for error in off):  # false for NaN
        worst = next((error for error in off if not isfinite(error)), max(off))
        raise PeerError(f"peer {name!r} computes something else than {ours} for {problem.key}: off by {worst:.2g}")


class _Turns:
    """The samples of every process, by round."""

    def __init__(self, children: Mapping[str, Child], how: _How):
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
        longest = max(pace.values())
        repeat = max(1, min(MOST_SAMPLES, ceil(TURN_S / longest)))
        cost += (repeat - 1) * len(pace) * (longest + cost / len(pace))
        least, most = ROUNDS
        rounds = how.rounds or max(least, min(most, int(how.budget_s / cost)))
        inner = {name: 1 if how.flush_bytes else max(1, ceil(INNER_S / s)) for name, s in pace.items()}
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
        both = list(zip(self.times[peer], self.times[_US], self.clean[peer], self.clean[_US], strict=True))
        kept = [row for row in both if row[2] and row[3]]
        used = kept if 2 * len(kept) >= len(both) else both
        centre, low, high = shift_interval([log(a / b) for a, b, _, _ in used], 1 - CONFIDENCE)
        return {"ratio": exp(centre), "ratio_ci": [exp(low), exp(high)], "rounds": len(used)}

    @property
    def busy(self) -> bool:
        return any(2 * sum(flags) < len(flags) for flags in self.clean.values())
