"""Ceilings of this CPU, measured by small kernels in a worker, in about half a second."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...device import Device
from .. import ceilings as seam
from . import compiler, pool
from .device import UNIT_FLAGS

SOURCE = "common/c/ceilings.c"
PAIRS_SOURCE = "common/c/pair_ceilings.c"
CHAINS = 12  # independent multiply-adds of a round, as in the sources
TILE_FLOPS = 4 * 2 * 16 * 16 * 32  # of a round of tiles
REPEATS = 4  # a ceiling is the best of these
RUN_S = 0.004  # how long one run should take
BLOCK = 8 * 64  # slices are multiples of this
TRIES = 4
ROUNDS = 200  # of parallel sections
LARGEST_BYTES = 1 << 30  # what the copy may touch in all


def worker_options(device: Device) -> dict[str, Any]:
    """How to start a worker for `measure`."""
    return {"threads": device.threads, "pool": pool.for_worker(device.threads)}


def measure(device: Device, runner: seam.Runner) -> dict[str, Any]:
    """Fields of Ceilings: multiply-adds, read bandwidth by level, copy bandwidth and start costs.

    Raises Rejected when a kernel does not compile or run, CompilerError without a compiler.
    """
    objects = {dtype: _multiply_adds(device, dtype) for dtype in ("float32", "float64")}
    objects |= {unit: _pairs(device, unit) for unit in UNIT_FLAGS if device.facts.get(unit)}
    bench, threads = _Bench(device, runner, objects), device.threads
    levels = bench.levels()
    flops_one = {name: bench.flops(name, 1) for name in objects}
    read_one = {name: bench.read(threads * size if name == "memory" else size, 1) for name, size in levels.items()}
    return {
        "flops": {name: max(bench.flops(name, threads), rate) for name, rate in flops_one.items()},
        "flops_one": flops_one,
        "read": {name: max(bench.read(levels[name], threads), rate) for name, rate in read_one.items()},
        "read_one": read_one,
        "copy": bench.copy(threads),
        "launch_s": bench.start(1),
        "parallel_s": bench.start(threads) if threads > 1 else 0.0,
        "busy": bench.busy,
    }


def sustained(device: Device, runner: seam.Runner, dtype: str, seconds: float) -> Callable[[], float]:
    """What runs independent multiply-adds on all threads for about `seconds` and returns their FLOP/s: over so long a
    time clocks and whoever shares the cores count, which a look of some milliseconds may not meet."""
    bench = _Bench(device, runner, {dtype: _multiply_adds(device, dtype)})
    rounds = bench.rounds(dtype, device.threads, seconds)
    return lambda: bench.rate(dtype, device.threads, rounds, repeats=1)


def _multiply_adds(device: Device, dtype: str) -> str:
    defines = {"KS_DOUBLE": int(dtype == "float64")}
    return str(compiler.build(SOURCE, "ks_ceiling_fma", device, name="ceilings", defines=defines).path)


def _pairs(device: Device, unit: str) -> str:
    """The object with the ceiling of a unit."""
    letters = {"KS_MR": 16, "KS_NR": 16, "KS_KU": 1}
    flags = UNIT_FLAGS[unit]
    built = compiler.build(PAIRS_SOURCE, "ks_ceiling_pairs", device, name="ceilings", defines=letters, flags=flags)
    return str(built.path)


class _Bench:
    """The kernels with their buffers: results, then a source and a target of half of `memory` bytes each."""

    def __init__(self, device: Device, runner: seam.Runner, objects: dict[str, str]):
        self.device, self.runner, self.objects = device, runner, objects
        self.busy = False
        self.third = device.l3_bytes * min(device.facts.get("l3_count", 1), device.threads)  # bytes of all together
        wanted = max(4 * self.third, 64 * device.l2_bytes, 64 << 20)
        self.memory = min(wanted, LARGEST_BYTES, max(device.memory_bytes // 16, 8 << 20)) // 2
        self.results = 4096
        self.source = self.results + max(4096, 128 * device.threads)
        self.source += -self.source % 4096
        self.target = self.source + self.memory
        runner.reserve(self.target + self.memory)

    def levels(self) -> dict[str, int]:
        """Bytes a thread reads to be served by each level; a level that others hide is left out."""
        d = self.device
        found = {"l1": d.l1d_bytes // 2, "l2": d.l2_bytes // 2}
        third = min(4 * d.l2_bytes, self.third // (2 * d.threads))
        if third >= 2 * d.l2_bytes:
            found["l3"] = third
        found["memory"] = self.memory // d.threads
        return {level: max(size // BLOCK, 1) * BLOCK for level, size in found.items()}

    def best(
        self, entry: str, threads: int, rounds: int, size: int = 0, name: str = "float32", repeats: int = REPEATS
    ) -> float:
        """Seconds of the fastest run; several are tried again a few times while threads had to wait for cores."""
        buffers = (self.results, self.source, self.target)
        call = seam.Call(self.objects[name], entry, buffers, (rounds, size), threads)
        fastest = math.inf
        for _ in range(TRIES if repeats > 1 else 1):
            samples = self.runner.run(call, repeats)
            fastest = min(fastest, *(seconds for seconds, _ in samples))
            if any(wait <= max(0.01 * seconds, 1e-4) for seconds, wait in samples):
                break
        else:
            self.busy = True
        return max(fastest, 1e-9)

    def flops(self, name: str, threads: int) -> float:
        """FLOP/s of a dtype, or of a unit by its name."""
        return self.rate(name, threads, self.rounds(name, threads, RUN_S))

    def rounds(self, name: str, threads: int, seconds: float) -> int:
        """How many rounds of multiply-adds take so long; at least enough to tell."""
        trial = 10_000
        return max(trial, round(seconds * self.rate(name, threads, trial) / (threads * self._flops_of_a_round(name))))

    def rate(self, name: str, threads: int, rounds: int, repeats: int = REPEATS) -> float:
        """FLOP/s over so many rounds."""
        dtype = "float64" if name == "float64" else "float32"
        size = {"float32": 4, "float64": 8}[dtype]
        self.runner.fill(self.results, 128 * self.device.threads // size, dtype, 0.5)  # neither grows nor vanishes
        entry = "ks_ceiling_pairs" if name in UNIT_FLAGS else "ks_ceiling_fma"
        return threads * rounds * self._flops_of_a_round(name) / self.best(entry, threads, rounds, 0, name, repeats)

    def _flops_of_a_round(self, name: str) -> int:
        vector = CHAINS * 2 * self.device.vector_bytes // (8 if name == "float64" else 4)
        return {"amx_bf16": TILE_FLOPS, "avx512_bf16": 2 * vector}.get(name, vector)

    def read(self, size: int, threads: int) -> float:
        rounds = max(1, round(RUN_S / self.best("ks_ceiling_read", threads, 1, size)))
        return threads * rounds * size / self.best("ks_ceiling_read", threads, rounds, size)

    def copy(self, threads: int) -> float:
        size = self.memory // threads // BLOCK * BLOCK
        return 2 * threads * size / self.best("ks_ceiling_copy", threads, 1, size)

    def start(self, threads: int) -> float:
        """Seconds of a parallel section with awake threads; of a whole launch for one thread."""
        rounds = ROUNDS if threads > 1 else 1
        return self.best("ks_ceiling_meet", threads, rounds) / rounds
