"""CUDA kernels without a GPU: compiled for the host, every thread of a block a fiber. See cuda_on_host.h.

For kernels of CUDA cores. Finds wrong indices, missing guards, barriers that only some threads reach, copies that are
used before they are waited for, and, by running threads in both orders, most missing barriers.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernsearch import sources
from kernsearch.binding import Binding
from kernsearch.plan import KernelPlan
from kernsearch.sizes import evaluate

HERE = Path(__file__).parent
# headers that cuda_on_host.h takes the place of
STOOD_FOR = ("shared.cuh", "async_copy.cuh", "copy_at.cuh", "direct.cuh", "mma.cuh", "units.cuh")
_FOLDER = Path(tempfile.mkdtemp(prefix="host-cuda-"))
_RUN = """
static const ks_args *host_arguments;
extern "C" int host_run(const char *bytes, const unsigned *grid, unsigned threads, int backwards) {{
    ks_args arguments;
    memcpy(static_cast<void *>(&arguments), bytes, sizeof arguments);
    host_arguments = &arguments;
    return run_grid(dim3(grid[0], grid[1], grid[2]), threads, backwards, [] {{ {entry}(*host_arguments); }});
}}
extern "C" unsigned long host_size() {{ return sizeof(ks_args); }}
"""


@cache
def cuda_include() -> Path:
    """The folder of CUDA's headers. Skips the test where there is none, or no C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    nvidia = pytest.importorskip("nvidia")
    for root in nvidia.__path__:
        for found in sorted(Path(root).glob("*/include/cuda_bf16.h")):
            if (found.parent / "vector_types.h").exists():
                return found.parent
    pytest.skip("no CUDA headers")


def flat(path: Path, header: str, seen: set[str]) -> str:
    """The source with its own headers in it."""

    def included(match: re.Match[str]) -> str:
        name = match[1]
        if name == "ks_generated.h":
            return inlined(header, path.parent)
        if Path(name).name in STOOD_FOR:
            return ""
        near = path.parent / name
        found = near if near.exists() else sources.kernels_folder() / "common" / "cuda" / name
        if str(found.resolve()) in seen:
            return ""
        seen.add(str(found.resolve()))
        return flat(found, header, seen)

    def inlined(text: str, folder: Path) -> str:
        return re.sub(r'^#include "([^"]+)"', included, text.replace("#pragma once", ""), flags=re.M)

    return inlined(path.read_text(), path.parent)


def build(plan: KernelPlan) -> ctypes.CDLL:
    """A plan's kernel, compiled for the host, once in a session."""
    include = cuda_include()
    text = flat(sources.path_of(plan.source), plan.header, set())
    text = re.sub(r"extern __shared__ (__align__\(\d+\) )?(\w+) (\w+)\[\];", _shared, text)
    text = f'#include "{HERE / "cuda_on_host.h"}"\n{text}\n{_RUN.format(entry=plan.launches[-1].entry)}'
    defines = [f"-DKS_{letter}={value}" for letter, value in plan.defines.items()]
    name = hashlib.sha256(f"{text}{defines}{plan.flags}".encode()).hexdigest()[:16]
    source, target = _FOLDER / f"{name}.cpp", _FOLDER / f"{name}.so"
    if target.exists():
        return ctypes.CDLL(str(target))
    source.write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{HERE}", f"-I{include}", *defines, *plan.flags]
    done = subprocess.run([*command, "-o", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(target))


def _shared(match: re.Match[str]) -> str:
    return f"alignas(1024) static {match[2]} {match[3]}[232448 / sizeof({match[2]})];"


def run(plan: KernelPlan, binding: Binding, arrays, sizes, scalars=None, *, backwards=False) -> None:
    """Run a plan without scratch or maps on NumPy arrays, by name; strides as they are. bfloat16 arrays are uint16."""
    names = {"ITEMSIZE": next(iter(arrays.values())).itemsize, "BATCH": 1, "SPLIT": 1, **sizes}
    for own in binding.arrays:
        array = arrays[own.name]
        for axis, stride in zip(own.axes, array.strides, strict=True):
            names[f"{own.name}.{axis}"] = stride // array.itemsize
    values = [(scalars or {}).get(name, 1.0) for name in plan.scalars]
    packed = struct.pack(
        f"{len(plan.buffers)}Q{len(plan.sizes)}q{len(values)}d",
        *(arrays[name].ctypes.data for name in plan.buffers),
        *(evaluate(size, names) for size in plan.sizes),
        *values,
    )
    library = build(plan)
    library.host_size.restype = ctypes.c_ulong
    assert library.host_size() == len(packed)
    for launch in plan.launches:
        assert evaluate(launch.shared, names) <= 232448
        grid = (ctypes.c_uint * 3)(*(evaluate(text, names) for text in launch.grid))
        failed = library.host_run(packed, grid, evaluate(launch.block, names), int(backwards))
        assert not failed, "some threads ended while others waited at a barrier"


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, to nearest even, in the same memory order."""
    bits = np.array(values, np.float32, order="K").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
