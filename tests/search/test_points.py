"""Candidates as rows of numbers, those of an earlier run that searched other variants included."""

from __future__ import annotations

from toy import variants

from kernsearch.search.points import Points
from kernsearch.search.pool import candidate


def test_candidates_of_a_variant_that_is_not_searched_stand_where_its_letters_put_them():
    points = Points({name: space for name, space in variants().items() if name != "split+combine"})
    known = candidate("tile", {"BM": 64, "BN": 32, "TM": 4})
    foreign = candidate("split+combine", {"BM": 64, "BN": 32, "SPLIT": 4})
    rows = points.of([known, foreign])
    assert rows.shape == (2, points.letters)
    assert (rows[0] != rows[1]).any()
    assert (points.of([foreign]) == rows[1:]).all()
