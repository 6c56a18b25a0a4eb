"""The play-off: interleaved rounds and a sequential test between the incumbent and near-best finalists.

Every contestant is timed once a round, in random order, and the incumbent twice: the A/A control. The random order
makes the log ratio of two equal contestants symmetric about zero whatever the noise, drift included, which is all
that the signed-rank test asks for. Looking at the data several times would find a difference sooner or later, so the
looks are fixed beforehand and the permitted error is divided among looks and comparisons.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..errors import Rejected
from .samples import POLICY, Measurement, Sample, Timer, run
from .stats import shift_interval

SAMPLE_S = 1e-3  # a contestant's part of a round: samples until this, at most 9
LOOKS = (4, 8, 16, 24, 32, 48, 64, 96, 128)  # the rounds after which a play-off may decide
SPEND = (1, 1, 2, 2, 2, 2, 2, 2, 2)  # each look's share of the permitted error
TIE = 0.01  # log ratios within this are equal for every purpose


@dataclass(frozen=True)
class Ratio:
    """time / incumbent's time, below 1 is faster, with its interval and how many pairs it rests on."""

    value: float
    ci: tuple[float, float]
    pairs: int

    @property
    def faster(self) -> bool:
        """Faster than the incumbent with confidence."""
        return self.ci[1] < 1

    @property
    def slower(self) -> bool:
        return self.ci[0] > 1

    @property
    def decided(self) -> bool:
        """Faster, slower, or so near that it does not matter."""
        return self.faster or self.slower or (math.exp(-TIE) < self.ci[0] and self.ci[1] < math.exp(TIE))


@dataclass(frozen=True)
class Playoff:
    """winner       the incumbent, unless a finalist is faster than it with confidence
    tied         contestants that could not be told from the winner, itself included, in the caller's order
    ratios       finalist -> Ratio to the incumbent; all intervals hold together, over all looks, with `confidence`
    control      the incumbent against itself; an interval without 1 means that the timing cannot be trusted
    measurements contestant -> Measurement from the play-off's samples
    refused      contestant -> reason, when it failed while being timed
    stopped      "decided", "budget" or "rounds"
    """

    incumbent: str
    winner: str
    tied: tuple[str, ...]
    ratios: dict[str, Ratio]
    control: Ratio
    measurements: dict[str, Measurement]
    confidence: float
    rounds: int
    busy: bool
    stopped: str
    refused: dict[str, str] = field(default_factory=dict)
    policy: str = POLICY

    @property
    def tie(self) -> bool:
        return len(self.tied) > 1

    @property
    def trusted(self) -> bool:
        """The incumbent did not differ from itself."""
        return self.control.ci[0] <= 1 <= self.control.ci[1]


@dataclass(frozen=True)
class Verdict:
    """Which candidate may be cached: the winner if it beats the default with confidence, else the default."""

    keep: str
    beats_default: bool
    sentence: str


def verdict(result: Playoff) -> Verdict:
    """For a play-off whose incumbent is the default candidate."""
    default, winner = result.incumbent, result.winner
    percent = f"{result.confidence:.0%}"
    if winner == default:
        why = f"no finalist beats the default with {percent} confidence; the default is kept"
        return Verdict(default, False, f"{why} (machine busy)" if result.busy else why)
    if not result.trusted:
        low, high = result.control.ci
        why = f"the default differs from itself ({low:.3f} to {high:.3f}), so the timing cannot be trusted"
        return Verdict(default, False, f"{why}; the default is kept")
    low, high = (1 / bound for bound in reversed(result.ratios[winner].ci))
    gain = f"{1 / result.ratios[winner].value:.3f} times as fast as the default ({low:.3f} to {high:.3f}, {percent})"
    others = [name for name in result.tied if name != winner]
    return Verdict(winner, True, f"{gain}; tied with {', '.join(others)}" if others else gain)


_CONTROL = "\0control"  # the incumbent's second turn in a round


