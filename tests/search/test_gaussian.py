"""The Gaussian process: its fit, its predictions, what it expects."""

from __future__ import annotations

import numpy as np
import pytest

from kernsearch.search.gaussian import Gaussian, _Pairs, expected_gain

LEVELS = [np.linspace(0, 1, 5), np.linspace(0, 1, 3), np.array([0.0, 1.0])]


def points(count: int, advice: int = 1, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    letters = [level[rng.integers(0, len(level), count)] for level in LEVELS]
    return np.stack([*letters, *rng.standard_normal((advice, count))], 1)


def values(of: np.ndarray) -> np.ndarray:
    told = 2.0 * of[:, 0] + (of[:, 1] - 0.5) ** 2 + 0.3 * of[:, 2] + 0.5 * of[:, 3]
    return (told - told.mean()) / told.std()


def test_the_derivative_of_the_loss_is_that_of_differences() -> None:
    known = points(14)
    gaussian, pairs = Gaussian(LEVELS, 1), _Pairs.of(known, len(LEVELS))
    logs = np.random.default_rng(1).normal(-0.5, 0.5, len(LEVELS) + 4)
    _, slope = gaussian._loss(logs, pairs, values(known))
    for i in range(len(logs)):
        step = np.zeros_like(logs)
        step[i] = 1e-5
        above, below = (gaussian._loss(logs + s, pairs, values(known))[0] for s in (step, -step))
        assert slope[i] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-6)


def test_a_fit_lowers_the_loss() -> None:
    known = points(40)
    gaussian, pairs = Gaussian(LEVELS, 1), _Pairs.of(known, len(LEVELS))
    before, _ = gaussian._loss(gaussian._logs, pairs, values(known))
    gaussian.fit(known, values(known))
    after, _ = gaussian._loss(gaussian._logs, pairs, values(known))
    assert after < before - 5


def test_the_loss_and_the_predictions_have_the_same_covariance() -> None:
    """The posterior by hand, from the covariance of the points with themselves and with another."""
    known, other = points(9), points(1, seed=3)
    gaussian = Gaussian(LEVELS, 1)
    gaussian.condition(known, values(known))
    both = np.concatenate([known, other])
    features = gaussian._features(both)
    whole = gaussian._between(features, features)
    noisy = whole[:9, :9] + np.eye(9) * (np.exp(gaussian._logs[-1]) + 1e-6)
    mean = whole[9, :9] @ np.linalg.solve(noisy, values(known))
    spread = np.sqrt(whole[9, 9] - whole[9, :9] @ np.linalg.solve(noisy, whole[:9, 9]))
    told = gaussian.predict(other)
    assert told[0][0] == pytest.approx(mean) and told[1][0] == pytest.approx(spread, rel=1e-4)
    size = np.linalg.slogdet(noisy)[1]
    loss, _ = gaussian._loss(gaussian._logs, _Pairs.of(known, len(LEVELS)), values(known))
    assert loss == pytest.approx(0.5 * (values(known) @ np.linalg.solve(noisy, values(known)) + size), rel=1e-4)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300])
def test_many_points_are_predicted_as_one_by_one(count: int) -> None:
    known, asked = points(20), points(count, seed=5)
    gaussian = Gaussian(LEVELS, 1)
    gaussian.condition(known, values(known))
    mean, deviation = gaussian.predict(asked)
    assert mean.shape == deviation.shape == (count,)
    for i in range(0, count, 41):
        one = gaussian.predict(asked[i : i + 1])
        assert mean[i] == pytest.approx(one[0][0]) and deviation[i] == pytest.approx(one[1][0])


def test_what_is_expected_is_what_sampling_gives() -> None:
    mean, deviation, best = np.array([0.0, 1.0, -1.0]), np.array([1.0, 0.5, 0.2]), 0.3
    drawn = mean + deviation * np.random.default_rng(0).standard_normal((400_000, 3))
    sampled = np.maximum(best - drawn, 0.0).mean(0)
    np.testing.assert_allclose(expected_gain(mean, deviation, best), sampled, atol=3e-3)
