"""Kernels for CPUs that this machine may not be: compiled from the same sources and looked at, never run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from gemm_bindings import gemm_binding
from kernsearch.spaces.gemm.templates import cpu as gemm
from kernsearch.spaces.gemm.templates import pairs

from kernsearch.backends.cpu import compiler, emit, evidence, toolchain
from kernsearch.records import classes
from kernsearch.sources import include_folders, path_of
from kernsearch.template import Template

ZIG = importlib.util.find_spec("ziglang")
TARGETS = {
    "x86_64-avx2": ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v3"],
    "x86_64-avx512": ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v4", "-mprefer-vector-width=512"],
    "x86_64-avx512-bf16": ["-target", "x86_64-linux-gnu", "-mcpu=cooperlake", "-mprefer-vector-width=512"],
    "x86_64-avx512-amx": ["-target", "x86_64-linux-gnu", "-mcpu=sapphirerapids", "-mprefer-vector-width=512"],
    "aarch64-neon": ["-target", "aarch64-linux-gnu", "-mcpu=neoverse_n1"],
}
OFTEN = (gemm.REGISTER_TILED, gemm.FEW_ROWS, gemm.DOTS)
CHOSEN = [(each, "float32") for each in gemm.templates()] + [(t, d) for t in OFTEN for d in ("float64", "bfloat16")]
INSTRUCTIONS = {"amx_bf16": "tdpbf16ps", "avx512_bf16": "vdpbf16ps"}


def unit_of(template: Template) -> str:
    return next(step[2] for step in template.ann if step[0] == "unit")


OF_UNITS = [
    (template, arch)
    for arch in sorted(TARGETS)
    for template in pairs.templates()
    if classes.of("cpu", arch).device().facts.get(unit_of(template))
]


def config(template: Template, lanes: int) -> dict[str, int]:
    """Letters that every class can have, some vectors wide."""
    wanted = {"MC": 24, "NC": 256, "KC": 128, "MR": 4, "NR": 2 * lanes, "KU": 2, "KR": 2, "SPLIT": 2}
    if template is gemm.DOTS:
        wanted |= {"NR": 2, "KR": lanes, "MC": 8}
    if template in pairs.templates():
        tiles = template.name.startswith("amx")
        wanted |= {"MC": 64, "NC": 64, "KC": 256, "MR": 32 if tiles else 6, "NR": 32}
    return {param.name: wanted[param.name] for param in (*template.params, *template.knobs)}


@pytest.mark.skipif(ZIG is None, reason="no compiler for other CPUs")
@pytest.mark.parametrize("arch", sorted(arch for arch in TARGETS if not classes.of("cpu", arch).unit))
@pytest.mark.parametrize(("template", "dtype"), CHOSEN, ids=lambda value: getattr(value, "name", value))
def test_a_kernel_of_each_class_of_cpu_has_an_inner_loop_of_its_widest_vectors(template, arch, dtype, tmp_path):
    assembly, device = built(template, arch, dtype, tmp_path)
    assert evidence.read(assembly)["vector_bytes"] == device.vector_bytes


@pytest.mark.skipif(ZIG is None, reason="no compiler for other CPUs")
@pytest.mark.parametrize(("template", "arch"), OF_UNITS, ids=lambda value: getattr(value, "name", value))
def test_a_kernel_for_pairs_runs_on_the_unit_that_its_schedule_names(template, arch, tmp_path):
    assembly, _ = built(template, arch, "bfloat16", tmp_path)
    assert INSTRUCTIONS[unit_of(template)] in assembly
    assert evidence.read(assembly)["hot_loop_stack_accesses"] == 0


def built(template, arch, dtype, folder):
    """(the assembly of a kernel of a class of CPUs, the class's device)."""
    device = classes.of("cpu", arch).device()
    lanes = device.vector_bytes // (8 if dtype == "float64" else 4)
    binding = gemm_binding("nn", "bias,gelu", dtype, split="SPLIT" in [p.name for p in template.params])
    plan = emit.kernel_plan(binding, template, config(template, lanes), device)
    (folder / "ks_generated.h").write_text(plan.header)
    flags = [flag for flag in toolchain.base_flags(device) if not flag.startswith(("-march", "-mcpu", "-mprefer"))]
    defines = {**compiler.device_defines(device), **{f"KS_{k}": v for k, v in plan.defines.items()}}
    command = [
        *(str(Path(*ZIG.submodule_search_locations, "zig")), "cc"), *TARGETS[arch], *flags, *plan.flags,
        *(f"-I{place}" for place in (folder, *include_folders())),
        *(f"-D{name}={value}" for name, value in defines.items()), "-S", str(path_of(plan.source)), "-o", "kernel.s",
    ]  # fmt: skip
    caches = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=caches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return (folder / "kernel.s").read_text(), device
