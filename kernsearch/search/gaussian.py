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


@dataclass(frozen=True)
class Priors:
    """Logarithms: means and standard deviations of letter scales, weights of the parts, and noise."""

    scale: tuple[float, float] = (0.0, 1.5)
    joint: tuple[float, float] = (-0.7, 1.0)
    single: tuple[float, float] = (-0.7, 1.0)
    advice: tuple[float, float] = (-0.7, 1.0)
    noise: tuple[float, float] = (-4.6, 1.5)


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
        columns = np.ascontiguousarray(points[:, : self.letters].T)
        squares = (columns[:, :, None] - columns[:, None, :]) ** 2
        linear = points[:, self.letters :] @ points[:, self.letters :].T
        logs, step, last = self._logs.copy(), np.full(len(self._logs), 0.3), np.zeros(len(self._logs))
        best = np.inf
        for _ in range(steps):
            loss, slope = self._loss(logs, squares, linear, values)
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
        features = self._features(points)
        across = self._between(features, self._known)
        own = np.exp(self._logs[self.letters]) + (features[1] ** 2).sum(-1)
        left = own - np.einsum("ij,ij->i", across @ self._inverse, across)
        return across @ self._weights, np.sqrt(np.maximum(left, 1e-10))

    @property
    def _scales(self) -> Array:
        return np.exp(self._logs[: self.letters])

    def _loss(self, logs: Array, squares: Array, linear: Array, values: Array) -> tuple[float, Array]:
        """The negative logarithm of the posterior of scales and weights, and its derivative."""
        n = self.letters
        scales = np.exp(logs[:n])
        joint, single, advice, noise = np.exp(logs[n:])
        root = np.sqrt(5.0 * np.tensordot(scales, squares, 1) + _SQUARED)
        decay = np.exp(-root)
        together = (1.0 + root + root * root / 3.0) * decay
        each = np.exp(squares * -scales[:, None, None])
        alone = each.mean(0)
        covariance = joint * together + single * alone + advice * linear
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER
        sign, size = np.linalg.slogdet(covariance)
        if sign <= 0:
            return np.inf, np.zeros_like(logs)
        inverse = np.linalg.inv(covariance)
        weights = inverse @ values
        away = (logs - self._mean) / self._spread
        loss = 0.5 * (values @ weights + size + away @ away)
        slack = inverse - np.outer(weights, weights)
        steep = slack * (joint * -5.0 / 6.0) * (1.0 + root) * decay
        flat = squares.reshape(n, -1)
        by_scale = flat @ steep.ravel() - (single / n) * ((each.reshape(n, -1) * flat) @ slack.ravel())
        slope = 0.5 * np.array(
            [*(by_scale * scales), joint * (slack * together).sum(), single * (slack * alone).sum(),
             advice * (slack * linear).sum(), noise * np.trace(slack)]
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
        apart = (u * u).sum(-1)[:, None] + (v * v).sum(-1)[None, :] - 2.0 * (u @ v.T)
        root = np.sqrt(5.0 * np.maximum(apart, 0.0) + _SQUARED)
        return np.exp(self._logs[self.letters] - root) * (1.0 + root + root * root / 3.0) + more @ others.T


def expected_gain(mean: Array, deviation: Array, best: float) -> Array:
    """By how much a value is expected to fall below `best`."""
    ahead = (best - mean) / deviation
    below = 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (ahead + 0.044715 * ahead**3)))
    return deviation * (ahead * below + np.exp(-0.5 * ahead * ahead) / np.sqrt(2.0 * np.pi))
