"""A Gaussian process over candidates: what it expects of the time of those that nobody has measured yet.

The covariance of two candidates is a sum of three parts. One falls with the distance over all letters together: which
values go well with each other. One is a sum over single letters: how good a value is whatever the others are, which is
most of what a few dozen measurements can tell. The last is linear in what somebody predicted (the model, an earlier
study), so that good advice carries far and bad advice is soon found out. Each letter has a scale of its own. Scales and
weights are those that make the measurements most likely, under priors that hold them where few measurements say little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

_STEPS = 18  # of a fit
_LARGEST, _SMALLEST = 1.0, 1e-3  # step of a logarithm
_SQUARED = 1e-12  # keeps roots differentiable
_JITTER = 1e-6
_BLOCK = 128  # points that are predicted at once: what that takes fits into a second-level cache


@dataclass(frozen=True)
class Priors:
    """Logarithms: means and standard deviations of letter scales, weights of the parts, and noise."""

    scale: tuple[float, float] = (0.0, 1.5)
    joint: tuple[float, float] = (-0.7, 1.0)
    single: tuple[float, float] = (-0.7, 1.0)
    advice: tuple[float, float] = (-0.7, 1.0)
    noise: tuple[float, float] = (-4.6, 1.5)


@dataclass(frozen=True)
class _Pairs:
    """Each two of some points once, for a fit.

    squares   squared distances by letter (letters, pairs); spare: room for as many numbers
    upper, lower   where the pairs stand in a flat matrix of all points by all points
    linear    products of the columns of advice (points, points)
    """

    squares: Array
    spare: Array
    upper: Array
    lower: Array
    linear: Array

    @classmethod
    def of(cls, points: Array, letters: int) -> _Pairs:
        first, second = np.triu_indices(len(points), 1)
        columns, advised = points[:, :letters].T, points[:, letters:]
        squares = (columns[:, first] - columns[:, second]) ** 2
        count = len(points)
        return cls(squares, np.empty_like(squares), first * count + second, second * count + first, advised @ advised.T)

    def add(self, matrix: Array, values: Array) -> None:
        """Add a value for each pair to a contiguous matrix, above and below its diagonal."""
        flat = matrix.reshape(-1)
        flat[self.upper] += values
        flat[self.lower] += values


class Gaussian:
    """`fit` finds scales and weights, `condition` takes in measurements, `predict` tells mean and standard deviation.

    levels    for each letter the coordinates that its column may hold, ascending, in 0 to 1
    advice    how many columns come after those of the letters, centred, of about unit size
    """

    def __init__(self, levels: Sequence[Array], advice: int = 0, priors: Priors | None = None):
        priors = priors or Priors()
        self.levels, self.letters, self.advice = tuple(levels), len(levels), advice
        letters = self.letters
        parts = [priors.scale] * letters + [priors.joint, priors.single, priors.advice, priors.noise]
        self._mean, self._spread = (np.array(column) for column in zip(*parts, strict=True))
        self._logs = self._mean.copy()

    def fit(self, points: Array, values: Array, steps: int = _STEPS) -> None:
        """Scales and weights for these points (n, letters + advice) and values (n,) of mean 0 and spread 1, from the
        last ones on; by the signs of the derivatives, which needs no step size and no line search."""
        pairs = _Pairs.of(points, self.letters)
        logs, step, last = self._logs.copy(), np.full(len(self._logs), 0.3), np.zeros(len(self._logs))
        best = np.inf
        for _ in range(steps):
            loss, slope = self._loss(logs, pairs, values)
            if loss < best:
                best, self._logs = loss, logs.copy()
            turned = np.sign(slope) * last
            step = np.clip(
                np.where(turned > 0, step * 1.3, np.where(turned < 0, step * 0.5, step)), _SMALLEST, _LARGEST
            )
            last = np.where(turned < 0, 0.0, np.sign(slope))
            logs = np.clip(logs - last * step, -9.0, 6.0)

    def condition(self, points: Array, values: Array) -> None:
        """Take in what was measured, in place of what was before."""
        self._tables = [self._table(levels, scale) for levels, scale in zip(self.levels, self._scales, strict=True)]
        self._known = self._features(points)
        covariance = self._between(self._known, self._known)
        covariance[np.diag_indices_from(covariance)] += np.exp(self._logs[-1]) + _JITTER
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ values

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of each point, noise left out."""
        told = [self._predict(points[start : start + _BLOCK]) for start in range(0, max(len(points), 1), _BLOCK)]
        mean, deviation = zip(*told, strict=True)
        return np.concatenate(mean), np.concatenate(deviation)

    def _predict(self, points: Array) -> tuple[Array, Array]:
        features = self._features(points)
        across = self._between(features, self._known)
        own = np.exp(self._logs[self.letters]) + (features[1] ** 2).sum(-1)
        left = own - np.einsum("ij,ij->i", across @ self._inverse, across)
        return across @ self._weights, np.sqrt(np.maximum(left, 1e-10))

    @property
    def noise(self) -> float:
        """The variance that letters and advice leave unexplained, in the units of the values."""
        return float(np.exp(self._logs[-1]))

    @property
    def _scales(self) -> Array:
        return np.exp(self._logs[: self.letters])

    def _loss(self, logs: Array, pairs: _Pairs, values: Array) -> tuple[float, Array]:
        """The negative logarithm of the posterior of scales and weights, and its derivative."""
        n, squares = self.letters, pairs.squares
        scales = np.exp(logs[:n])
        joint, single, advice, noise = np.exp(logs[n:])
        root = np.sqrt(5.0 * (scales @ squares) + _SQUARED)
        decay = np.exp(-root)
        together = (1.0 + root + root * root / 3.0) * decay
        each = np.multiply(squares, -scales[:, None], out=pairs.spare)
        np.exp(each, out=each)
        alone = each.mean(0)
        covariance = advice * pairs.linear
        pairs.add(covariance, joint * together + single * alone)
        covariance[np.diag_indices_from(covariance)] += joint + single + noise + _JITTER
        sign, size = np.linalg.slogdet(covariance)
        if sign <= 0:
            return np.inf, np.zeros_like(logs)
        inverse = np.linalg.inv(covariance)
        weights = inverse @ values
        away = (logs - self._mean) / self._spread
        loss = 0.5 * (values @ weights + size + away @ away)
        slack = inverse - np.outer(weights, weights)
        own, apart = np.trace(slack), 2.0 * slack.ravel()[pairs.upper]  # each pair stands twice in the matrix
        steep = apart * (joint * -5.0 / 6.0) * (1.0 + root) * decay
        each *= squares
        by_scale = squares @ steep - (single / n) * (each @ apart)
        slope = 0.5 * np.array(
            [*(by_scale * scales), joint * (apart @ together + own), single * (apart @ alone + own),
             advice * (slack * pairs.linear).sum(), noise * own]
        )  # fmt: skip
        return float(loss), slope + away / self._spread

    def _features(self, points: Array) -> tuple[Array, Array]:
        """Scaled coordinates, whose distances make the joint part; and columns whose products are the other parts.

        A letter has few values, so its own covariances are a small table, which is a matrix times its transpose: the
        matrix's rows are what the letter adds to the columns."""
        n = self.letters
        single, advice = np.exp(0.5 * self._logs[n + 1 : n + 3])
        alone = [table[np.searchsorted(levels, points[:, i])]
                 for i, (levels, table) in enumerate(zip(self.levels, self._tables, strict=True))]  # fmt: skip
        columns = [single / np.sqrt(n) * np.concatenate(alone, 1), advice * points[:, n:]]
        return points[:, :n] * np.sqrt(self._scales), np.concatenate(columns, 1)

    def _table(self, levels: Array, scale: float) -> Array:
        covariance = np.exp(-scale * (levels[:, None] - levels[None, :]) ** 2)
        return np.linalg.cholesky(covariance + _JITTER * np.eye(len(levels)))

    def _between(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        """Covariances of points given by their features, noise left out."""
        (u, more), (v, others) = a, b
        root = (u * u).sum(-1)[:, None] + (v * v).sum(-1)[None, :]
        crossed = u @ v.T
        crossed *= 2.0
        root -= crossed
        np.maximum(root, 0.0, out=root)  # in place: memory is what this takes
        root *= 5.0
        root += _SQUARED
        np.sqrt(root, out=root)
        between = np.subtract(self._logs[self.letters], root)
        np.exp(between, out=between)
        np.multiply(root, root, out=crossed)
        crossed /= 3.0
        root += 1.0
        root += crossed
        between *= root
        between += more @ others.T
        return between


def expected_gain(mean: Array, deviation: Array, best: float) -> Array:
    """By how much a value is expected to fall below `best`."""
    ahead = (best - mean) / deviation
    below = 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (ahead + 0.044715 * ahead**3)))
    return deviation * (ahead * below + np.exp(-0.5 * ahead * ahead) / np.sqrt(2.0 * np.pi))
