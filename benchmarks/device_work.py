"""Pieces of device.py that load kernsearch, each run in a process of its own; every one prints a JSON object last."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import figures_h200
import numpy as np

from kernsearch import backends, registry, workload

LARGE = 1 << 62  # bytes of workspace: no limit


def problems(path: str) -> dict[str, Any]:
    return {"keys": [problem.key for problem in workload.read(path, "cuda")]}


def group(name: str, options: str) -> dict[str, Any]:
    """One comparison of the figures."""
    from kernsearch.peers import bench_problems

    if name == "host":
        return host_cost()
    spec, how = figures_h200.GROUPS[name], json.loads(options)
    made = [registry.problem("gemm", shape, spec.dtype, backend="cuda", **spec.options) for shape in spec.shapes]
    against = [*spec.against, *(peer for peer in how["also"] if spec.ours == "kernsearch" and peer not in spec.against)]
    device = backends.resolve("cuda")[1]
    return bench_problems(made, against, device=device, ours=spec.ours, rounds=how["rounds"], keep_going=True)


def host_cost() -> dict[str, Any]:
    """Microseconds that the host spends in a call on device arrays of a tiny product, with `out` given."""
    import kernsearch as ks
    from kernsearch.backends.cuda import arrays

    a, b = (arrays.from_host(np.ones((16, 16), np.float32).astype("float16")) for _ in "ab")
    out = arrays.empty((16, 16), "float16")
    plan = ks.load("gemm", shape=(16, 16, 16), dtype="float16", device="cuda")

    def cost(call: Any) -> float:
        for _ in range(300):
            call()
        arrays.synchronize()
        taken = []
        for _ in range(15):
            started = time.perf_counter()
            for _ in range(300):
                call()
            taken.append((time.perf_counter() - started) / 300 * 1e6)
            arrays.synchronize()
        return statistics.median(taken)

    return {"plan_us": cost(lambda: plan(a, b, out=out)), "matmul_us": cost(lambda: ks.matmul(a, b, out=out))}


def probe() -> dict[str, Any]:
    """Facts, versions, and clocks while a large product runs."""
    from dataclasses import asdict
    from importlib.metadata import distributions

    from kernsearch.backends.cuda import arrays, nvml

    device = backends.resolve("cuda")[1]
    xp = arrays.xp()
    idle = nvml.state(device)
    x = xp.random.standard_normal((8192, 8192), dtype=xp.float32).astype(xp.float16)
    y = xp.empty_like(x)
    source, target = xp.empty(1 << 30, xp.uint8), xp.empty(1 << 30, xp.uint8)
    found = {}
    for name, call, amount in (("fp16_tflops", lambda: xp.matmul(x, x, out=y), 2 * 8192**3 / 1e12),
                               ("copy_tbps", lambda: xp.copyto(target, source), 2 * 2**30 / 1e12)):  # fmt: skip
        call()
        start, end = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        for _ in range(200):
            call()
        end.record()
        time.sleep(0.1)
        found[f"state during {name}"] = nvml.state(device)
        end.synchronize()
        found[name] = amount * 200 / (xp.cuda.get_elapsed_time(start, end) * 1e-3)
    wanted = ("torch", "triton", "cupy", "cuda", "nvidia", "numpy", "optuna", "kernsearch")
    versions = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"].lower().startswith(wanted)}
    states = {name: asdict(state) for name, state in {"state idle": idle, **found}.items() if hasattr(state, "sm_mhz")}
    rates = {name: value for name, value in found.items() if isinstance(value, float)}
    return {
        "device": device.key,
        "arch": device.arch,
        "facts": dict(device.facts),
        **rates,
        **states,
        "versions": versions,
    }


# -- single kernels


def choose(shape: str, dtype: str, rung: str) -> dict[str, Any]:
    """The model's first config of each rung."""
    from kernsearch import model
    from kernsearch.cases.ladder import rungs
    from kernsearch.model import ceilings
    from kernsearch.tune.prospects import Prospects
    from kernsearch.tune.request import Request

    backend, device = backends.resolve("cuda")
    problem = registry.problem("gemm", shape, dtype, backend="cuda")
    roof = ceilings.of(backend, device)
    prospects = Prospects(registry.op("gemm"), problem, backend, device, roof, Request(max_workspace=LARGE))
    found = {}
    for name in [rung] if rung else rungs("gemm", "cuda"):
        if name in prospects.spaces:
            ranked = model.rank(prospects.variants[name], prospects.spaces[name], device, prospects.sizes, roof)
            found[name] = dict(ranked[0][1])
    return {"rungs": found, "variants": sorted(prospects.spaces)}


def rung(words: str) -> dict[str, Any]:
    """Launch one config of a variant, or the recorded kernel, once; and compare with NumPy where that is quick."""
    from kernsearch import runtime
    from kernsearch.backends.cuda import arrays

    asked = json.loads(words)
    device = backends.resolve("cuda")[1]
    options = {"layout": asked.get("layout", "nn")}
    problem = registry.problem("gemm", asked["shape"], asked["dtype"], backend="cuda", **options)
    plan: Any = _plan(problem, device, asked) if asked["rung"] else runtime.load_problem(problem, device)
    made, scalars = registry.op("gemm").inputs[0].make(problem, np.random.default_rng(0))
    given = [arrays.from_host(made[o.name]) for o in plan.plan.operands if o.role == "input"]
    out = arrays.empty(problem.shape[:2], problem.dtype)
    if min(problem.shape) > 1000:
        plan(*given, out=out)  # so that a profiler sees warm code
    arrays.synchronize()
    runtime_ = arrays.xp().cuda.runtime
    runtime_.profilerStart()
    plan(*given, out=out, **scalars)
    arrays.synchronize()
    runtime_.profilerStop()
    error = None
    if np.prod(problem.shape) < 1e9:
        expected = registry.op("gemm").inputs and _expected(problem, made, scalars)
        error = float(np.abs(arrays.to_host(out).astype(np.float64) - expected).max())
    return {"variant": plan.record.variant, "config": dict(plan.record.config), "error": error}


