"""Asking, telling, counting, narrowing and ending a search."""

from __future__ import annotations

import math

import pytest
from toy import DEVICE, one_variant, seconds, variants, work

from kernsearch.errors import SpaceError
from kernsearch.feasible import FeasibleSpace
from kernsearch.search import SEARCHERS, Search
from kernsearch.space import Constraint, Param


def adds_up(search: Search) -> bool:
    counts = search.counts.to_json()
    return counts["asked"] == counts["measured"] + counts["duplicates"] + sum(counts["rejected"].values())


@pytest.fixture(params=SEARCHERS)
def searcher(request):
    return request.param


def test_every_candidate_asked_is_feasible_and_new(searcher):
    spaces = variants()
    with Search("toy", spaces, searcher=searcher, trials=60) as search:
        asked = []
        while (ask := search.ask()) is not None:
            assert spaces[ask.variant].contains(ask.config) is None
            asked.append((ask.variant, tuple(sorted(ask.config.items()))))
            search.tell_measured(ask, seconds(ask.variant, ask.config))
        assert len(asked) == len(set(asked)) == 60
        assert search.counts.measured == 60
        assert adds_up(search)


def test_a_small_space_is_searched_to_its_end(searcher):
    with Search("toy", one_variant(1, 2, 4, 8), searcher=searcher, trials=50) as search:
        work(search)
        assert sorted(p.config["BM"] for p in search.finished()) == [1, 2, 4, 8]
        assert search.ask() is None
        assert adds_up(search)


def test_all_of_several_variants_is_found_when_trials_allow(searcher):
    spaces = variants()
    whole = sum(space.count() for space in spaces.values())
    with Search("toy", spaces, searcher=searcher, trials=10 * whole, seed=3) as search:
        work(search)
        assert len(search.finished()) == whole
        assert search.best().config == {"BM": 64, "BN": 32, "TM": 4}
        assert search.best().seconds == pytest.approx(0.001)


@pytest.mark.parametrize("searcher", ["expected", "tpe", "local"])
def test_guided_searchers_find_the_best_of_a_smooth_space_early(searcher):
    with Search("toy", variants(), searcher=searcher, trials=70) as search:
        work(search)
        assert search.best().seconds < 0.0025


def test_the_same_seed_asks_the_same(searcher):
    runs = []
    for _ in range(2):
        with Search("toy", variants(), searcher=searcher, trials=30, seed=5) as search:
            work(search)
            runs.append([(p.variant, p.config, p.status) for p in search.finished()])
    assert runs[0] == runs[1]


def test_several_asks_may_be_out_at_once(searcher):
    with Search("toy", variants(), searcher=searcher, trials=40) as search:
        while asks := [ask for _ in range(7) if (ask := search.ask()) is not None]:
            assert len({(a.variant, tuple(sorted(a.config.items()))) for a in asks}) == len(asks)
            for ask in reversed(asks):
                search.tell_measured(ask, seconds(ask.variant, ask.config))
        assert search.counts.measured == 40


def test_refusals_are_counted_by_gate_and_told_pruned():
    with Search("toy", one_variant(1, 2, 4, 8), searcher="exhaustive") as search:
        for gate in ("compile", "execution", "correctness"):
            search.tell_rejected(search.ask(), gate, f"bad {gate}")
        search.tell_measured(search.ask(), 1.0)
        assert search.counts.to_json() == {
            "asked": 4,
            "measured": 1,
            "duplicates": 0,
            "rejected": {"space": 0, "compile": 1, "execution": 1, "correctness": 1},
        }
        assert [(p.status, p.gate, p.reason) for p in search.finished()][1] == (
            "rejected",
            "execution",
            "bad execution",
        )
        assert [t.state for t in search._study.trials()] == ["refused"] * 3 + ["measured"]


def test_an_abandoned_candidate_is_not_counted_and_may_come_again():
    with Search("toy", one_variant(1), trials=5) as search:
        search.abandon(search.ask())
        assert search.counts.asked == 0 and search.left == 5
        assert search.enqueue("only", {"BM": 1}, "again")
        search.tell_measured(search.ask(), 1.0)
        assert search.counts.asked == 1


def test_infeasible_suggestions_cost_a_reason_and_no_candidate():
    sparse = {
        "sparse": FeasibleSpace(
            [Param(n, tuple(range(8)), n) for n in ("BM", "BN", "BK")],
            [Constraint("not on the diagonal", lambda c, d, s: c["BM"] == c["BN"])],
            DEVICE,
            {},
        )
    }
    with Search("toy", sparse, searcher="tpe", trials=40) as search:
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, 1 + ask.config["BM"])
        assert search.counts.measured == 40
        assert search.counts.rejected["space"] > 0
        refused = [t for t in search._study.trials() if t.attrs.get("gate") == "space"]
        assert len(refused) == search.counts.rejected["space"]
        assert {(t.state, t.attrs["status"], t.attrs["reason"]) for t in refused} == {
            ("refused", "rejected", "not on the diagonal")
        }


def test_a_duplicate_is_told_with_the_trial_it_repeats():
    with Search("toy", one_variant(*range(20)), searcher="tpe", trials=20) as search:
        work(search)
        repeats = [t for t in search._study.trials() if t.attrs["status"] == "duplicate"]
        assert len(repeats) == search.counts.duplicates > 0
        for trial in repeats:
            of = int(trial.attrs["reason"].split()[-1])
            assert of < trial.number and search._study.trials()[of].config == trial.config
            assert trial.state == "refused"


