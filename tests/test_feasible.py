"""The feasible set is exactly what the constraints allow, whatever they read and in whatever order."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernsearch.device import Device
from kernsearch.errors import SpaceError
from kernsearch.feasible import FeasibleSpace
from kernsearch.space import Constraint, Param

DEVICE = Device("cpu", 0, "any", "any", "any", {"limit": 64})
SIZES = {"M": 17, "N": 5}
LETTERS = ("BM", "BN", "BK", "TM", "SPLIT")


def space(domains: dict[str, tuple[int, ...]], *constraints: Constraint) -> FeasibleSpace:
    return FeasibleSpace([Param(n, v, n) for n, v in domains.items()], constraints, DEVICE, SIZES)


def brute(of: FeasibleSpace) -> list[dict[str, int]]:
    whole = (dict(zip(of.domains, values, strict=True)) for values in product(*of.domains.values()))
    return [c for c in whole if all(k.holds(c, DEVICE, SIZES) for k in of.constraints)]


def key(config: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(config.items())


@st.composite
def constraints(draw, letters):
    a, b, c = (draw(st.sampled_from(letters)) for _ in range(3))
    n = draw(st.integers(1, 40))
    return draw(
        st.sampled_from(
            [
                Constraint("a divides b", lambda x, d, s: x[b] % max(1, x[a]) == 0),
                Constraint("stops early", lambda x, d, s: x[a] < n or x[b] * x[c] <= d.limit),
                Constraint("reads by branch", lambda x, d, s: x[b] > 2 if x[a] % 2 else x[c] < n),
                Constraint("a letter that may be absent", lambda x, d, s: x.get("ABSENT", 1) == 1 and x.get(a, 9) != n),
                Constraint("asks what is there", lambda x, d, s: a not in x or x[a] + x[b] != n),
                Constraint("reads all", lambda x, d, s: sum(x.values()) <= 3 * n),
                Constraint("reads items", lambda x, d, s: len({v for _, v in x.items()}) > 1 or n > 3),
                Constraint("reads sizes alone", lambda x, d, s: s["M"] + n > 20),
                Constraint("reads nothing", lambda x, d, s: True),
            ]
        )
    )


@st.composite
def spaces(draw):
    letters = LETTERS[: draw(st.integers(1, 5))]
    values = st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True).map(sorted).map(tuple)
    return space({n: draw(values) for n in letters}, *draw(st.lists(constraints(letters), max_size=4)))


@given(spaces())
@settings(max_examples=100, deadline=None)
def test_listing_and_counting_equal_brute_force(of):
    listed = list(of.iterate())
    assert sorted(map(key, listed)) == sorted(map(key, brute(of)))
    assert of.count() == len(listed)
    assert (of.why_empty() is None) == bool(listed)


@given(spaces(), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_whatever_is_drawn_stepped_to_or_repaired_is_feasible(of, seed):
    rng = random.Random(seed)
    allowed = set(map(key, brute(of)))
    drawn = of.sample(rng)
    assert (drawn is None) == (not allowed)
    wild = {n: rng.choice(v) for n, v in of.domains.items()}
    repaired = of.nearest(wild)
    assert (repaired is None) == (not allowed)
    if drawn is None or repaired is None:
        return
    assert key(drawn) in allowed and key(repaired) in allowed
    assert of.contains(drawn) is None
    assert (of.contains(wild) is None) == (key(wild) in allowed)
    fewest = min(sum(wild[n] != v for n, v in c) for c in allowed)
    assert sum(wild[n] != v for n, v in repaired.items()) == fewest
    for near in of.neighbours(drawn):
        assert key(near) in allowed
        assert sum(near[n] != drawn[n] for n in near) == 1


@given(spaces(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_random_descents_reach_only_feasible_configs(of, seed):
    dive = of._dive(random.Random(seed))
    assert dive is None or of.contains(dive[0]) is None


def test_a_neighbour_steps_over_infeasible_values_to_the_nearest_feasible_one():
    of = space({"BM": (1, 2, 3, 4, 5, 6)}, Constraint("odd", lambda c, d, s: c["BM"] % 2 == 0))
    assert list(of.neighbours({"BM": 4})) == [{"BM": 6}, {"BM": 2}]


def test_few_configs_are_drawn_uniformly_even_when_one_value_holds_nearly_all_of_them():
    of = space(
        {"BM": (0, 1), "BN": tuple(range(50))}, Constraint("0 goes with 0", lambda c, d, s: c["BM"] or c["BN"] == 0)
    )
    drawn = Counter(of.sample(random.Random(i))["BM"] for i in range(1000))
    assert drawn[0] < 60  # one in 51


def test_many_configs_are_drawn_nearly_uniformly():
    wide = {f"P{i}": tuple(range(8)) for i in range(6)}
    of = space({"BM": (0, 1), **wide}, Constraint("P0 stays", lambda c, d, s: c["BM"] == 1 or c["P0"] + c["P1"] < 2))
    rng = random.Random(0)
    drawn = Counter(of.sample(rng)["BM"] for _ in range(400))
    assert 1 <= drawn[0] <= 60  # 3 of 67, and half of the descents


def test_a_product_of_two_to_the_thirtieth_costs_neither_memory_nor_time():
    of = space({f"P{i}": (0, 1) for i in range(30)}, Constraint("P3 is P7", lambda c, d, s: c["P3"] == c["P7"]))
    tracemalloc.start()
    assert of.count() == 2**29
    config = of.sample(random.Random(0))
    assert config is not None and of.contains(config) is None
    assert len(list(islice(of.iterate(), 100))) == 100
    assert len(list(of.neighbours(config))) == 28
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_count_out_of_reach_is_not_given():
    of = space({f"P{i}": (0, 1) for i in range(30)}, Constraint("half", lambda c, d, s: sum(c.values()) == 15))
    assert of.count(steps=5000) is None
    config = of.sample(random.Random(0))
    assert config is not None and sum(config.values()) == 15


def test_a_hopeless_space_gives_up_with_a_reason():
    of = space({f"P{i}": (0, 1) for i in range(30)}, Constraint("never", lambda c, d, s: sum(c.values()) > 30))
    assert of.sample(random.Random(0)) is None
    assert of.why_empty(steps=5000) == "never"


def test_a_constraint_on_sizes_alone_empties_the_space():
    of = space({"BM": (1, 2)}, Constraint("M is too small", lambda c, d, s: s["M"] > 100))
    assert list(of.iterate()) == []
    assert of.why_empty() == "M is too small"


def test_a_space_without_parameters_holds_one_config():
    of = space({})
    assert list(of.iterate()) == [{}] and of.count() == 1 and of.sample(random.Random(0)) == {}
    assert of.contains({}) is None and list(of.neighbours({})) == []


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"BM": 2, "BN": 4}, "too big"),
        ({"BM": 3, "BN": 1}, "BM=3 is not one of 1, 2"),
        ({"BM": 1}, "BN is missing"),
        ({"BM": 1, "BN": 1, "BK": 1}, "BK is not a parameter of this variant"),
        ({"BM": 1, "BN": 4}, None),
    ],
)
def test_what_is_not_feasible_has_a_reason(config, reason):
    of = space({"BM": (1, 2), "BN": (1, 4)}, Constraint("too big", lambda c, d, s: c["BM"] * c["BN"] <= 4))
    assert of.contains(config) == reason


def test_a_narrowed_space_holds_the_fixed_value_alone():
    of = space({"BM": (1, 2), "BN": (1, 4)}, Constraint("too big", lambda c, d, s: c["BM"] * c["BN"] <= 4))
    assert list(of.narrowed({"BM": 2}).iterate()) == [{"BM": 2, "BN": 1}]
    with pytest.raises(SpaceError, match=r"BX.*want one of BM, BN"):
        of.narrowed({"BX": 2})
    with pytest.raises(SpaceError, match="BM=7: want one of 1, 2"):
        of.narrowed({"BM": 7})


def test_nearest_keeps_what_it_can_and_ignores_foreign_letters():
    of = space(
        {"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (4, 8, 16)},
        Constraint("too big", lambda c, d, s: c["BM"] * c["BN"] <= 1024),
    )
    assert of.nearest({"BM": 64, "BN": 16, "BK": 8, "SPLIT": 3}) == {"BM": 64, "BN": 16, "BK": 8}
    assert of.nearest({"BM": 32, "BN": 64, "BK": 16}) == {"BM": 32, "BN": 32, "BK": 16}
    assert of.nearest({"BM": 32, "BN": 30, "BK": 99}) == {"BM": 32, "BN": 32, "BK": 16}
    assert of.nearest({"BM": 32, "BN": 32}, lambda c: c["BK"] != 8) in ({"BM": 32, "BN": 32, "BK": k} for k in (4, 16))


@pytest.mark.parametrize("params", [(Param("BM", (), ""),), (Param("BM", (1, 1), ""),), (Param("BM", (1,), ""),) * 2])
def test_a_malformed_space_is_refused(params):
    with pytest.raises(SpaceError, match="BM"):
        FeasibleSpace(params, (), DEVICE, SIZES)


def test_a_constraint_that_reads_what_does_not_exist_is_named():
    with pytest.raises(SpaceError, match=r"'odd' reads 'BX': want a parameter \(BM\) or a size \(M, N\)"):
        space({"BM": (1, 2)}, Constraint("odd", lambda c, d, s: c["BX"] > 0))
