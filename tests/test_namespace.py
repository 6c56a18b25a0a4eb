"""Arrays find their module, and bfloat16 is widened to the same numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernsearch.namespace import namespace, to_host, to_module, widened


def test_numpy_arrays_and_numbers_belong_to_numpy() -> None:
    assert namespace() is namespace(1.0, np.float32(2)) is namespace(np.zeros(2), 3) is np
    array = np.arange(3.0)
    assert to_host(array) is array and to_module(array, np) is array


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_widening_keeps_every_number(dtype: type) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    array = bits.view(dtype) if np.dtype(dtype).itemsize == 2 else bits.astype(dtype)
    with np.errstate(all="ignore"):
        wide = widened(array, np.float64)
        assert wide.dtype == np.float64
        same = wide.astype(dtype) == array
    assert (same | np.isnan(wide)).all()
    assert widened(array).dtype == (np.float32 if dtype is ml_dtypes.bfloat16 else dtype)