def test_seeds_are_asked_first_and_repaired_when_infeasible():
    with Search("toy", variants()) as search:
        assert search.enqueue("split+combine", {"BM": 8, "BN": 64, "SPLIT": 4}, "record")
        assert search.enqueue("tile", {"BM": 128, "BN": 128, "TM": 4}, "model")
        assert not search.enqueue("tile", {"BM": 128, "BN": 16, "TM": 4}, "model")  # what the last one became
        assert not search.enqueue("unheard of", {}, "record")
        first, second = search.ask(), search.ask()
        assert (first.variant, first.config, first.origin) == (
            "split+combine",
            {"BM": 8, "BN": 64, "SPLIT": 4},
            "record",
        )
        assert second.origin == "model" and second.config == {"BM": 128, "BN": 16, "TM": 4}
        search.tell_measured(first, 1.0)
        assert not search.enqueue("split+combine", {"BM": 8, "BN": 64, "SPLIT": 4}, "record")
        assert search.counts.asked == 1


def test_fix_and_variant_narrow_what_is_asked(searcher):
    with Search("toy", variants(), searcher=searcher, trials=25, fix={"BM": 16}, variant="tile") as search:
        work(search)
        past = search.finished()
        assert {(p.variant, p.config["BM"]) for p in past} == {("tile", 16)}
        assert len(past) == 20


def test_a_variant_without_the_fixed_letter_is_left_out():
    with Search("toy", variants(), fix={"SPLIT": 4}) as search:
        assert set(search.searched) == {"split+combine"}


def test_what_is_not_kept_is_never_asked_and_distributions_stay_whole(searcher):
    def no_split(variant, config):
        return "needs a workspace" if variant == "split+combine" else None

    with Search("toy", variants(), searcher=searcher, keep=no_split, trials=60) as search:
        work(search)
        assert "split+combine" not in {p.variant for p in search.finished()}
        assert set(search._study.distributions["variant"].choices) == set(variants())
        assert search._study.distributions["BM"].choices == (4, 8, 16, 32, 64, 128)


@pytest.mark.parametrize(
    "how, says",
    [
        ({"fix": {"BX": 3}}, r"parameter 'BX': want one of BM, BN, SPLIT, TM"),
        ({"fix": {"BM": 7}}, r"BM=7: want one of 4, 8, 16, 32, 64, 128"),
        ({"fix": {"SPLIT": 2, "TM": 1}}, r"no variant allows SPLIT=2 with TM=1"),
        ({"fix": {"SPLIT": 8}}, r"toy: no candidate is left to search; split\+combine: more slabs than K"),
        ({"fix": {"BM": 4}, "variant": "tile"}, r"BM=4: want one of 8, 16, 32, 64, 128"),
        ({"variant": "tiel"}, r"variant 'tiel': want one of tile, split\+combine, naive"),
        ({"keep": lambda v, c: "too hungry"}, r"no candidate is left to search; tile: too hungry"),
        ({"seed": -1}, r"seed -1: want a whole number from 0 to 4294967295"),
        ({"seed": 1 << 32}, r"seed 4294967296: want a whole number from 0 to 4294967295"),
        ({"searcher": "oracle"}, r"searcher 'oracle': want one of expected, tpe, genetic, local, random, exhaustive"),
        ({"trials": 0}, r"trials 0: want at least 1"),
    ],
)
def test_a_filter_that_is_wrong_or_leaves_nothing_says_so_in_one_line(how, says):
    with pytest.raises(SpaceError, match=says) as raised:
        Search("toy", variants(), **how)
    assert "\n" not in str(raised.value)


def test_nothing_to_search_is_an_error():
    with pytest.raises(SpaceError, match="no variant to search"):
        Search("toy", {})


def test_a_huge_space_is_searched_without_listing_it(searcher):
    letters = [Param(f"P{i}", (1, 2, 3, 4), "") for i in range(15)]
    huge = FeasibleSpace(letters, [Constraint("P0 above P1", lambda c, d, s: c["P0"] > c["P1"])], DEVICE, {})
    with Search("toy", {"huge": huge}, searcher=searcher, trials=30) as search:
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, float(sum(ask.config.values())))
        assert search.counts.measured == 30


@pytest.mark.parametrize("time", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_a_bug(time):
    with Search("toy", variants()) as search, pytest.raises(ValueError, match="positive and finite"):
        search.tell_measured(search.ask(), time)


def test_a_trial_is_told_once():
    with Search("toy", variants()) as search:
        ask = search.ask()
        search.tell_measured(ask, 1.0)
        with pytest.raises(ValueError, match="told already"):
            search.tell_rejected(ask, "compile", "late")


def test_the_name_is_readable_and_ends_in_a_hash_of_the_space():
    def name(spaces, **how):
        with Search("gemm 8x8x8 on this", spaces, **how) as search:
            return search.name

    plain = name(one_variant(1, 2))
    assert plain.startswith("gemm 8x8x8 on this #") and len(plain.rpartition("#")[2]) == 8
    assert plain == name(one_variant(1, 2), fix={"BM": 1}, trials=3, searcher="random")
    assert len({plain, name(one_variant(1, 2, 4)), name(one_variant(1, 2), identity=["gcc 12"])}) == 3


def test_optuna_says_nothing(capfd, recwarn):
    with Search("toy", variants(), fix={"BM": 16}, trials=30) as search:
        work(search)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_the_largest_seed_serves_a_study_that_goes_on(searcher, tmp_path):
    for trials in (2, 4):
        storage = str(tmp_path / "studies.db")
        with Search("toy", variants(), searcher=searcher, seed=(1 << 32) - 1, storage=storage, trials=trials) as search:
            work(search)
