"""Arrays on a GPU for tests of the runtime: small whole numbers, and what they are on the host."""

from __future__ import annotations

from typing import Any

import numpy as np


def small(cp: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    """Small whole numbers, so that products are exact in any order and in every dtype."""
    return cp.asarray(np.random.default_rng(seed).integers(-2, 3, shape).astype("f4")).astype(cp.dtype(dtype))


def host(array: Any) -> np.ndarray:
    """As float64 on the host."""
    return array.astype("f4").get().astype(float)


def same(got: Any, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(host(got), want)
