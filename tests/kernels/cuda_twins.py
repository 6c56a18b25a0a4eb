"""Broken twins of CUDA kernels: a kernel whose source, header included, is the true one with text replaced."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from kernsearch import sources
from kernsearch.plan import KernelPlan

_FOLDER = Path(tempfile.mkdtemp(prefix="cuda-twins-"))


def twin(kernel: KernelPlan, changes: dict[str, str]) -> KernelPlan:
    """The kernel with these texts replaced, each of which it must have; its source is a file of its own."""
    text = sources.path_of(kernel.source).read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path = _FOLDER / f"{abs(hash(text))}.cu"
    path.write_text(text)
    return msgspec.structs.replace(kernel, source=str(path))