class _Rounds:
    """The times of each contestant, one a round: NaN where it took no part."""

    def __init__(self, timers: Mapping[str, Timer], incumbent: str, seed: int):
        self.timers: dict[str, Timer] = {**timers, _CONTROL: timers[incumbent]}
        self.incumbent = incumbent
        self.active: list[str] = list(self.timers)
        self.times: dict[str, list[float]] = {name: [] for name in self.timers}
        self.clean: dict[str, list[bool]] = {name: [] for name in self.timers}
        self.taken: dict[str, list[Sample]] = {name: [] for name in self.timers}
        self.refused: dict[str, str] = {}
        self.random = random.Random(seed)
        self.repeat = 1

    def warm_up(self) -> None:
        paces = {name: self._guarded(name, 1) for name in list(self.active) if name != _CONTROL}
        pace = paces[self.incumbent]
        if pace:
            self.repeat = max(1, min(9, math.ceil(SAMPLE_S / min(s.seconds for s in pace))))

    def _guarded(self, name: str, repeat: int) -> list[Sample]:
        try:
            return run(self.timers[name], repeat)
        except Rejected as refusal:
            if name in (_CONTROL, self.incumbent):
                raise
            self.refused[name] = refusal.reason
            self.active.remove(name)
            return []

    def play(self) -> None:
        order = list(self.active)
        self.random.shuffle(order)
        turn: dict[str, list[Sample]] = {}
        for name in order:
            turn[name] = self._guarded(name, self.repeat)
        for name in order:  # one more chance for a turn without a clean sample, where clean ones are to be had
            if turn[name] and not self._futile and not any(s.clean for s in turn[name]):
                turn[name] = turn[name] + self._guarded(name, self.repeat)
        for name, times in self.times.items():
            samples = turn.get(name, [])
            kept = [s.seconds for s in samples if s.clean] or [s.seconds for s in samples]
            times.append(median(kept) if kept else math.nan)
            self.clean[name].append(any(s.clean for s in samples))
            self.taken[name] += samples

    @property
    def _futile(self) -> bool:
        """The machine is so busy that trying again takes time from the rounds and gives none that is clean."""
        turns = [clean for found in self.clean.values() for clean in found]
        return len(turns) >= LOOKS[0] and 2 * sum(turns) < len(turns)

    def pairs(self, one: str, other: str) -> list[float]:
        """Log ratios of the rounds both took part in; the clean ones when at least half are."""
        both = [
            (math.log(a / b), clean_a and clean_b)
            for a, b, clean_a, clean_b in zip(
                self.times[one], self.times[other], self.clean[one], self.clean[other], strict=True
            )
            if not (math.isnan(a) or math.isnan(b))
        ]
        kept = [d for d, clean in both if clean]
        return kept if 2 * len(kept) >= len(both) else [d for d, _ in both]

    def ratio(self, one: str, other: str, alpha: float) -> Ratio:
        differences = self.pairs(one, other)
        centre, low, high = shift_interval(differences, alpha)
        return Ratio(_exp(centre), (_exp(low), _exp(high)), len(differences))


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def _schedule(confidence: float) -> Iterator[tuple[int, float]]:
    """(rounds, error this look may spend), for every look; the errors sum to 1 - confidence."""
    for rounds, share in zip(LOOKS, SPEND, strict=True):
        yield rounds, (1 - confidence) * share / sum(SPEND)


