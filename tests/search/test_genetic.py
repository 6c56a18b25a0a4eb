"""Populations of candidates: what children are made of, and when the next population begins."""

from __future__ import annotations

import math
from itertools import product

import pytest
from toy import DEVICE, seconds, variants

from kernsearch.feasible import FeasibleSpace
from kernsearch.search import Search
from kernsearch.search.genetic import Genetic
from kernsearch.search.pool import Candidate, Pool, candidate
from kernsearch.space import Constraint, Param

VALUES = (1, 2, 4, 8, 16, 32)


def pool_of(*constraints: Constraint, letters: str = "ABCD") -> Pool:
    params = [Param(letter, VALUES, letter) for letter in letters]
    return Pool({"only": FeasibleSpace(params, constraints, DEVICE, {})}, lambda c: None, seed=1)


def living(searcher: Genetic, *members: Candidate) -> None:
    for number, member in enumerate(members):
        searcher.told(member, 1.0 + number)


def test_without_mutation_a_child_has_each_letter_of_one_of_its_parents() -> None:
    pool = pool_of()
    searcher = Genetic(pool, mutated=0.0)
    living(searcher, candidate("only", dict.fromkeys("ABCD", 2)), candidate("only", dict.fromkeys("ABCD", 16)))
    children = [searcher.child() for _ in range(200)]
    assert {v for child in children if child for v in child.config.values()} == {2, 16}
    assert len(set(children)) == 2**4


def test_with_mutation_another_letter_changes_at_most() -> None:
    searcher = Genetic(pool_of(), mutated=1.0)
    living(searcher, *(candidate("only", {**dict.fromkeys("ABC", 4), "D": d}) for d in (4, 8)))
    children = [child for _ in range(200) if (child := searcher.child()) is not None]
    changed = [sum(child.config[name] != 4 for name in "ABC") + (child.config["D"] not in (4, 8)) for child in children]
    assert len(children) == 200 and max(changed) == 1


def test_children_are_feasible_where_mixtures_seldom_are() -> None:
    pool = pool_of(Constraint("all alike or two", lambda c, d, s: len(set(c.values())) <= 2))
    searcher = Genetic(pool)
    living(searcher, *(candidate("only", dict.fromkeys("ABCD", v)) for v in VALUES))
    assert all(child is not None and pool.spaces["only"].contains(child.config) is None
               for child in (searcher.child() for _ in range(200)))  # fmt: skip


def test_parents_of_two_variants_have_children_of_both() -> None:
    pool = Pool(variants(), lambda c: None, seed=0)
    searcher = Genetic(pool, mutated=0.0)
    one, other = candidate("tile", {"BM": 8, "BN": 8, "TM": 1}), candidate("split+combine", {"BM": 16, "BN": 16,
                                                                                            "SPLIT": 2})  # fmt: skip
    living(searcher, one, other)
    children = [searcher.child() for _ in range(100)]
    assert {child.variant for child in children if child} == {"tile", "split+combine"}
    assert all(child and pool.spaces[child.variant].contains(child.config) is None for child in children)


def test_a_population_keeps_the_fastest_and_no_refusal() -> None:
    searcher = Genetic(pool_of(letters="A"), size=3)
    for value, took in zip(VALUES, (5.0, 1.0, None, 4.0, 2.0, 9.0), strict=True):
        searcher.told(candidate("only", {"A": value}), took)
    assert sorted(searcher.living.values()) == [1.0, 2.0, 4.0]


def test_a_population_that_gets_no_faster_gives_way_to_random_candidates() -> None:
    pool = pool_of()
    searcher = Genetic(pool, size=6)
    origins = []
    for number in range(60):
        proposal = searcher.propose()
        assert proposal is not None
        pool.known[proposal.candidate] = number
        searcher.begun(proposal.candidate, None)
        searcher.told(proposal.candidate, 1.0)  # nothing is faster than the first
        origins.append(proposal.origin)
    assert origins[:6] == ["random"] * 6 and set(origins[6:18]) == {"genetic"}
    assert "random" in origins[18:]


def test_restarts_leave_a_valley_that_is_not_the_deepest() -> None:
    """Around A = B = C = 1 it gets faster step by step, but the best lies alone behind a slow wall."""

    def took(config: dict[str, int]) -> float:
        logs = [int(math.log2(v)) for v in config.values()]
        return 0.1 if logs == [5, 5, 5] else 1.0 + 0.1 * sum(logs)

    space = {"only": FeasibleSpace([Param(x, VALUES, x) for x in "ABC"], (), DEVICE, {})}
    whole = len(list(product(VALUES, repeat=3)))
    with Search("valley", space, searcher="genetic", trials=whole, seed=2) as search:
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, took(ask.config))
        origins = [past.origin for past in search.finished()]
    assert search.counts.measured == whole and search.counts.duplicates == 0
    assert origins.count("random") > 32  # more than one population


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_close_to_the_best_sooner_than_random_search(seed: int) -> None:
    found = {}
    for searcher in ("genetic", "random"):
        with Search("toy", variants(), searcher=searcher, trials=60, seed=seed) as search:
            while (ask := search.ask()) is not None:
                search.tell_measured(ask, seconds(ask.variant, ask.config))
            best = search.best()
        found[searcher] = best.seconds if best else math.inf
    assert found["genetic"] <= found["random"]


def test_what_an_earlier_run_measured_belongs_to_the_first_population(tmp_path) -> None:
    where = str(tmp_path / "s.db")
    for trials in (20, 30):
        with Search("toy", variants(), searcher="genetic", trials=trials, storage=where) as search:
            while (ask := search.ask()) is not None:
                search.tell_measured(ask, seconds(ask.variant, ask.config))
            origins = [past.origin for past in search.finished()]
    assert set(origins[20:]) == {"genetic"}
