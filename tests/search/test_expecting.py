"""What the searcher `expected` promises itself of candidates that nobody has measured."""

from __future__ import annotations

import math
import random
from statistics import mean

from toy import DEVICE

from kernsearch.feasible import FeasibleSpace
from kernsearch.search.expecting import EXPECTED, Expecting
from kernsearch.search.pool import Pool
from kernsearch.space import Param
from kernsearch.tune import Request

VALUES = (1, 2, 4, 8, 16)


def promised(luck: float, seed: int) -> float:
    """The outlook once half of a space is measured, where A decides and each candidate has its own luck besides: the
    standard deviation of the logarithm of its time."""
    rng = random.Random(seed)
    space = FeasibleSpace([Param(letter, VALUES, letter) for letter in "ABC"], (), DEVICE, {})
    pool = Pool({"only": space}, lambda candidate: None, seed)
    searcher = Expecting(pool, every=0)
    for number in range(60):
        drawn = pool.draw()
        assert drawn is not None
        pool.known[drawn] = number
        searcher.told(drawn, 1e-3 * math.sqrt(drawn.config["A"]) * math.exp(rng.gauss(0, luck)))
    proposal = searcher.propose()
    assert proposal is not None and proposal.origin == EXPECTED and proposal.candidate.config["A"] == 1
    return searcher.outlook


def test_neighbours_of_the_fastest_promise_what_candidates_differ_by_for_no_reason_that_letters_tell() -> None:
    """With much luck a search must not end while there is some to be had."""
    assert mean(promised(0.2, seed) for seed in range(5)) > Request().early_stop


def test_little_luck_promises_little() -> None:
    assert mean(promised(0.02, seed) for seed in range(5)) < 0.5 * mean(promised(0.2, seed) for seed in range(5))
