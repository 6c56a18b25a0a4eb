"""From a kernel plan to a cubin: keys, the object cache, and compiling one or many."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from ...device import Device
from ...errors import Rejected
from ...plan import KernelPlan
from ...sources import GENERATED, headers, normalized, path_of, text
from .. import Compiled, Toolchain, objects
from . import children, toolchain
from . import evidence as evidence_of

_SCHEMA = "1"  # counts changes to the cached files, their evidence included


def compile_kernel(
    kernel: KernelPlan, device: Device, *, timeout_s: float = 20.0, batch: children.Batch | None = None
) -> Compiled:
    """Compile one kernel, or find it in the object cache.

    Raises Rejected (gate "compile") with the compiler's first complaint or the limit of the device that it is beyond,
    CompilerError without a compiler, CacheError when objects cannot be kept.
    """
    compiled = _built(kernel, device, timeout_s, batch)
    if reason := evidence_of.refusal(kernel, compiled.evidence, device):
        raise Rejected(reason, "compile")
    return compiled


def compile_many(
    kernels: Sequence[KernelPlan], device: Device, *, jobs: int, timeout_s: float = 20.0
) -> Iterator[tuple[int, Compiled | Rejected]]:
    """Compile many kernels, `jobs` at a time; yields (index, outcome) as they finish.

    A refusal is yielded, not raised. Closing the iterator, or an exception in it, kills the compilers that still run.
    Raises CompilerError or CacheError before the first outcome when nothing can be compiled at all.
    """
    toolchain.find(device)
    batch = children.Batch()

    def one(index: int) -> tuple[int, Compiled | Rejected]:
        try:
            return index, compile_kernel(kernels[index], device, timeout_s=timeout_s, batch=batch)
        except Rejected as refusal:
            return index, refusal

    threads = ThreadPoolExecutor(max(1, min(jobs, len(kernels))), thread_name_prefix="kernsearch-nvrtc")
    futures: list[Future[tuple[int, Compiled | Rejected]]] = []
    try:
        futures += [threads.submit(one, index) for index in range(len(kernels))]
        for future in as_completed(futures):
            yield future.result()
    finally:
        batch.cancel()
        threads.shutdown(wait=True, cancel_futures=True)


def _built(kernel: KernelPlan, device: Device, timeout_s: float, batch: children.Batch | None) -> Compiled:
    """The cubin of a kernel plan, whether it may run or not."""
    compiler = toolchain.find(device)
    source = path_of(kernel.source)
    try:
        found = headers(source, kernel.header)
        parts = _parts(kernel, compiler, source, found)
        path = objects.path_for(kernel.template, parts, ".cubin")
        if kept := objects.cached(path, kernel.entry):
            return kept
        request = _request(kernel, device, compiler, source, found)
    except OSError as error:
        raise Rejected(f"source {kernel.source!r} cannot be read ({error.strerror})", "compile") from error
    except ValueError as error:
        raise Rejected(f"source {kernel.source!r}: {error}", "compile") from error
    answer = children.ask(request, timeout_s=timeout_s, batch=batch)
    if answer.timed_out:
        raise Rejected(f"the compiler took more than {timeout_s:g} s", "compile", limit_s=timeout_s)
    if answer.status < 0:
        raise Rejected(f"the compiler was ended by signal {-answer.status}", "compile", doubtful=True)
    if answer.status != 0:
        raise Rejected(evidence_of.first_error(answer.log, answer.status), "compile")
    evidence = {
        **evidence_of.read(answer.log),
        "object_bytes": len(answer.code),
        "compile_s": round(answer.seconds, 4),
    }
    objects.keep(path, answer.code, evidence, answer.seconds)
    return Compiled(path, kernel.entry, evidence, answer.seconds)


def _parts(kernel: KernelPlan, compiler: Toolchain, source: Path, found: Mapping[str, Path]) -> list[object]:
    """All that a cubin depends on."""
    files = {"": source, **found}.items()
    return [
        _SCHEMA,
        compiler.id,
        [[name, hashlib.sha256(text(file).encode("utf-8", "surrogateescape")).hexdigest()] for name, file in files],
        normalized(kernel.header),
        sorted(kernel.defines.items()),
        list(kernel.flags),
    ]


def _request(
    kernel: KernelPlan, device: Device, compiler: Toolchain, source: Path, found: Mapping[str, Path]
) -> dict[str, object]:
    """Texts travel, not paths: messages name no folder, and what is compiled is what the key says."""
    texts = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in found.items()}
    return {
        "name": source.name,
        "source": source.read_text(encoding="utf-8", errors="replace"),
        "headers": {**texts, GENERATED: kernel.header},
        "options": [
            *toolchain.flags(device.arch),
            *kernel.flags,
            *(f"-DKS_{letter}={value}" for letter, value in sorted(kernel.defines.items())),
            f"-I{toolchain.headers(compiler)}",
        ],
        "want": "cubin",
    }
