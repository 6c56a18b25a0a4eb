"""One case of test_cuda_gemm_hopper in a process of its own: a kernel that hangs or faults harms no other.

    python hopper_case.py '{"variant": "warp_specialized", "config": {...}, ...}'
    python hopper_case.py --all [--jobs N] [--only WORD]     every case of the test, N processes at a time

A case is lowered, compiled and launched as a tuned kernel is. Inputs are small whole numbers, so sums are exact and the
output must be the rounded sum, bit for bit; around the arrays, and between their rows, lie NaNs that must not be read,
and past the output that must not be written. When something differs, the answer says where first, how the differences
lie within a tile, and what four position-coded inputs say of the rows, columns and depths that were taken instead.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from kernsearch.spaces.gemm import templates as gemm
from kernsearch.spaces.generic import templates as generic

from kernsearch import backends, launch
from kernsearch.backends.cuda import driver
from kernsearch.backends.cuda.arrays import synchronize, xp
from kernsearch.backends.cuda.launcher import Launcher
from kernsearch.backends.cuda.modules import Module
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.errors import Rejected
from kernsearch.registry import op

GUARD = 4096  # elements before and after every array
NAN = {"bfloat16": 0x7FC1, "float16": 0x7E01}
SCALARS = {"alpha": 0.5, "beta": 2.0}
TIMEOUT_S = 120
WATCHED = "-DKS_WATCHDOG=1"  # a wait without end becomes an error that says which


def to_bits(values, dtype):
    """Float values as 16-bit patterns, to nearest even."""
    cupy = xp()
    if dtype == "float16":
        return values.astype(cupy.float16).view(cupy.uint16)
    u = values.astype(cupy.float32).view(cupy.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(cupy.uint16)


def to_floats(bits, dtype):
    """16-bit patterns as float64."""
    cupy = xp()
    if dtype == "float16":
        return bits.view(cupy.float16).astype(cupy.float64)
    return (bits.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


class Guarded:
    """An array of 16-bit elements whose rows are `pitch` apart, amid NaNs. `order`: its axes in memory."""

    def __init__(self, shape, dtype, aligned, shift=0):
        cupy = xp()
        *batch, rows, columns = shape
        pitch = -(-columns // 8) * 8 + 8 if aligned else columns
        count = int(np.prod(batch, dtype=int)) * rows * pitch
        self.memory = cupy.full(2 * GUARD + shift + count, NAN[dtype], cupy.uint16)
        self.start = GUARD + shift
        whole = self.memory[self.start : self.start + count].reshape(*batch, rows, pitch)
        self.bits = whole[..., :columns]
        self.strides = tuple(s // 2 for s in self.bits.strides)
        self.dtype = dtype

    @property
    def view(self):
        return launch.ArrayView(self.bits.data.ptr, self.bits.shape, self.strides, 2)

    def set(self, values):
        self.bits[...] = to_bits(values, self.dtype)

    def outside(self):
        """Elements changed that are not of the array."""
        copy = self.memory.copy()
        inner = copy[self.start : len(copy) - GUARD].reshape(*self.bits.shape[:-1], -1)
        inner[..., : self.bits.shape[-1]] = NAN[self.dtype]
        return int((copy != NAN[self.dtype]).sum())


class Built:
    """A variant at a config, compiled and loaded; sizes are free."""

    def __init__(self, case):
        self.case, self.op = case, op(case.get("op", "gemm"))
        self.backend, self.device = backends.get("cuda"), backends.get("cuda").device(0)
        options = {"layout": case.get("layout", "nn"), "epilogue": case.get("epilogue", "none")}
        self.problem = self.op.problem(tuple(case["shapes"][0]), case["dtype"], backend="cuda", **options)
        usable = [t for t in (*gemm.templates(), *generic.templates()) if t.backend == "cuda"]
        found = derive(self.problem, self.op, usable).variant(case["variant"])
        config = {**{p.name: p.values[0] for p in found.params}, **case["config"]}
        self.plan = lower(found, config, self.problem, self.backend, self.device)
        watched = [_watched(kernel) if case.get("watched") else kernel for kernel in self.plan.kernels]
        self.compiled = [self.backend.compile(kernel, self.device, timeout_s=90) for kernel in watched]
        self.modules = [Module(compiled.path) for compiled in self.compiled]

    def refuses(self, arrays):
        """The assumption that these arrays do not meet, as where rows of the output do not end with 16 bytes."""
        views = {name: array.view for name, array in arrays.items()}
        return launch.unmet(self.plan, launch.names(self.plan, views, self.device.sms))

    def run(self, arrays, scalars, repeats=1):
        views = {name: array.view for name, array in arrays.items()}
        call = launch.resolve(self.plan, views, threads=self.device.sms)
        if rule := launch.unmet(self.plan, call.names):
            raise Rejected(f"the plan assumes {rule}", "test")
        launcher = Launcher(self.plan, call, self.modules, self.device)
        work = xp().full(max(launcher.workspace_bytes, 1), 0xFF, xp().uint8)
        addresses = [views[o.name].address for o in self.plan.operands]
        for _ in range(repeats):
            launcher.run(addresses, tuple(scalars.get(s, 1.0) for s in self.plan.scalars), 0, work.data.ptr)
        synchronize()


def _watched(kernel):
    from dataclasses import is_dataclass, replace

    import msgspec

    flags = (*kernel.flags, WATCHED)
    return replace(kernel, flags=flags) if is_dataclass(kernel) else msgspec.structs.replace(kernel, flags=flags)


def operands(case, shape, seed):
    """Guarded arrays by name, and float64 A (.., M, K) and B (.., K, N), small whole numbers."""
    cupy = xp()
    *batch, m, n, k = shape
    random = cupy.random.RandomState(seed)
    layout, dtype = case.get("layout", "nn"), case["dtype"]
    a = random.randint(-4, 5, (*batch, m, k)).astype(cupy.float64)
    b = random.randint(-4, 5, (*batch, k, n)).astype(cupy.float64)
    arrays = {}
    for name, value, turned in (("A", a, layout[0] == "t"), ("B", b, layout[1] == "t")):
        stored = value.swapaxes(-1, -2) if turned else value
        arrays[name] = Guarded(stored.shape, dtype, case.get("aligned", True), case.get("shift", 0))
        arrays[name].set(stored)
    steps = set(case.get("epilogue", "none").split(","))
    if "bias" in steps:
        arrays["bias"] = Guarded((1, n), dtype, True)
        arrays["bias"].set(random.randint(-4, 5, (1, n)))
        arrays["bias"].bits = arrays["bias"].bits[0]
        arrays["bias"].strides = (1,)
    if "residual" in steps:
        arrays["C"] = Guarded((*batch, m, n), dtype, case.get("aligned", True))
        arrays["C"].set(random.randint(-4, 5, (*batch, m, n)))
    arrays["D"] = Guarded((*batch, m, n), dtype, case.get("aligned_out", case.get("aligned", True)))
    return arrays, a, b


def expected(case, arrays, product, scalars):
    """The epilogue in float64."""
    cupy, steps, dtype = xp(), set(case.get("epilogue", "none").split(",")), case["dtype"]
    value = scalars.get("alpha", 1.0) * product
    if "bias" in steps:
        value = value + to_floats(arrays["bias"].bits, dtype)
    if "residual" in steps:
        value = value + scalars["beta"] * to_floats(arrays["C"].bits, dtype)
    if "relu" in steps:
        value = cupy.maximum(value, 0)
    return value


def where(wrong, case):
    """First wrong element, and how wrong ones lie within tiles."""
    cupy, config = xp(), case["config"]
    at = [int(i[0]) for i in cupy.nonzero(wrong)]
    *batch, m, n = at
    rows, columns = (config["BN"], config["BM"]) if "swapped" in case["variant"] else (config["BM"], config["BN"])
    plane = wrong.reshape(-1, *wrong.shape[-2:]).any(axis=0)
    by_row = [int(i) for i in cupy.nonzero(plane.any(axis=1))[0][:12]]
    by_column = [int(i) for i in cupy.nonzero(plane.any(axis=0))[0][:12]]
    tiles = {
        (int(i) // rows, int(j) // columns)
        for i, j in zip(*(cupy.asnumpy(v) for v in cupy.nonzero(plane)), strict=True)
    }
    return (
        f"{int(wrong.sum())} of {wrong.size} wrong, first at batch {batch} row {m} column {n}"
        f" = tile ({m // rows}, {n // columns}) + ({m % rows}, {n % columns});"
        f" wrong rows {by_row}.., columns {by_column}.., tiles {sorted(tiles)[:8]} of"
        f" {-(-wrong.shape[-2] // rows)}x{-(-wrong.shape[-1] // columns)}"
    )


def probes(built, shape, seed):
    """What the kernel takes for which row, column and depth: codes of A's rows and k, B's k and columns."""
    cupy, case, told = xp(), built.case, []
    arrays, a, b = operands(case, shape, seed)
    k, m, n = a.shape[-1], a.shape[-2], b.shape[-1]
    deep = cupy.arange(k)
    pick = (cupy.arange(m) * 7 + 3) % k
    pick_n = (cupy.arange(n) * 5 + 1) % k
    one_a, one_b = (deep[None, :] == pick[:, None]) * 1.0, (deep[:, None] == pick_n[None, :]) * 1.0
    for name, av, bv in (
        ("k of B for each row (B = k % 256)", one_a, (deep[:, None] % 256) * cupy.ones((1, n))),
        ("columns of B (B = n % 256)", one_a, cupy.ones((k, 1)) * (cupy.arange(n)[None, :] % 256)),
        ("k of A for each column (A = k % 256)", cupy.ones((m, 1)) * (deep[None, :] % 256), one_b),
        ("rows of A (A = m % 256)", (cupy.arange(m)[:, None] % 256) * cupy.ones((1, k)), one_b),
    ):
        layout = case.get("layout", "nn")
        arrays["A"].set(cupy.broadcast_to(av.T if layout[0] == "t" else av, arrays["A"].bits.shape))
        arrays["B"].set(cupy.broadcast_to(bv.T if layout[1] == "t" else bv, arrays["B"].bits.shape))
        arrays["D"].bits[...] = NAN[case["dtype"]]
        built.run(arrays, {})
        got, want = to_floats(arrays["D"].bits, case["dtype"]), av @ bv
        got = got.reshape(-1, m, n)[0]
        wrong = ~(got == want)
        told.append(f"  {name}: {int(wrong.sum())} wrong")
        if wrong.any():
            i, j = (int(v[0]) for v in cupy.nonzero(wrong))
            i0, j0 = max(0, i - 1), j // 8 * 8
            told.append(f"    at ({i}, {j}): rows {i0}.., columns {j0}..{j0 + 15}")
            told.append(f"    got  {cupy.asnumpy(got[i0 : i0 + 3, j0 : j0 + 16]).astype(float).tolist()}")
            told.append(f"    want {cupy.asnumpy(want[i0 : i0 + 3, j0 : j0 + 16]).astype(int).tolist()}")
    return "\n".join(told)


def check(case):
    """Run all shapes of a case; what is wrong, or "" when nothing is."""
    driver.use(driver.primary_context(0))
    built, faults, passed_over = Built(case), [], 0
    scalars = SCALARS if case.get("epilogue", "none") != "none" else {}
    for seed, shape in enumerate(case["shapes"]):
        arrays, a, b = operands(case, shape, seed)
        if built.refuses(arrays):
            passed_over += 1
            continue
        built.run(arrays, scalars, case.get("repeats", 2))
        got = to_floats(arrays["D"].bits, case["dtype"])
        want = to_floats(to_bits(expected(case, arrays, a @ b, scalars), case["dtype"]), case["dtype"])
        wrong = ~(got == want)
        if outside := arrays["D"].outside():
            faults.append(f"{shape}: {outside} elements written outside of the output")
        if wrong.any():
            faults.append(f"{shape}: {where(wrong, case)}\n{probes(built, shape, seed)}")
            break
    if 2 * passed_over > len(case["shapes"]):
        faults.append(f"the plan takes {len(case['shapes']) - passed_over} of {len(case['shapes'])} shapes")
    return "\n".join(faults)


def run_case(case, timeout_s=TIMEOUT_S):
    """(passed, text) of a case in a process of its own."""
    command = [sys.executable, __file__, json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False, f"did not end in {timeout_s} s"
    text = done.stdout + (done.stderr[-2000:] if done.returncode else "")
    return done.returncode == 0, text.strip()


def main(arguments):
    if arguments[0] != "--all":
        told = check(json.loads(arguments[0]))
        print(told or "right")
        return bool(told)
    from test_cuda_gemm_hopper import CASES

    jobs = int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 4
    word = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    chosen = {name: case for name, case in CASES.items() if word in name}
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(run_case, chosen.values()))
    for (name, case), (passed, text) in zip(chosen.items(), results, strict=True):
        print(f"{'ok  ' if passed else 'FAIL'} {name}" + ("" if passed else f": {case['config']}\n{text}"), flush=True)
    print(f"{sum(passed for passed, _ in results)} of {len(results)} right")
    return not all(passed for passed, _ in results)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(sys.argv[1:]))
