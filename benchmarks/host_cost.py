"""What a call costs the host: microseconds of a plan call, of `ks.matmul`, and of the libraries' own matmul.

    python benchmarks/host_cost.py [--out FILE]

Tiny arrays on the first GPU, so that kernels take less time than launching them. Calls are made one after the other
without waiting, blocks of CALLS with a pause of the device between them; a figure is the median of the blocks, with the
fastest and the slowest. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernsearch as ks
from kernsearch import backends

CALLS, BLOCKS = 250, 60  # calls that fit into the queue of launches: a full one makes the host wait for kernels
SIZE = 64  # of M, N and K
WANTED_US = {"plan": 6.0, "matmul": 10.0}  # floors are twice as much


def cost(call: Callable[[], Any], wait: Callable[[], None]) -> dict[str, float]:
    """Microseconds of the host a call."""
    blocks = []
    for _ in range(BLOCKS + 1):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        blocks.append((time.perf_counter() - start) / CALLS * 1e6)
        wait()
    blocks = sorted(blocks[1:])  # the first one warms up
    return {
        "median_us": round(statistics.median(blocks), 3),
        "min_us": round(blocks[0], 3),
        "max_us": round(blocks[-1], 3),
    }


def cupy_calls(dtype: str) -> dict[str, Callable[[], Any]]:
    import cupy as cp

    a, b, out = (cp.ones((SIZE, SIZE), cp.dtype(dtype)) for _ in range(3))
    plan = ks.load("gemm", shape=(SIZE, SIZE, SIZE), dtype=dtype, device="cuda")
    return {
        "plan(a, b)": lambda: plan(a, b),
        "plan(a, b, out=out)": lambda: plan(a, b, out=out),
        "ks.matmul(a, b)": lambda: ks.matmul(a, b),
        "ks.matmul(a, b, out=out)": lambda: ks.matmul(a, b, out=out),
        "cupy.matmul(a, b)": lambda: cp.matmul(a, b),
        "cupy.matmul(a, b, out=out)": lambda: cp.matmul(a, b, out=out),
        "cupy.empty": lambda: cp.empty((SIZE, SIZE), a.dtype),
    }


def torch_calls(dtype: str) -> dict[str, Callable[[], Any]]:
    try:
        import torch
    except ImportError:
        return {}
    a, b, out = (torch.ones(SIZE, SIZE, dtype=getattr(torch, dtype), device="cuda") for _ in range(3))
    plan = ks.load("gemm", shape=(SIZE, SIZE, SIZE), dtype=dtype, device="cuda")
    return {
        "plan(a, b)": lambda: plan(a, b),
        "plan(a, b, out=out)": lambda: plan(a, b, out=out),
        "ks.matmul(a, b)": lambda: ks.matmul(a, b),
        "ks.matmul(a, b, out=out)": lambda: ks.matmul(a, b, out=out),
        "torch.matmul(a, b)": lambda: torch.matmul(a, b),
        "torch.matmul(a, b, out=out)": lambda: torch.matmul(a, b, out=out),
        "torch.empty_like": lambda: torch.empty_like(a),
    }


def measured(calls: dict[str, Callable[[], Any]], wait: Callable[[], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = cost(call, wait)
        except (ks.KernsearchError, TypeError, ValueError, RuntimeError) as error:  # a library without this dtype
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the JSON as well")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    told = parser.parse_args()
    try:
        device = backends.get("cuda").device(0)
    except ks.DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    from kernsearch.backends.cuda import arrays

    wait = arrays.xp().cuda.Device(device.index).synchronize
    result: dict[str, Any] = {
        "figure": "host-cost", "date": time.strftime("%Y-%m-%d", time.gmtime()), "device": device.key,
        "driver": backends.get("cuda").driver(device), "python": platform.python_version(),
        "host": platform.processor() or platform.machine(), "shape": [SIZE] * 3, "calls": CALLS, "blocks": BLOCKS,
        "wanted_us": WANTED_US,
    }  # fmt: skip
    for dtype in told.dtypes.split(","):
        result[dtype] = {"cupy": measured(cupy_calls(dtype), wait), "torch": measured(torch_calls(dtype), wait)}
    text = json.dumps(result, indent=1)
    print(text)
    if told.out:
        told.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
