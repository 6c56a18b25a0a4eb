"""From a kernel plan to a loadable object: keys, the object cache, and compiling one or many."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...device import Device
from ...errors import KernsearchError, Rejected
from ...plan import KernelPlan
from ...sources import GENERATED, include_folders, kernels_folder, normalized, path_of
from ...sources import tokens as tokens_of
from .. import Compiled, Toolchain, objects
from . import evidence as evidence_of
from . import guard, toolchain

_SCHEMA = "3"  # counts changes to the cached files, their evidence included


def compile_kernel(
    kernel: KernelPlan, device: Device, *, timeout_s: float = 20.0, batch: guard.Batch | None = None
) -> Compiled:
    """Compile one kernel, or find it in the object cache.

    Raises Rejected (gate "compile") with the compiler's first complaint, CompilerError without a compiler, CacheError
    when objects cannot be kept.
    """
    return build(
        kernel.source,
        kernel.entry,
        device,
        name=kernel.template,
        header=kernel.header,
        defines={f"KS_{letter}": value for letter, value in kernel.defines.items()},
        flags=kernel.flags,
        timeout_s=timeout_s,
        batch=batch,
    )


def build(
    source: str,
    entry: str,
    device: Device,
    *,
    name: str,
    header: str = "",
    defines: Mapping[str, int] | None = None,
    flags: Sequence[str] = (),
    timeout_s: float = 20.0,
    batch: guard.Batch | None = None,
) -> Compiled:
    """Compile a source of the kernels folder (or an absolute path) into an object with the function `entry`."""
    compiler = toolchain.find(device)
    path = path_of(source)
    try:
        tokens = tokens_of(path)
    except OSError as error:
        raise Rejected(f"source {source!r} cannot be read ({error.strerror})", "compile") from error
    defines = {**device_defines(device), **(defines or {})}
    all_flags = [*toolchain.base_flags(device), *flags]
    parts = [_SCHEMA, compiler.id, tokens, normalized(header), sorted(defines.items()), all_flags]
    kept = objects.path_for(name, parts, ".so")
    if found := objects.cached(kept, entry):
        return found
    with guard.scratch() as folder:
        (folder / GENERATED).write_text(header, encoding="utf-8")
        commands = _commands(compiler, device, path, folder, defines, flags)
        variables = toolchain.environment(compiler, folder)
        report = guard.run(commands, folder, timeout_s=timeout_s, environment=variables, batch=batch)
        if report.timed_out:
            raise Rejected(f"the compiler took more than {timeout_s:g} s", "compile", limit_s=timeout_s)
        if report.returncode != 0:
            raise Rejected(toolchain.first_error(report), "compile")
        assembly = (folder / "kernel.s").read_text(errors="replace")
        if not re.search(rf"^{re.escape(entry)}:", assembly, re.MULTILINE):
            raise Rejected(f"the source defines no function {entry!r}", "compile")
        data = (folder / "kernel.so").read_bytes()
    evidence = {
        **evidence_of.read(assembly),
        "object_bytes": len(data),
        "warnings": len(re.findall(r":\d+: warning: ", report.stderr)),
        "compile_s": round(report.seconds, 4),
    }
    objects.keep(kept, data, evidence, report.seconds)
    return Compiled(kept, entry, evidence, report.seconds)


def compile_many(
    kernels: Sequence[KernelPlan], device: Device, *, jobs: int, timeout_s: float = 20.0
) -> Iterator[tuple[int, Compiled | Rejected]]:
    """Compile many kernels, `jobs` at a time; yields (index, outcome) as they finish.

    A refusal is yielded, not raised. Closing the iterator, or an exception in it, kills the compilers that still run.
    Raises CompilerError or CacheError before the first outcome when nothing can be compiled at all.
    """
    from joblib import Parallel, delayed

    toolchain.find(device)
    batch = guard.Batch()

    def one(index: int) -> tuple[int, Compiled | Rejected | None]:
        if batch.cancelled:
            return index, None
        try:
            return index, compile_kernel(kernels[index], device, timeout_s=timeout_s, batch=batch)
        except Rejected as refusal:
            return index, refusal
        except guard.Cancelled:
            return index, None

    parallel = Parallel(n_jobs=max(1, jobs), prefer="threads", return_as="generator_unordered", batch_size=1)
    outcomes = parallel(delayed(one)(index) for index in range(len(kernels)))
    try:
        for index, outcome in outcomes:
            if outcome is not None:
                yield index, outcome
    finally:
        batch.cancel()
        with contextlib.suppress(KernsearchError):
            for _ in outcomes:  # they end at once now; joblib warns of tasks that nobody waits for
                pass


def device_defines(device: Device) -> dict[str, int]:
    """Facts of the device as the sources see them."""
    return {
        "KS_VECTOR_BYTES": device.vector_bytes,
        "KS_VECTOR_REGISTERS": device.vector_registers,
        "KS_L1_BYTES": device.l1d_bytes,
        "KS_L2_BYTES": device.l2_bytes,
        "KS_LINE_BYTES": device.line_bytes,
    }


def _commands(
    compiler: Toolchain, device: Device, source: Path, folder: Path, defines: Mapping[str, int], flags: Sequence[str]
) -> list[list[str]]:
    """To assembly first, where the evidence is read, then to an object: together they cost what one step costs."""
    includes = [folder, *include_folders()]
    to_assembly = [
        *compiler.command,
        *toolchain.base_flags(device),
        *flags,
        *(f"-I{path}" for path in includes),
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
        f"-ffile-prefix-map={kernels_folder()}=kernels",
        f"-ffile-prefix-map={folder}=.",
        "-S",
        str(source),
        "-o",
        "kernel.s",
    ]
    to_object = [*compiler.command, *toolchain.link_flags(device), "kernel.s", "-o", "kernel.so", "-lm"]
    return [to_assembly, to_object]
