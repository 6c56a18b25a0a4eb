"""Statistics over simulated timers: their noise is known, so error rates and coverage can be counted."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernsearch.measure as measure
from kernsearch.device import Device
from kernsearch.errors import Rejected
from kernsearch.measure.look import QUICK_SAMPLES
from kernsearch.measure.samples import LEAST_COLD_BYTES, cold_bytes
from kernsearch.measure.stats import geometric_mean, median_interval, shift_interval, student_quantile


@dataclass
class Taken:
    seconds: list[float]
    cpu_seconds: list[float]
    wait_seconds: list[float]


@dataclass
class Machine:
    """A machine with its own clock, whose speed may drift."""

    rng: random.Random
    drift: float = 0.0
    now: float = 0.0
    slowness: float = 0.0
    trend: float = 0.0

    def clock(self) -> float:
        return self.now


@dataclass
class Simulated:
    """A timer with lognormal noise; `wait` gives the run-queue wait of a sample as a share of its time."""

    machine: Machine
    base: float
    noise: float = 0.01
    wait: object = 0.0
    outliers: float = 0.0
    calls: list[int] = field(default_factory=list)

    def __call__(self, repeat):
        self.calls.append(repeat)
        seconds, waits = [], []
        for _ in range(repeat):
            m = self.machine
            m.slowness = 0.97 * m.slowness + m.rng.gauss(0, 1) * m.drift
            error = m.slowness + m.trend * m.now + m.rng.gauss(0, self.noise)
            if m.rng.random() < self.outliers:
                error += abs(m.rng.gauss(0, 0.2))
            seconds.append(self.base * math.exp(error))
            m.now += seconds[-1]
            share = self.wait() if callable(self.wait) else self.wait
            waits.append(share * seconds[-1])
        return Taken(seconds, list(seconds), waits)


def machine(seed=0, drift=0.0):
    return Machine(random.Random(seed), drift)


def constant(*seconds):
    """A timer that returns these times in turn, the last one for ever."""
    left = list(seconds)

    def timer(repeat):
        out = [left.pop(0) if len(left) > 1 else left[0] for _ in range(repeat)]
        return Taken(out, out, [0.0] * repeat)

    return timer


def contest(bases, seed, *, drift=0.0, outliers=0.0, budget_s=math.inf, noise=0.01, wait=0.0):
    m = machine(seed, drift)
    timers = {f"c{i}": Simulated(m, base, noise, wait, outliers) for i, base in enumerate(bases)}
    return measure.playoff(timers, seed=seed, budget_s=budget_s, clock=m.clock)


# intervals


@pytest.mark.parametrize("count", [8, 9, 15, 31, 60])
def test_the_median_interval_covers_as_often_as_it_says(count):
    rng = np.random.default_rng(count)
    samples = np.exp(rng.gumbel(size=(4000, count)) * 0.05)  # skewed, as times are
    truth = math.exp(-math.log(math.log(2)) * 0.05)
    found = [median_interval(row) for row in samples]
    covered = np.mean([low <= truth <= high for low, high, _ in found])
    level = found[0][2]
    assert level >= 0.99
    assert covered >= level - 3 * math.sqrt(level * (1 - level) / len(samples))


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=200), st.sampled_from([0.9, 0.95, 0.99, 0.999]))
def test_a_median_interval_holds_the_median_and_never_claims_more_than_its_range_is_worth(samples, confidence):
    low, high, level = median_interval(samples, confidence)
    assert min(samples) <= low <= np.median(samples) <= high <= max(samples)
    assert level >= confidence or (low, high) == (min(samples), max(samples))
    assert level <= 1 - 2 * 0.5 ** len(samples) + 1e-12


@pytest.mark.parametrize("count", [4, 8, 12, 16, 40])
def test_the_interval_of_paired_differences_covers_as_often_as_it_says(count):
    rng = np.random.default_rng(count)
    differences = 0.02 + 0.014 * rng.standard_normal((3000, count))
    covered = np.mean([low <= 0.02 <= high for _, low, high in (shift_interval(d, 0.01) for d in differences)])
    assert covered >= 0.99 - 3 * math.sqrt(0.99 * 0.01 / len(differences))


def test_two_pairs_decide_nothing():
    assert shift_interval([0.5, 0.5], 0.01)[1:] == (-math.inf, math.inf)


def test_signed_ranks_and_student_agree_with_published_tables():
    differences = np.arange(1, 21) / 100  # Walsh averages of 20 pairs; the table's critical value for 1 % is 37
    walsh = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
    assert shift_interval(differences, 0.01)[1] == pytest.approx(walsh[37])
    for degrees, alpha, table in ((1, 0.05, 12.706), (2, 0.01, 9.925), (4, 0.05, 2.776), (7, 0.001, 5.408)):
        assert student_quantile(degrees, alpha) == pytest.approx(table, rel=1e-3)


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1)
    assert math.isnan(geometric_mean([]))


# a quick look


@pytest.mark.parametrize("bad", [0.0, -1e-3, math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_time_that_no_kernel_can_take_is_refused_at_the_execution_gate(bad, at):
    timer = constant(*[0.05] * at, bad, 0.05)
    with pytest.raises(Rejected, match="positive time") as refusal:
        measure.quick(timer, incumbent_s=1.0)
    assert refusal.value.gate == "execution"


def test_a_hopeless_candidate_is_dropped_after_one_run():
    timer = Simulated(machine(), 0.3)
    found = measure.quick(timer, incumbent_s=0.15)
    assert found.hopeless
    assert sum(timer.calls) == 1


def test_a_somewhat_slower_candidate_is_dropped_after_three_runs():
    timer = Simulated(machine(), 0.195)
    assert measure.quick(timer, incumbent_s=0.15).hopeless
    assert sum(timer.calls) == 3


def test_a_candidate_near_the_incumbent_is_not_dropped():
    assert not measure.quick(Simulated(machine(), 0.155), incumbent_s=0.15).hopeless


def test_a_seeming_new_best_is_confirmed_by_as_many_samples_again():
    slower, faster = (measure.quick(Simulated(machine(), t), incumbent_s=0.05) for t in (0.052, 0.048))
    assert len(faster.samples) == 2 * len(slower.samples)


def test_one_lucky_sample_does_not_make_a_new_best():
    assert measure.quick(constant(0.02, 0.06), incumbent_s=0.05).median_s == 0.06


def test_the_first_runs_of_a_short_kernel_only_warm_up():
    found = measure.quick(constant(*[5e-3] * 2, 1e-4))
    assert set(found.samples) == {1e-4}


def test_long_kernels_get_few_samples_and_short_ones_more_but_never_without_bound():
    counts = [len(measure.quick(Simulated(machine(), t)).samples) for t in (10.0, 0.02, 1e-3, 1e-6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == QUICK_SAMPLES


def test_the_same_candidate_measured_again_lies_in_the_interval():
    found = measure.quick(Simulated(machine(3), 1e-3))
    assert found.ci_s[0] <= found.median_s <= found.ci_s[1]
    assert found.confidence >= 0.99
    assert found.policy == measure.POLICY
    assert measure.quick(Simulated(machine(4), 1.0)).confidence < 0.99  # three samples cannot be worth more


def test_samples_that_waited_for_a_processor_do_not_count():
    m = machine(1)
    waits = iter([0.0, 0.5, 0.0] * 1000)
    timer = Simulated(m, 0.02, wait=lambda: next(waits))
    found = measure.quick(timer)
    assert len(found.samples) == sum(timer.calls) - round(sum(timer.calls) / 3)
    assert 0.5 < found.clean < 1
    assert not found.busy


def test_a_machine_that_is_always_busy_is_said_to_be_and_asked_only_so_often():
    timer = Simulated(machine(), 0.05, wait=0.5)
    found = measure.quick(timer, incumbent_s=0.04)
    assert found.busy
    assert found.clean == 0
    assert found.median_s == pytest.approx(0.05, rel=0.05)
    assert sum(timer.calls) < 20


def test_waking_threads_does_not_make_a_short_sample_unclean():
    assert measure.quick(Simulated(machine(), 1e-4, wait=0.6)).clean == 1


def test_runs_timed_together_share_what_waking_threads_may_take():
    alone, shared = (measure.Sample(1e-5, 1e-5, 5e-5, wake_s=1e-4 / runs) for runs in (1, 100))
    assert alone.clean
    assert not shared.clean


# the play-off


@pytest.mark.parametrize("noise", [{}, {"outliers": 0.05}, {"drift": 0.01}], ids=["even", "outliers", "drift"])
@pytest.mark.parametrize(("finalists", "runs"), [(1, 800), (4, 200)])
def test_equal_contestants_are_told_apart_in_at_most_one_run_of_a_hundred(finalists, runs, noise):
    results = [contest([0.1] * (finalists + 1), seed, **noise) for seed in range(runs)]
    assert sum(any(q.slower or q.faster for q in r.ratios.values()) for r in results) <= runs // 100
    assert sum(not r.trusted for r in results) <= runs // 100


@pytest.mark.parametrize("noise", [{}, {"outliers": 0.05}, {"drift": 0.01}], ids=["even", "outliers", "drift"])
def test_two_percent_are_found_almost_always(noise):
    results = [contest([0.1, 0.098], seed, **noise) for seed in range(200)]
    assert sum(r.winner == "c1" for r in results) >= 0.95 * len(results)
    assert sum(r.ratios["c1"].ci[0] <= 0.98 <= r.ratios["c1"].ci[1] for r in results) >= 0.98 * len(results)


def test_a_machine_that_slows_down_steadily_favours_nobody():
    results = []
    for seed in range(100):
        m = Machine(random.Random(seed), trend=0.02)  # 2 % a second: each turn in a round is slower than the one before
        timers = {name: Simulated(m, 0.1, noise=0.002) for name in ("default", "other")}
        results.append(measure.playoff(timers, seed=seed, budget_s=30, clock=m.clock))
    assert sum(r.winner == "other" or r.ratios["other"].slower for r in results) <= 1
    assert sum(not r.trusted for r in results) <= 1


def test_a_slower_finalist_never_wins_and_leaves_early():
    result = contest([0.1, 0.11, 0.099, 0.2], 5)
    assert result.winner in ("c0", "c2")
    assert result.ratios["c1"].slower
    assert result.ratios["c3"].slower
    assert len(result.measurements["c3"].samples) < len(result.measurements["c0"].samples)


def test_a_large_difference_is_settled_in_few_rounds():
    assert contest([0.1, 0.07], 1).rounds <= 8


def test_the_incumbent_is_timed_against_itself():
    result = contest([0.1, 0.09], 2)
    assert result.trusted
    assert result.control.value == pytest.approx(1, abs=0.02)
    assert result.control.pairs == result.rounds


def test_an_equal_pair_ahead_of_the_incumbent_is_a_tie_won_by_the_first_in_order():
    m = machine(7)
    timers = {"default": Simulated(m, 0.1), "big": Simulated(m, 0.09), "small": Simulated(m, 0.0901)}
    result = measure.playoff(timers, order=["small", "big", "default"], clock=m.clock, budget_s=math.inf)
    assert result.winner == "small"
    assert result.tied == ("small", "big")
    assert result.tie


def test_a_preferred_order_does_not_excuse_a_clearly_slower_candidate():
    m = machine(7)
    timers = {"default": Simulated(m, 0.1), "big": Simulated(m, 0.08), "small": Simulated(m, 0.09)}
    result = measure.playoff(timers, order=["small", "big", "default"], clock=m.clock)
    assert (result.winner, result.tie) == ("big", False)


def test_a_spent_budget_ends_the_play_off_undecided():
    result = contest([0.1, 0.0995, 0.0998], 3, budget_s=3.0)
    assert result.stopped == "budget"
    assert sum(map(sum, (m.samples for m in result.measurements.values()))) <= 3.0
    assert (result.winner, result.tie) == ("c0", True)


def test_a_budget_for_one_round_decides_nothing():
    result = contest([0.1, 0.05], 3, budget_s=0.0)
    assert (result.rounds, result.winner) == (1, "c0")
    assert not measure.verdict(result).beats_default


def test_a_play_off_can_be_repeated():
    assert contest([0.1, 0.098, 0.1], 11) == contest([0.1, 0.098, 0.1], 11)


def test_unclean_samples_leave_the_pairs_and_a_busy_machine_is_said_to_be():
    m = machine(5)
    rng = random.Random(5)
    sometimes = contest([0.1, 0.09], 5, wait=lambda: 0.5 if rng.random() < 0.2 else 0.0)
    assert not sometimes.busy
    assert sometimes.winner == "c1"
    assert min(x.clean for x in sometimes.measurements.values()) < 1
    timers = {"a": Simulated(m, 0.1, wait=0.3), "b": Simulated(m, 0.09, wait=0.3)}
    always = measure.playoff(timers, clock=m.clock)
    assert always.busy
    assert always.winner == "b"  # paired and in random order, so still a fair contest


def test_a_finalist_that_fails_is_left_out_and_the_next_one_is_unharmed():
    m = machine(2)

    def crashes(repeat):
        raise Rejected("killed by signal 11", gate="execution")

    broken_later = constant(*[0.05] * 3, math.nan)
    timers = {"default": Simulated(m, 0.1), "crash": crashes, "nan": broken_later, "good": Simulated(m, 0.08)}
    result = measure.playoff(timers, clock=m.clock)
    assert result.winner == "good"
    assert set(result.refused) == {"crash", "nan"}
    assert set(result.ratios) == {"good"}


def test_an_incumbent_that_fails_is_an_error():
    with pytest.raises(Rejected, match="positive time"):
        measure.playoff({"default": constant(0.1, 0.0), "other": constant(0.1)}, clock=machine().clock)


def test_order_and_incumbent_must_be_contestants():
    with pytest.raises(ValueError, match="name the timers"):
        measure.playoff({"a": constant(0.1)}, incumbent="b")


# what may be cached


def test_only_a_confident_winner_replaces_the_default():
    won = measure.verdict(contest([0.1, 0.09], 1))
    assert (won.keep, won.beats_default) == ("c1", True)
    assert "times as fast as the default" in won.sentence
    same = measure.verdict(contest([0.1, 0.1], 1))
    assert (same.keep, same.beats_default) == ("c0", False)
    assert "the default is kept" in same.sentence


def test_a_default_that_differs_from_itself_is_kept():
    result = contest([0.1, 0.05], 1)
    bent = measure.Playoff(**{**vars(result), "control": measure.Ratio(1.1, (1.05, 1.2), 16)})
    assert not bent.trusted
    kept = measure.verdict(bent)
    assert (kept.keep, kept.beats_default) == ("c0", False)
    assert "cannot be trusted" in kept.sentence


@pytest.mark.parametrize("threads, count", [(2, 1), (64, 8), (2, 8), (96, 1)])
def test_every_cache_that_may_hold_an_array_is_streamed_through(threads, count):
    third, second = 96 << 20, 2 << 20
    facts = {"threads": threads, "l2_bytes": second, "l3_bytes": third, "l3_count": count, "memory_bytes": 512 << 30}
    each = cold_bytes(Device("cpu", 0, "", "", "", facts)) / threads
    inside = -(-threads // count)  # threads beside one cache
    assert each > second and each * inside > third
    small = {**facts, "memory_bytes": 1 << 30}
    assert cold_bytes(Device("cpu", 0, "", "", "", small)) <= 128 << 20
    assert cold_bytes(Device("cpu", 0, "", "", "")) == LEAST_COLD_BYTES
