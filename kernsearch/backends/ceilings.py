"""The seam for measuring ceilings: what a backend's `ceilings` module may ask of whoever runs its kernels."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Call(NamedTuple):
    """One kernel of a compiled object. `buffers` are byte offsets in the runner's memory."""

    object_path: str
    entry: str
    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    threads: int


class Runner(Protocol):
    def reserve(self, size: int) -> None:
        """Have `size` bytes of memory; the first page is the runner's own."""

    def fill(self, offset: int, count: int, dtype: str, value: float) -> None:
        """Set `count` elements from a byte offset on."""

    def run(self, call: Call, repeat: int) -> list[tuple[float, float]]:
        """(seconds, run-queue wait) of each repeat."""
