"""What the compiler made of a kernel, read from its assembly."""

from __future__ import annotations


def read(assembly: str) -> dict[str, int | float | str]:
    return {}
