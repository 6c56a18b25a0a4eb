"""Ceilings of this GPU: rates of copies, of the second-level cache and of arithmetic, and what a launch costs.

Runs in a process that may use the device (`measure_here`), in about a second. Random numbers are multiplied: zeros
would draw less power and run faster than anything real.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from ... import sources
from ...device import Device
from . import arrays, rates, timing

SOURCE = "common/cuda/ceilings.cu"
CHAINS, MMAS = 16, 8  # as in the source
MMA_FLOPS = 2 * 16 * 8 * 16  # of a warp
SIDE = 8192  # of the matrices of the tensor rate; smaller where memory is small
REPEATS = 10
COPY_BYTES = 2 << 30  # each way; less where memory is small
L2_SHARE = 1 / 4  # of the second-level cache that is read again and again
LAUNCHES = 1000


def measure_here(device: Device) -> dict[str, Any]:
    """Fields of Ceilings. Raises CuPy's errors.

    flops     float32: multiply-adds of registers on the CUDA cores; float16: the tensor cores, by `how`; bfloat16: the
              same number where the cores are the same, which they are on every architecture that has them
    flops_one of one multiprocessor at its highest clock: together they draw too much power for it
    """
    bench = _Bench(device)
    fma, (tensor, how) = bench.fma(), bench.tensor()
    flops = {"float32": fma, "float16": tensor, "bfloat16": tensor}
    read = {"l2": bench.read(), "memory": bench.read_memory()}
    sms, one = int(device.sms), rates.nominal(device.facts)["flops_one"]
    return {
        "flops": flops,
        "flops_one": {name: max(rate / sms, one[name]) for name, rate in flops.items()},
        "read": read,
        "read_one": {name: rate / sms for name, rate in read.items()},
        "copy": bench.copy(),
        "launch_s": bench.launch(),
        "parallel_s": 0.0,
        "how": {
            "float32": "multiply-adds of registers",
            "float16": how,
            "bfloat16": f"as float16, {how}",
            "copy": "cudaMemcpyAsync on the device, bytes read plus bytes written",
            "launch_s": "an empty kernel in a graph",
        },
    }


class _Bench:
    def __init__(self, device: Device) -> None:
        self.device, self.xp = device, arrays.xp()
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        text = sources.path_of(SOURCE).read_text()
        self.module = self.xp.RawModule(code=text, options=("-std=c++17",))
        self.blocks = 8 * int(device.sms)
        with arrays.on(self.stream):
            self.out = self.xp.zeros(1024, "float32")

    def seconds(self, work: Callable[[], Any], repeats: int = REPEATS) -> float:
        """Median time of one of many in a row; the first ones raise the clocks."""
        return statistics.median(self._series(work, repeats)[repeats // 3 :])

    def _series(self, work: Callable[[], Any], repeats: int) -> list[float]:
        with arrays.on(self.stream):
            work()
            events = [self._event()]
            for _ in range(repeats):
                work()
                events.append(self._event())
            self.stream.synchronize()
        between = self.xp.cuda.get_elapsed_time
        return [float(between(*pair)) * 1e-3 for pair in pairwise(events)]

    def _event(self) -> Any:
        event = self.xp.cuda.Event()
        event.record(self.stream)
        return event

    def _run(self, name: str, *arguments: Any) -> Callable[[], None]:
        kernel = self.module.get_function(name)
        return lambda: kernel((self.blocks,), (256,), arguments)

    def fma(self) -> float:
        rounds = 4096
        work = self._run("ks_ceiling_fma", self.out, np.int32(rounds), np.float32(0.5), np.float32(0.25))
        return self.blocks * 256 * rounds * CHAINS * 2 / self.seconds(work)

    def tensor(self) -> tuple[float, str]:
        """(FLOP/s, how): a large product by cuBLAS where it is installed, else mma.sync from registers; the better."""
        found = []
        if int(self.device.cc_major) >= 8:
            rounds = 2048
            work = self._run("ks_ceiling_mma", self.out, np.int32(rounds))
            found.append((self.blocks * 8 * rounds * MMAS * MMA_FLOPS / self.seconds(work), "mma.sync from registers"))
        side = SIDE
        while 8 * side * side > int(self.device.memory_bytes) // 8:
            side //= 2
        try:
            with arrays.on(self.stream):
                a, b = (self._random((side, side)).astype("float16") for _ in range(2))
                c = self.xp.empty((side, side), "float16")
                rate = 2 * side**3 / self.seconds(lambda: self.xp.matmul(a, b, out=c), 3 * REPEATS)
            found.append((rate, f"cuBLAS {side}x{side}x{side}"))
        except ImportError:
            pass
        return max(found, default=(self.fma(), "multiply-adds of registers"))

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self.xp.random.default_rng(0).standard_normal(shape, dtype="float32")

    def read(self) -> float:
        """From the second-level cache, past the first."""
        words = int(L2_SHARE * int(self.device.l2_bytes)) // 16
        with arrays.on(self.stream):
            data = self.xp.ones(4 * words, "uint32")
        rounds = 16
        work = self._run("ks_ceiling_read", self.out, data, np.int64(words), np.int32(rounds))
        return 16 * words * rounds / self.seconds(work)

    def read_memory(self) -> float:
        words = self._large() // 16
        with arrays.on(self.stream):
            data = self.xp.ones(4 * words, "uint32")
        return 16 * words / self.seconds(self._run("ks_ceiling_read", self.out, data, np.int64(words), np.int32(1)))

    def _large(self) -> int:
        return min(COPY_BYTES, int(self.device.memory_bytes) // 16) // 4096 * 4096

    def copy(self) -> float:
        size = self._large()
        with arrays.on(self.stream):
            source, target = self.xp.ones(size, "uint8"), self.xp.empty(size, "uint8")
        move = self.xp.cuda.runtime.memcpyAsync
        device_to_device = 3
        taken = self.seconds(
            lambda: move(target.data.ptr, source.data.ptr, size, device_to_device, self.stream.ptr), 2 * REPEATS
        )
        return 2 * size / taken

    def launch(self) -> float:
        kernel = self.module.get_function("ks_ceiling_empty")
        replay = timing.graph_timer(lambda copy: kernel((1,), (32,), ()), 1, self.stream, launches=LAUNCHES)
        return statistics.median(replay(REPEATS))
