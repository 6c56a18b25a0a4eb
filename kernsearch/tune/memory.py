"""Memory that was freed but not given back."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Hand freed memory to the system. glibc keeps the space of large temporary arrays, such as a float64 reference's,
    for as long as something small lies above them; other C libraries have no such call, and then nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
