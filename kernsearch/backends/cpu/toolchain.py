"""Finding a C compiler that works here: KERNSEARCH_CC, gcc, clang, else the one in the `ziglang` wheel.

A compiler counts only after it has built a small library with the flags that kernels get, with vectors as wide as the
host's. What was found is kept in the cache folder, keyed by the compiler's file and this CPU, so that looking is quick.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ... import json_text
from ...device import Device
from ...errors import CompilerError
from ...settings import get as get_settings
from .. import Toolchain
from ..objects import write_atomically
from . import evidence, guard
from .device import cpu_info

OLDEST_GCC = 12
WANTED = 'install gcc 12 or newer, or pip install "kernsearch[cc]"'
PROBE_S = 180.0  # the first run of zig builds its runtime libraries
_PROBE = "4"  # counts changes to the probe
_WIDTH_MACROS = {
    "avx512": ("__AVX512F__", "__AVX512DQ__"),
    "avx2": ("__AVX2__", "__FMA__"),
    "sse2": ("__SSE2__",),
    "neon": ("__ARM_NEON",),
    "scalar": (),
}
_TRIAL = """\
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
typedef float vector __attribute__((vector_size(KS_VECTOR_BYTES), aligned(4)));
float ks_trial(const float *a, float *b, int64_t n) {
    vector x, y;
    memcpy(&x, a, sizeof x);
    y = x * x + x;
    memcpy(b, &y, sizeof y);
    return expf(a[n]) + (float)pthread_equal(pthread_self(), pthread_self());
}
"""
_known: dict[tuple[object, ...], Toolchain | str] = {}


def find(device: Device) -> Toolchain:
    """The compiler to use for this CPU. Raises CompilerError in one line when there is none that works."""
    named = get_settings().cc
    if named is not None:
        found = _tried(_words(named), device)
        if isinstance(found, str):
            raise CompilerError(f"KERNSEARCH_CC={named!r}: {found}; want a C compiler, or unset it")
        return found
    refused = []
    for command in _candidates():
        found = _tried(command, device)
        if isinstance(found, Toolchain):
            return found
        refused.append(f"{Path(command[0]).name}: {found}")
    tried = f" ({'; '.join(refused)})" if refused else ""
    raise CompilerError(f"no C compiler that can be used{tried}: {WANTED}")


def arch_flags(device: Device) -> tuple[str, ...]:
    """Flags that select this CPU's instructions."""
    if device.arch.startswith("aarch64"):
        return ("-mcpu=native",)
    wide = ("-mprefer-vector-width=512",) if device.isa == "avx512" else ()
    x86 = ("-fcf-protection=none",) if device.arch.startswith("x86_64") else ()
    return ("-march=native", *wide, *x86)


def base_flags(device: Device) -> tuple[str, ...]:
    """Flags that every kernel gets. No -ffast-math: it breaks the rounding tricks of exp."""
    return (
        "-O3", *arch_flags(device), "-std=gnu11", "-fPIC", "-g0", "-fno-math-errno", "-fno-trapping-math",
        "-ffp-contract=fast", "-fomit-frame-pointer", "-fno-stack-protector", "-fno-semantic-interposition", "-Wall",
    )  # fmt: skip


def link_flags(device: Device) -> tuple[str, ...]:
    return ("-O3", *arch_flags(device), "-g0", "-shared", "-fPIC", "-pthread")


def environment(toolchain: Toolchain, folder: Path) -> dict[str, str]:
    """Variables a compiler needs: zig must be told where to keep what it builds for itself."""
    return _environment(toolchain.name == "zig", folder)


def _environment(zig: bool, folder: Path) -> dict[str, str]:
    if not zig:
        return {}
    home = get_settings().cache_dir() / "zig"
    return {"ZIG_GLOBAL_CACHE_DIR": str(home), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}


def _candidates() -> Iterator[tuple[str, ...]]:
    """Commands to try when none is named, best first."""
    newer = range(30, OLDEST_GCC - 1, -1)
    for name in ("gcc", *(f"gcc-{n}" for n in newer), "cc", "clang", *(f"clang-{n}" for n in newer if n > 14)):
        if path := shutil.which(name):
            yield (path,)
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # the program itself: no interpreter in between, nothing to find on PATH
        direct = Path(folder, "zig")
        yield (str(direct), "cc") if os.access(direct, os.X_OK) else (sys.executable, "-m", "ziglang", "cc")


def _words(named: str) -> tuple[str, ...] | str:
    """The command that KERNSEARCH_CC holds, perhaps with arguments; or what is wrong with it."""
    try:
        words = [named] if Path(named).is_file() else shlex.split(named)
    except ValueError as error:
        return f"it cannot be split into words ({error})"
    path = shutil.which(words[0]) if words else None
    return (path, *words[1:]) if path else "there is no such program"


