"""Many kernels of many gemm problems beside cuBLAS, on a GPU: what `model_fit.py` holds the model against.

Nothing here is gated beyond one comparison with float64; it measures widely and quickly, where `kernsearch tune`
measures few candidates with care. Kernels and cuBLAS are captured into CUDA graphs over rotating operands. For each
problem and variant: the configs that the model likes best, random ones, and neighbours of the best known ones.

    python benchmarks/survey.py --dtype bfloat16 --shapes 4096x4096x4096,16x4096x4096 --seconds 120 --out rows.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernsearch import backends, launch, model, registry
from kernsearch.backends.cuda import driver
from kernsearch.backends.cuda.launcher import Launcher
from kernsearch.backends.cuda.modules import Module
from kernsearch.candidate import Candidate, lower
from kernsearch.derive import derive
from kernsearch.errors import KernsearchError, Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.model import ceilings

DATA = Path(__file__).with_name("results") / "h200" / "kernels.json.gz"
FOOTPRINT = 180_000_000  # bytes of operands that rotate, three times the second-level cache of an H200
REPLAY_S = 3e-4
APART = "+map"  # variants that leave maps in kernels of their own are never near the best


def neighbours(space: FeasibleSpace, config: dict[str, int]) -> Iterator[dict[str, int]]:
    """Feasible configs that differ in one letter."""
    for letter, values in space.domains.items():
        for value in values:
            moved = {**config, letter: value}
            if value != config.get(letter) and space.contains(moved) is None:
                yield {name: moved[name] for name in space.domains}


def configs(
    space: FeasibleSpace, ranked: list[dict[str, int]], known: list[dict[str, int]], count: int, rng: random.Random
) -> list[dict[str, int]]:
    """What to measure of one variant: a third each ranked, near known ones, and random."""
    known = [config for config in known if space.contains(config) is None]
    near = [moved for config in known[:3] for moved in neighbours(space, config)]
    rng.shuffle(near)
    drawn = islice(space.guesses(rng, 200 * count), count // 3)
    chosen = [*known[:2], *ranked[: count // 3], *near[: count // 3], *drawn]
    return list({tuple(sorted(c.items())): c for c in chosen}.values())


class Replay:
    """Operands of one problem, and graphs over them."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype):
        m, n, k = shape
        size = torch.empty((), dtype=dtype).element_size()
        self.copies = max(2, min(40, -(-FOOTPRINT // ((m * k + k * n + m * n) * size))))
        self.sets = [
            (torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype),
             torch.empty(m, n, device="cuda", dtype=dtype))
            for _ in range(self.copies)
        ]  # fmt: skip
        pace = max(8e-6, 2 * m * n * k / (7e14 if size == 2 else 5e13))
        self.rounds = max(1, int(REPLAY_S / pace / self.copies))
        self.stream = torch.cuda.Stream()
        a, b, _ = self.sets[0]
        self.reference = a.double() @ b.double()
        self.library = self.captured(lambda i: torch.matmul(*self.sets[i][:2], out=self.sets[i][2]))

    def captured(self, call: Callable[[int], Any]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            call(0)
            self.stream.synchronize()
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(self.rounds):
                    for i in range(self.copies):
                        call(i)
        return graph

    def microseconds(self, graph: torch.cuda.CUDAGraph, repeats: int = 3) -> float:
        """Median time of one call."""
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(self.stream):
                start.record(self.stream)
                graph.replay()
                end.record(self.stream)
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end) / self.copies / self.rounds)
        return median(times)

    def measure(self, plan: Any, objects: list[Any], device: Any) -> tuple[float, float]:
        """(microseconds, largest error by the largest element) of a compiled plan. Raises KernsearchError."""
        modules = [Module(built.path) for built in objects]
        ready = []
        for arrays in self.sets:
            views = {
                name: launch.ArrayView(t.data_ptr(), tuple(t.shape), tuple(t.stride()), t.element_size())
                for name, t in zip("ABD", arrays, strict=True)
            }
            made = Launcher(plan, launch.resolve(plan, views, threads=device.sms), modules, device)
            room = torch.empty(max(made.workspace_bytes, 256), device="cuda", dtype=torch.uint8)
            ready.append((made, [t.data_ptr() for t in arrays], room))
        ones = tuple(1.0 for _ in plan.scalars)

        def call(i: int) -> None:
            made, addresses, room = ready[i]
            made.run(addresses, ones, self.stream.cuda_stream, room.data_ptr())

        self.sets[0][2].fill_(float("nan"))
        graph = self.captured(call)
        error = float((self.sets[0][2].double() - self.reference).abs().max() / self.reference.abs().max())
        return self.microseconds(graph), error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--count", type=int, default=18, help="configs of each variant")
    parser.add_argument("--variants", default="", help="names, separated by commas; all when empty")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    started, rng = time.monotonic(), random.Random(0)
    torch.zeros(1, device="cuda")
    driver.use(driver.primary_context(0))
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    backend = backends.get("cuda")
    device = backend.device(0)
    roof, op, templates = ceilings.guess(device), registry.op("gemm"), registry.templates("cuda")
    before = json.loads(gzip.decompress(DATA.read_bytes()))["rows"] if DATA.is_file() else []
    wanted = set(filter(None, given.variants.split(",")))
    jobs = []
    shapes = [tuple(map(int, text.split("x"))) for text in given.shapes.split(",")]
    for shape in shapes:
        problem = op.problem(shape, given.dtype, backend="cuda")
        sizes = {**op.sizes(problem), "THREADS": int(device.threads), "ITEMSIZE": launch.itemsize(given.dtype)}
        rows = sorted(
            (r for r in before if (r["dtype"], tuple(r["shape"])) == (given.dtype, shape)), key=lambda r: r["us"]
        )
        for variant in derive(problem, op, templates).variants:
            if APART in variant.name or (wanted and variant.name not in wanted):
                continue
            space = FeasibleSpace(variant.params, variant.constraints, device, sizes)
            first = next(space.iterate(), None)
            if first is None:
                continue
            plan = lower(variant, first, problem, backend, device)
            if launch.unmet(plan, launch.call_at(plan, shape, int(device.threads))[1]):
                continue
            ranked = [config for _, config in model.rank(variant, space, device, sizes, roof)]
            known = [row["config"] for row in rows if row["variant"] == variant.name]
            jobs += [
                (shape, Candidate.of(variant.name, config), lower(variant, config, problem, backend, device))
                for config in configs(space, ranked, known, given.count, rng)
            ]
    print(f"{len(jobs)} candidates after {time.monotonic() - started:.0f} s", flush=True)
    kernels = [(i, kernel) for i, job in enumerate(jobs) for kernel in job[2].kernels]
    built: dict[int, dict[int, Any]] = {}
    compiling = backend.compile_many([k for _, k in kernels], device, jobs=int(device.cores), timeout_s=40.0)
    for at, outcome in compiling:
        built.setdefault(kernels[at][0], {})[at] = outcome
        if time.monotonic() - started > 0.7 * given.seconds:
            break
    print(f"compiled {len(built)} after {time.monotonic() - started:.0f} s", flush=True)
    found: list[dict[str, Any]] = []
    for shape in shapes:
        replay = Replay(shape, getattr(torch, given.dtype))
        replay.microseconds(replay.library)
        library = replay.microseconds(replay.library, 7)
        for i, (mine, candidate, plan) in enumerate(jobs):
            objects = [outcome for _, outcome in sorted(built.get(i, {}).items())]
            late = time.monotonic() - started > given.seconds
            if mine != shape or late or len(objects) < len(plan.kernels):
                continue
            if any(isinstance(outcome, Rejected) for outcome in objects):
                continue
            try:
                us, error = replay.measure(plan, objects, device)
            except KernsearchError as refusal:
                print(candidate.name, refusal)
                continue
            found.append({"kernels": "survey", "dtype": given.dtype, "shape": list(shape), "variant": candidate.variant,
                          "config": dict(candidate.config), "us": round(us, 3), "cublas_us": round(library, 3),
                          "error": float(f"{error:.3g}")})  # fmt: skip
        given.out.write_text(json.dumps(found))
        best = sorted((r for r in found if tuple(r["shape"]) == shape), key=lambda r: r["us"])[:3]
        print("x".join(map(str, shape)), f"cuBLAS {library:.1f} us", flush=True)
        for r in best:
            print(f"  {r['us']:.1f} us  {library / r['us']:.3f}x  error {r['error']:.1e}  {r['variant']} {r['config']}")


if __name__ == "__main__":
    main()
