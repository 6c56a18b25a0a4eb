"""Hopper kernels without a GPU: clusters, barriers, bulk copies and wgmma as hopper_on_host.h has them.

Finds what hangs, stages and pieces that are used too early or too late, wrong descriptors, swizzles and coordinates.
What ordinary memory fences are for, it does not see; nor time.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
import subprocess
from collections.abc import Mapping

from kernsearch import sources
from kernsearch.plan import KernelPlan
from kernsearch.sizes import evaluate

from . import _FOLDER, HERE, STOOD_FOR, cuda_include, flat

OWN = (
    "mbarrier.cuh", "bulk.cuh", "bulk_axes.cuh", "wgmma.cuh", "wgmma_registers.cuh", "cluster.cuh",
    "cluster_words.cuh", "registers.cuh", "turns.cuh", "stmatrix.cuh",
)  # fmt: skip
ALIGNMENT = 64
_RUN = """
extern "C" const char *host_run(const char *bytes, unsigned grid, unsigned threads, unsigned cluster) {{
    static ks_args *arguments;
    arguments = static_cast<ks_args *>(aligned_alloc(64, (sizeof(ks_args) + 63) / 64 * 64));
    memcpy(static_cast<void *>(arguments), bytes, sizeof(ks_args));
    const char *told = run_clusters(grid, threads, cluster, [] {{ {entry}(*arguments); }});
    free(arguments);
    return told;
}}
extern "C" unsigned long host_size() {{ return sizeof(ks_args); }}
"""


def build(plan: KernelPlan) -> ctypes.CDLL:
    """The last launch of a plan's kernel, compiled for the host, once in a session."""
    include = cuda_include()
    left_out = {str((sources.kernels_folder() / "common" / "cuda" / name).resolve()) for name in (*OWN, *STOOD_FOR)}
    text = flat(sources.path_of(plan.source), plan.header, left_out)
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?(?:unsigned char|uint8_t) (\w+)\[\];",
        r"unsigned char *\1 = host_shared();",
        text,
    )
    text = f'#include "{HERE / "hopper_on_host.h"}"\n{text}\n{_RUN.format(entry=plan.launches[-1].entry)}'
    defines = [f"-DKS_{letter}={value}" for letter, value in plan.defines.items()]
    name = hashlib.sha256(f"{text}{defines}{plan.flags}".encode()).hexdigest()[:16]
    source, target = _FOLDER / f"{name}.cpp", _FOLDER / f"{name}.so"
    if not target.exists():
        source.write_text(text)
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{HERE}", f"-I{include}"]
        command += [*defines, *plan.flags, "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:  # no assertion: a broken twin has to be compiled, too
            raise RuntimeError(done.stderr[:4000])
    return ctypes.CDLL(str(target))


def run(
    plan: KernelPlan, names: Mapping[str, int], addresses: Mapping[str, int], scalars: Mapping[str, float], blocks: int
) -> str | None:
    """Run a plan's last launch on host memory, with at most `blocks` blocks; what went wrong, or None."""
    values = [scalars.get(name, 1.0) for name in plan.scalars]
    packed = bytearray(
        struct.pack(
            f"{len(plan.buffers)}Q{len(plan.sizes)}q{len(values)}d",
            *(addresses[name] for name in plan.buffers),
            *(evaluate(size, names) for size in plan.sizes),
            *values,
        )
    )
    packed += bytes(-len(packed) % ALIGNMENT if plan.maps else 0)
    for made in plan.maps:
        extents, pitches = ([evaluate(text, names) for text in texts] for texts in (made.extents, made.pitches))
        at, more = addresses[made.buffer] + evaluate(made.offset, names), 5 - len(extents)
        sizes = (*extents, *[1] * more, *pitches, *[0] * more, *made.box, *[1] * more)
        packed += struct.pack("Q14qq", at, *sizes, made.swizzle)
    library = build(plan)
    library.host_size.restype, library.host_run.restype = ctypes.c_ulong, ctypes.c_char_p
    assert library.host_size() == len(packed)
    launch = plan.launches[-1]
    cluster = launch.cluster[0]
    grid = min(evaluate(launch.grid[0], names), max(blocks // cluster, 1) * cluster)
    told = library.host_run(bytes(packed), grid, evaluate(launch.block, names), cluster)
    return told.decode() if told else None