def playoff(
    timers: Mapping[str, Timer],
    *,
    incumbent: str | None = None,
    order: Sequence[str] | None = None,
    confidence: float = 0.99,
    budget_s: float = 30.0,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    policy: str = POLICY,
) -> Playoff:
    """Decide between the incumbent (the first name unless given) and the other contestants.

    `order` breaks ties: names, the preferred one (fewer resources, then key) first; by default the order of `timers`.
    The test looks at the data after fixed numbers of rounds and divides its error over looks and comparisons, so that
    all its statements about the incumbent hold together with `confidence`, however often it looked. It ends when
    nothing is left to decide, when the next round would not fit `budget_s`, or after the last look. With fewer than
    three rounds nothing is decided and the incumbent wins.

    Raises Rejected when the incumbent itself fails; a finalist that fails is left out and named in `refused`.
    """
    incumbent = next(iter(timers)) if incumbent is None else incumbent
    order = list(timers if order is None else order)
    if incumbent not in timers or set(order) != set(timers):
        raise ValueError("order and incumbent must name the timers")
    started = clock()
    rounds = _Rounds(timers, incumbent, seed)
    rounds.warm_up()
    state = _State(rounds, order, len(timers) - 1)
    stopped, played, last = "rounds", 0, clock() - started
    for look, error in _schedule(confidence):
        while played < look and stopped != "budget":
            begun = clock()
            if played and begun - started + last > budget_s:
                stopped = "budget"
                break
            rounds.play()
            last = clock() - begun
            played += 1
        state.look(error)
        if stopped == "budget":
            break
        if state.decided():
            stopped = "decided"
            break
    return state.result(confidence, played, stopped, policy)


class _State:
    """What the looks so far say."""

    def __init__(self, rounds: _Rounds, order: list[str], finalists: int):
        self.rounds, self.order = rounds, order
        self.incumbent = rounds.incumbent
        self.comparisons = max(1, finalists)
        self.between = finalists * (finalists - 1) // 2
        nothing = Ratio(math.nan, (0.0, math.inf), 0)
        self.ratios: dict[str, Ratio] = {name: nothing for name in order if name != self.incumbent}
        self.control = nothing
        self.leader = self.incumbent
        self.to_leader: dict[str, Ratio] = {}

    def look(self, error: float) -> None:
        """Each contestant against the incumbent and against the leader; the hopeless ones leave."""
        share = error / 2 if self.between else error  # half for the incumbent, half among the finalists
        self.control = self.rounds.ratio(_CONTROL, self.incumbent, error)
        playing = [name for name in self.ratios if name in self.rounds.active]
        for name in playing:
            self.ratios[name] = self.rounds.ratio(name, self.incumbent, share / self.comparisons)
        values = {self.incumbent: 1.0, **{name: self.ratios[name].value for name in playing}}
        self.leader = min(values, key=lambda name: values[name])
        if self.leader == self.incumbent:
            self.to_leader = {name: self.ratios[name] for name in playing}
        else:
            others = [name for name in playing if name != self.leader]
            self.to_leader = {n: self.rounds.ratio(n, self.leader, share / self.between) for n in others}
        for name, ratio in list(self.to_leader.items()):
            if ratio.slower:
                self.rounds.active.remove(name)
                del self.to_leader[name]

    def decided(self) -> bool:
        lead = [] if self.leader == self.incumbent else [self.ratios[self.leader]]
        return all(ratio.decided for ratio in [*lead, *self.to_leader.values()])

    def result(self, confidence: float, played: int, stopped: str, policy: str) -> Playoff:
        """Among the contestants that are not slower than the leader with confidence and within 1 % of it, the first in
        order that beats the incumbent wins."""
        unsettled = {self.leader, *self.to_leader}
        near = [n for n in unsettled if n == self.leader or self.to_leader[n].value <= math.exp(TIE)]
        better = [n for n in self.order if n in near and n != self.incumbent and self.ratios[n].faster]
        winner = better[0] if better else self.incumbent
        if winner == self.incumbent:
            unsettled = {n for n in unsettled if n != winner and not self.ratios[n].slower} | {winner}
        taken = {name: samples for name, samples in self.rounds.taken.items() if samples and name != _CONTROL}
        measurements = {name: Measurement.of(samples, policy=policy) for name, samples in taken.items()}
        return Playoff(
            incumbent=self.incumbent,
            winner=winner,
            tied=tuple(n for n in self.order if n in unsettled),
            ratios={n: r for n, r in self.ratios.items() if n not in self.rounds.refused},
            control=self.control,
            measurements=measurements,
            confidence=confidence,
            rounds=played,
            busy=any(m.busy for m in measurements.values()),
            stopped=stopped,
            refused=dict(self.rounds.refused),
            policy=policy,
        )
