"""Code that works on NumPy arrays and on device arrays alike: which module an array belongs to, and widening.

Nothing here imports a device library: an array's own module is loaded already.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def namespace(*arrays: Any) -> Any:
    """The module whose functions take these arrays: NumPy, or that of the first one that is not NumPy's."""
    for array in arrays:
        if not isinstance(array, np.ndarray | np.generic | int | float):
            return sys.modules[type(array).__module__.partition(".")[0]]
    return np


def widened(array: Any, dtype: Any = None) -> Any:
    """An array of bfloat16 as float32, which holds the same numbers; others as they are. Then, if given, as `dtype`.

    Device libraries need not know bfloat16 for this: it is the upper half of a float32.
    """
    if array.dtype.kind != "f":
        if namespace(array) is np or array.dtype.itemsize != 2:
            array = array.astype(np.float32)
        else:
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array if dtype is None else array.astype(dtype, copy=False)


def numpy_dtype(name: str) -> np.dtype:
    """A dtype by its name, those that NumPy knows by ml_dtypes only (bfloat16) included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def to_host(array: Any) -> np.ndarray:
    """The array as one of NumPy; copied when it lies elsewhere."""
    return array if isinstance(array, np.ndarray) else array.get()


def to_module(array: np.ndarray, xp: Any) -> Any:
    """A NumPy array as one of another module; itself when that is NumPy."""
    if xp is np:
        return array
    bits = np.ascontiguousarray(array)
    return xp.asarray(bits) if bits.dtype.kind != "V" else xp.asarray(bits.view(np.uint16)).view(bits.dtype)