def _tried(command: tuple[str, ...] | str, device: Device) -> Toolchain | str:
    """The toolchain of a command, or why it cannot be used; remembered for this process."""
    if isinstance(command, str):
        return command
    folder = get_settings().cache_dir()
    key = (command, device.arch, folder)
    if key not in _known:
        _known[key] = _remembered(command, device, folder / "toolchains")
    return _known[key]


def _remembered(command: tuple[str, ...], device: Device, folder: Path) -> Toolchain | str:
    """What an earlier process found out about the same compiler on the same CPU, else try it now."""
    stats = [os.stat(program) for program in map(shutil.which, command) if program]
    cpu = cpu_info()
    about = [_PROBE, command, [(s.st_mtime_ns, s.st_size) for s in stats], base_flags(device)]
    about += [cpu.get(name, "") for name in ("cpu family", "model", "stepping", "flags", "CPU part", "Features")]
    path = folder / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]}.json"
    try:
        return json_text.read(path, Toolchain.from_json, "a compiler")
    except (OSError, ValueError):
        pass
    found = _probe(command, device)
    if isinstance(found, Toolchain):
        write_atomically(path, json.dumps(dataclasses.asdict(found)).encode())
    return found


def _probe(command: tuple[str, ...], device: Device) -> Toolchain | str:
    """Ask a compiler what it is and what it emits here, then build and load a small library with it."""
    zig = any(Path(word).name in ("zig", "ziglang") for word in command)
    with guard.scratch() as folder:
        variables = _environment(zig, folder)
        ask = [*command, *arch_flags(device), "-dM", "-E", "-x", "c", os.devnull, "-o", "macros"]
        report = guard.run([ask], folder, timeout_s=PROBE_S, environment=variables)
        if report.returncode != 0:
            return first_error(report)
        macros = (folder / "macros").read_text(errors="replace") if (folder / "macros").is_file() else ""
        values = dict(re.findall(r"^#define (\w+) (.*)$", macros, re.MULTILINE))
        if "__GNUC__" not in values:
            return "it is neither gcc nor clang"
        clang = values.get("__clang_version__", "").strip('" ').split(" ")[0]
        version = clang or ".".join(values[f"__GNUC{part}__"] for part in ("", "_MINOR", "_PATCHLEVEL"))
        if not clang and int(values["__GNUC__"]) < OLDEST_GCC:
            return f"gcc {version} is older than {OLDEST_GCC}"
        if missing := [macro for macro in _WIDTH_MACROS[device.isa] if macro not in values]:
            name = f"{'clang' if clang else 'gcc'} {version}"
            return f"{name} does not emit {device.isa}, which this CPU has ({missing[0]} is not defined)"
        (folder / "trial.c").write_text(_TRIAL)
        build = [*command, *base_flags(device), f"-DKS_VECTOR_BYTES={device.vector_bytes}", "-S", "trial.c"]
        link = [*command, *link_flags(device), "trial.s", "-o", "trial.so", "-lm"]
        about = [[*command[:-1], "version"]] if zig else []
        report = guard.run([[*build, "-o", "trial.s"], link, *about], folder, timeout_s=PROBE_S, environment=variables)
        if report.returncode != 0 or report.timed_out:
            return first_error(report)
        width = evidence.read((folder / "trial.s").read_text(errors="replace"))["vector_bytes"]
        if device.isa != "scalar" and width != device.vector_bytes:
            return f"it computes with {width}-byte vectors where this CPU has {device.vector_bytes}-byte ones"
        try:
            ctypes.CDLL(str(folder / "trial.so"))
        except OSError as error:
            return f"what it builds cannot be loaded ({error})"
        if zig:
            version = f"{report.stderr.strip().splitlines()[-1]} (clang {clang})"
    name = "zig" if zig else "clang" if clang else "gcc"
    emitted = [*command[1:], *base_flags(device), *link_flags(device), *sorted(macros.splitlines())]
    digest = hashlib.sha256("\n".join(emitted).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    number = version.split(" ")[0]
    return Toolchain(name, version, f"{name}-{number}-{device.arch}-{digest}", command)


def first_error(report: guard.Report) -> str:
    """The first thing a compiler complains of, in one line and without folders."""
    if report.timed_out:
        return f"the compiler took more than {report.seconds:.3g} s"
    lines = [line.strip() for line in report.stderr.splitlines() if line.strip()]
    found = [line for line in lines if re.search(r"\b(fatal )?error\b", line)] or lines
    if not found:
        return f"the compiler ended with {'signal' if report.returncode < 0 else 'status'} {abs(report.returncode)}"
    return re.sub(r"(?<![\w.])/(?:[^/\s:'\"]+/)+", "", found[0])[:300]
