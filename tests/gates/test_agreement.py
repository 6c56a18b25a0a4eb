"""What the correctness gate says of single arrays."""

from __future__ import annotations

import numpy as np
import pytest

from kernsearch.errors import Rejected
from kernsearch.gates import agrees
from kernsearch.worker.arena import OUTSIDE, STALE, UNWRITTEN, pattern_bits

EXPECTED = np.array([[1.0, 2.0], [3.0, 4.0]])
ALLOWED = np.full((2, 2), 1e-3)


def judged(actual: object, expected: np.ndarray = EXPECTED, **options: object) -> str:
    try:
        agrees("D", np.asarray(actual, np.float32), expected, ALLOWED, **options)  # type: ignore[arg-type]
    except Rejected as refusal:
        assert refusal.gate == "correctness"
        return refusal.reason
    return ""


def test_an_error_within_the_bound_is_told_as_its_share() -> None:
    assert agrees("D", np.float32([[1, 2], [3, 4.0005]]), EXPECTED, ALLOWED) == pytest.approx(0.5, rel=1e-3)


def test_an_error_that_many_elements_have_in_common_is_refused_though_each_is_within_the_bound() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((50, 40))
    allowed = np.full(expected.shape, 1.0)
    apart, alike = expected + rng.uniform(-0.6, 0.6, expected.shape), expected + rng.choice([-0.5, 0.5], expected.shape)
    assert agrees("D", apart, expected, allowed, mean=0.4) < 0.61
    with pytest.raises(Rejected, match=r"D is off by 0\.5 of what is allowed in the mean of 2000 elements"):
        agrees("D", alike, expected, allowed, mean=0.4)
    assert agrees("D", alike, expected, allowed) == pytest.approx(0.5)
    assert agrees("D", alike[:20], expected[:20], allowed[:20], mean=0.4) == pytest.approx(0.5)  # too few to tell


def test_the_worst_element_is_named() -> None:
    assert judged([[1, 2.01], [3, 5]]) == (
        "D[1, 1] is 5, should be 4: off by 1.00e+00, allowed 1.00e-03 (2 of 4 elements)"
    )
    assert judged([[1, 2], [3, 5]], origin=(10, 20)).startswith("D[11, 21] is 5")


def test_nan_is_within_no_bound() -> None:
    assert judged([[1, np.nan], [3, 4]]) == "D[0, 1] is nan where the reference has 2"
    expected = np.array([[1, np.nan], [3, 4]])
    assert judged([[1, 2], [3, 4]], expected) == "D[0, 1] is 2 where the reference has nan"
    assert judged([[1, np.nan], [3, 4]], expected) == ""
    assert "off by" in judged([[1, np.nan], [3, 5]], expected)


def test_infinities_must_have_the_sign_of_the_reference() -> None:
    expected = np.array([[np.inf, 2], [3, -np.inf]])
    assert judged([[np.inf, 2], [3, -np.inf]], expected) == ""
    assert judged([[np.inf, 2], [3, np.inf]], expected) == "D[1, 1] is inf where the reference has -inf"


def test_what_overflows_the_output_is_infinite() -> None:
    expected = np.array([[1e39, 2], [3, 4]])
    assert judged([[np.inf, 2], [3, 4]], expected) == ""


def test_whole_numbers_must_be_exact() -> None:
    assert judged([[1, 2], [3, 4.0005]], exact=True).startswith("D[1, 1] is 4.0005")
    assert judged([[1, 2], [3, 4]], exact=True) == ""
    assert judged([[1, 2], [3, 4.6]], np.array([[1, 2], [3, 4.5995]]), exact=True) == ""  # no whole numbers


@pytest.mark.parametrize(
    "pattern, words", [(UNWRITTEN, "unwritten"), (OUTSIDE, "outside an input"), (STALE, "workspace or scratch")]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_payload_of_a_nan_says_where_it_came_from(dtype: str, pattern: int, words: str) -> None:
    actual = EXPECTED.astype(dtype)
    actual.view(f"u{actual.itemsize}")[1, 0] = pattern_bits(actual.dtype, pattern)
    with pytest.raises(Rejected, match=rf"D\[1, 0\] is .*{words}"):
        agrees("D", actual, EXPECTED, ALLOWED)


def test_an_empty_output_agrees() -> None:
    assert agrees("D", np.zeros((0, 3), np.float32), np.zeros((0, 3)), np.zeros((0, 3))) == 0
