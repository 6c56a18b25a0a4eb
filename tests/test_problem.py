"""Shapes as callers give them."""

from __future__ import annotations

import numpy as np
import pytest

from kernsearch import registry
from kernsearch.errors import ProblemError


@pytest.mark.parametrize("shape", [(3, 5, 7), [3, 5, 7], np.array([3, 5, 7]), (np.int64(3), 5, 7), "3x5x7"])
def test_a_shape_may_be_whole_numbers_of_any_kind_or_text(shape) -> None:
    assert registry.problem("gemm", shape).shape == (3, 5, 7)


@pytest.mark.parametrize("shape", [(3, 5, 7.5), 3, (3, 5, "7"), (3, 5, None), "3x5", "3x5x", (3, 5, 0), (3, 5, 7, 9)])
def test_other_shapes_are_refused_by_name(shape) -> None:
    with pytest.raises(ProblemError, match=r"shape .*: want"):
        registry.problem("gemm", shape)