def _expected(problem: Any, made: Any, scalars: Any) -> Any:
    layout = str(problem.option("layout"))
    a, b = (made[name].astype(np.float64) for name in "AB")
    return scalars["alpha"] * (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)


def _plan(problem: Any, device: Any, asked: Any) -> Any:
    """A plan for one config, without a search."""
    from kernsearch.derive import derive

    variants = derive(problem, registry.op("gemm"), registry.templates("cuda")).variants
    variant = next(v for v in variants if v.name == asked["rung"])
    config = asked["config"] or choose(asked["shape"], asked["dtype"], asked["rung"])["rungs"][asked["rung"]]
    return chosen_plan(problem, device, variant, config)


def chosen_plan(problem: Any, device: Any, variant: Any, config: Any) -> Any:
    """What the runtime would call if a record named this variant and config."""
    from kernsearch import records
    from kernsearch.candidate import lower
    from kernsearch.records import fingerprint
    from kernsearch.records.lookup import Hit
    from kernsearch.runtime.device import DevicePlan

    plan = lower(variant, config, problem, backends.get("cuda"), device)
    made = {"problem": problem, "fingerprint": fingerprint.here(plan, device), "plan": plan, "variant": variant.name}
    record = records.Record(**made, config=config, derivation=(), created=records.now())
    return DevicePlan(problem, device, Hit("chosen", record, ()), "compatible")


def excess(problem: Any, device: Any, variant: Any, config: Any) -> float:
    """Run a candidate once on fresh arrays: by how much its worst element is further off than allowed, at most 0 when
    none is, infinity where one is NaN. For plans of one output."""
    from kernsearch.backends.cuda import arrays
    from kernsearch.gates.reference import Reference, operands

    op = registry.op(problem.op)
    made, scalars = op.inputs[0].make(problem, np.random.default_rng(0))
    reference = Reference(op, problem, made, scalars)
    (output,) = (array for array in operands(op, problem).values() if array.role == "output")
    plan = chosen_plan(problem, device, variant, config)
    given = [arrays.from_host(made[o.name]) for o in plan.plan.operands if o.role == "input"]
    out = arrays.empty(output.shape, problem.dtype)
    plan(*given, out=out, **scalars)
    arrays.synchronize()
    got = arrays.to_host(out).astype(np.float64)

    def worst(block: Any) -> float:
        off = np.abs(got[block.where[output.name]] - block.expected[output.name]) - block.allowed[output.name]
        return float(np.where(np.isnan(off), np.inf, off).max())

    return max(map(worst, reference.blocks()))


FAULTS = {
    "memcheck": "x[threadIdx.x + 4096] = 1.0f;",
    "racecheck": "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = s[63 - threadIdx.x];",
    "synccheck": "if (threadIdx.x < 40) __syncthreads(); x[threadIdx.x] = 1.0f;",
    "initcheck": "x[threadIdx.x] = x[threadIdx.x + 64] + 1.0f;",
}


def fault(tool: str) -> dict[str, Any]:
    """A kernel that is wrong in the way that a tool looks for."""
    from kernsearch.backends.cuda import arrays

    xp = arrays.xp()
    memory = xp.cuda.runtime.malloc(128 * 4)
    xp.RawKernel(f'extern "C" __global__ void planted(float *x) {{ {FAULTS[tool]} }}', "planted")(
        (1,), (64,), (np.uint64(memory),)
    )
    xp.cuda.runtime.deviceSynchronize()
    return {"planted": tool}


def triton_ir(shape: str, folder: str) -> dict[str, Any]:
    """ttir, ttgir and PTX of the Triton peer at the config its autotuner takes for a bfloat16 product."""
    import torch
    import triton_gemm

    m, n, k = map(int, shape.split("x"))
    a, b = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (k, n)))
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    compiled = triton_gemm.gemm(a, b, out)
    torch.cuda.synchronize()
    texts = {kind: str(compiled.asm[kind]) for kind in ("ttir", "ttgir", "ptx") if kind in compiled.asm}
    for kind, text in texts.items():
        Path(folder, f"triton_gemm.{kind}").write_text(text)
    metadata = compiled.metadata
    told = {name: getattr(metadata, name, None) for name in ("num_warps", "num_stages", "shared", "name")}
    registers = {name: getattr(compiled, name, None) for name in ("n_regs", "n_spills")}
    lines = {kind: len(text.splitlines()) for kind, text in texts.items()}
    print("\n".join(texts.get("ttgir", "").splitlines()[:60]))
    return {"config": triton_gemm.chosen(out), **told, **registers, "lines": lines, "problem": shape}


PIECES = {"problems": problems, "group": group, "probe": probe, "choose": choose, "rung": rung, "fault": fault,
          "triton-ir": triton_ir}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(PIECES[sys.argv[1]](*sys.argv[2:]), indent=1, default=str))
