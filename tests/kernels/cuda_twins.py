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


def twin_in(folder: Path, kernel: KernelPlan, changes: dict[str, str]) -> KernelPlan:
    """As `twin`, for texts of the generated header and of headers beside the source too; copies of these are in the
    folder."""
    path = sources.path_of(kernel.source)
    texts = {file.name: file.read_text() for file in (path, *path.parent.glob("*.cuh"))} | {"": kernel.header}
    for old, new in changes.items():
        if not any(old in text for text in texts.values()):
            raise LookupError(old)  # no AssertionError, which a twin that is caught may raise
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    header = texts.pop("")
    for name, text in texts.items():
        (folder / name).write_text(text)
    return msgspec.structs.replace(kernel, header=header, source=str(folder / path.name))
