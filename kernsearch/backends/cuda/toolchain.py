"""Finding NVRTC and the headers that belong to it: the wheels of the extras, else a CUDA toolkit.

It counts only after it has compiled a small kernel for the architecture. What was found is kept in the cache folder, so
that a process that finds all its cubins in the cache starts no compiler.

Kernels become cubins, never PTX, so nothing is left to the driver's own compiler: a driver loads cubins of any toolkit
of its own major version, newer ones too (CUDA's "minor version compatibility"). A toolkit of a newer major version is
refused with the device (`device.missing`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import json_text
from ...device import Device
from ...errors import CompilerError
from ...settings import cuda_home
from ...settings import get as get_settings
from .. import Toolchain
from ..objects import write_atomically
from . import children, evidence
from .device import bindings_major, extra, installed

PROBE_S = 60.0
_PROBE = "1"  # counts changes to the probe
_HEADERS = ("cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp16.h", "cuda_fp16.hpp")
_TRIAL = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct arguments { float *to; const __half *a; const __nv_bfloat16 *b; };
extern "C" __global__ void ks_trial(const __grid_constant__ arguments x) {
#if __CUDA_ARCH__ == 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    x.to[threadIdx.x] = __half2float(x.a[threadIdx.x]) + __bfloat162float(x.b[threadIdx.x]);
}
"""
_known: dict[tuple[object, ...], Toolchain | str] = {}


def find(device: Device) -> Toolchain:
    """The NVRTC to compile with for a device. Raises CompilerError in one line when there is none that works."""
    key = (device.arch, get_settings().cache_dir(), cuda_home())
    if key not in _known:
        _known[key] = _remembered(device.arch)
    found = _known[key]
    if isinstance(found, str):
        raise CompilerError(found)
    return found


def flags(arch: str) -> tuple[str, ...]:
    """Options that every kernel gets. Contraction is allowed, subnormals and division are IEEE's."""
    return (f"-arch={arch}", "-std=c++17", "-fmad=true", "-lineinfo", "--ptxas-options=-v")


def headers(toolchain: Toolchain) -> str:
    """The folder of cuda_fp16.h and its like."""
    return toolchain.command[1]


def _remembered(arch: str) -> Toolchain | str:
    """What an earlier process found out about the same files, else try now."""
    if not installed("cuda.bindings"):
        return f'no NVRTC to compile with: pip install "kernsearch[{extra()}]"'
    about = [_PROBE, arch, flags(arch), *map(_version, ("cuda-bindings", *_wheels())), str(cuda_home())]
    about.append(str(getattr(importlib.util.find_spec("cuda.bindings"), "origin", None)))
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
    path = get_settings().cache_dir() / "toolchains" / f"nvrtc-{digest}.json"
    try:
        found, files = json_text.read(path, lambda kept: (Toolchain.from_json(kept), kept["files"]), "NVRTC")
        if files == _stamp(found):
            return found
    except (OSError, ValueError):
        pass
    try:
        tried = _probe(arch)
    except CompilerError as error:
        return str(error)
    if isinstance(tried, Toolchain) and os.path.isabs(tried.command[0]):
        kept = {**dataclasses.asdict(tried), "files": _stamp(tried)}
        write_atomically(path, json.dumps(kept).encode())
    return tried


def _probe(arch: str) -> Toolchain | str:
    """Ask NVRTC what it is, and compile a small kernel with it."""
    major = bindings_major()
    folder = next((folder for folder in _header_folders() if _fits(folder, major)), None)
    if folder is None:
        return f'no CUDA {major} headers (cuda_fp16.h) for NVRTC: pip install "kernsearch[{extra()}]"'
    told = children.about()
    number = ".".join(map(str, told["version"]))
    if int(re.sub(r"\D", "", arch)) not in told["archs"]:
        return f"nvrtc {number} does not compile for {arch}, only for {', '.join(f'sm_{n}' for n in told['archs'])}"
    request = {"name": "trial.cu", "source": _TRIAL, "headers": {}, "want": "cubin"}
    answer = children.ask({**request, "options": [*flags(arch), f"-I{folder}"]}, timeout_s=PROBE_S)
    if answer.timed_out or not answer.code:
        why = "takes too long" if answer.timed_out else evidence.first_error(answer.log, answer.status)
        return f"nvrtc {number} cannot be used for {arch}: {why}"
    virtual = [flag.replace("=sm_", "=compute_") for flag in flags(arch)]
    listing = children.ask({**request, "want": "ptx", "options": [*virtual, f"-I{folder}"]}, timeout_s=PROBE_S)
    if exact := re.search(rb"release [\d.]+, V([\d.]+\d)", listing.code):
        number = exact[1].decode()
    text = b"".join((folder / name).read_bytes() for name in _HEADERS if (folder / name).is_file())
    digest = hashlib.sha256(text).hexdigest()[:8]
    said = " ".join(flag for flag in flags(arch) if not flag.startswith("-arch="))
    identity = f"nvrtc {number} {arch} {said} headers {digest}"
    return Toolchain("nvrtc", number, identity, (told["library"] or "nvrtc", str(folder)))


def _header_folders() -> list[Path]:
    """Where headers may be, best first."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    home = cuda_home()
    return [
        *(folder / f"cu{bindings_major()}" / "include" for folder in wheels),
        *(folder / "cuda_runtime" / "include" for folder in wheels),
        *([home / "include"] if home else []),
        Path("/usr/local/cuda/include"),
    ]


def _fits(folder: Path, major: int) -> bool:
    """Headers of a CUDA version, all that kernels include."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return False
    number = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    whole = all((folder / name).is_file() for name in ("cuda_bf16.h", "cuda_fp16.h"))
    return whole and number is not None and int(number[1]) // 1000 == major


def _stamp(toolchain: Toolchain) -> list[list[int]]:
    """What changes when the library or the headers are replaced. Raises OSError when they are gone."""
    files = (Path(toolchain.command[0]), Path(toolchain.command[1], "cuda_bf16.h"))
    return [[found.st_mtime_ns, found.st_size] for found in map(os.stat, files)]


def _wheels() -> tuple[str, ...]:
    return (
        "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12",
    )  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
