"""Benchmarks that flatter: the same kernel, timed in ways that make it look faster than it is in use."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

BEST_OF = 9
VECTOR, SQUARE = (1, 1024, 2048), (512, 512, 512)  # 8 MiB of B on a CPU
ON_CUDA_VECTOR, ON_CUDA_SQUARE = (16, 4096, 4096), (4096, 4096, 4096)  # 32 MiB of B of 16 bits
UNKNOWN = "the model knows nothing of how a benchmark is made: it predicts a call that finds its operands in memory"


def arms(device: Device) -> tuple[Arm, ...]:
    if device.backend == "cpu":
        vector, square = Arm("vector, cold", VECTOR, ("few_rows",)), Arm("square", SQUARE, ("register_tiled",))
    else:
        vector = Arm("vector, cold", ON_CUDA_VECTOR, ("async_pipeline",))
        square = Arm("square", ON_CUDA_SQUARE, ("async_pipeline",))
    return (
        vector,
        replace(vector, label="vector, warm", like=vector.label, warm=True),
        square,
        replace(square, label="square, zeros", like=square.label, zeros=True),
        replace(square, label=f"square, best of {BEST_OF}", like=square.label, best_of=BEST_OF),
        replace(square, label="square, warm", like=square.label, warm=True),
        replace(square, label=f"square, warm zeros, best of {BEST_OF}", like=square.label, warm=True, zeros=True,
                best_of=BEST_OF),
    )  # fmt: skip


def comparisons(device: Device) -> tuple[Comparison, ...]:
    vector, warm, square, zeros, best, square_warm, every = (arm.label for arm in arms(device))
    return (
        Comparison("a few rows: caches warm instead of cold", vector, warm, note=UNKNOWN),
        Comparison("a square: caches warm instead of cold", square, square_warm, note=UNKNOWN),
        Comparison("a square: zeros instead of random numbers", square, zeros, note=UNKNOWN),
        Comparison(f"a square: the best of {BEST_OF} instead of a median", square, best, note=UNKNOWN),
        Comparison("a square: all three at once", square, every, note=UNKNOWN),
    )


CASE = Case(
    name="hot-cache",
    op="gemm",
    claim="a loop over the same call, the fastest of its times, says how fast a kernel is",
    mechanism="the loop finds its operands in a cache where an application does not, zeros draw less power, and the "
    "fastest time is one that seldom happens: wins here are the benchmark's, not the kernel's",
    backends=("cpu", "cuda"),
    arms=arms,
    comparisons=comparisons,
    means={
        "wins": "the benchmark flatters by {times} times",
        "tie": "the benchmark is honest",
        "loses": "the benchmark makes it look {times} times as slow",
    },
)
