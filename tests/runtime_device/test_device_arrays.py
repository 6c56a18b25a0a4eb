"""Plans and `matmul` on arrays of a GPU: CuPy and DLPack, strides, places, what is refused."""

from __future__ import annotations

from typing import Any

import device_defaults
import msgspec
import numpy as np
import pytest
from device_arrays import host, same, small

import kernsearch as ks
from kernsearch import runtime
from kernsearch.errors import ArrayError, DeviceError, DtypeError, ProblemError
from kernsearch.records import lookup
from kernsearch.runtime import libraries

pytestmark = pytest.mark.gpu
DTYPES = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "a, b",
    [
        ((13, 7), (7, 11)), ((7,), (7, 11)), ((13, 7), (7,)), ((7,), (7,)), ((1, 1), (1, 1)),
        ((3, 13, 7), (7, 11)), ((3, 13, 7), (3, 7, 11)), ((2, 3, 13, 7), (3, 7, 11)), ((2, 1, 13, 7), (3, 7, 11)),
        ((13, 7), (5, 7, 11)), ((7,), (5, 7, 11)), ((5, 13, 7), (7,)),
    ],
    ids=str,
)  # fmt: skip
def test_products_are_those_of_numpy(cp, dtype, a, b):
    x, y = small(cp, *a, dtype=dtype), small(cp, *b, dtype=dtype, seed=1)
    for _ in range(2):  # cold, and remembered
        got = ks.matmul(x, y)
        assert type(got) is cp.ndarray and got.dtype == x.dtype
        same(got, host(x) @ host(y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_epilogue_follows_the_definition(cp, dtype, batch):
    a, b = small(cp, *batch, 9, 5, dtype=dtype), small(cp, *batch, 5, 8, dtype=dtype, seed=1)
    bias, c = small(cp, 8, dtype=dtype, seed=2), small(cp, *batch, 9, 8, dtype=dtype, seed=3)
    want = np.maximum(2 * (host(a) @ host(b)) + host(bias) - host(c), 0)
    out = cp.empty((*batch, 9, 8), a.dtype)
    for _ in range(2):
        out.fill(float("nan"))
        assert ks.matmul(a, b, bias=bias, activation="relu", alpha=2.0, beta=-1.0, c=c, out=out) is out
        same(out, want)
    same(ks.matmul(a, b, c=c[..., :1, :], beta=1.0), host(a) @ host(b) + host(c[..., :1, :]))
    c.fill(float("nan"))
    same(ks.matmul(a, b, c=c, beta=0.0), host(a) @ host(b))


@pytest.mark.parametrize(
    "a, b", [((0, 7), (7, 11)), ((3, 0), (0, 5)), ((2, 3, 0), (2, 0, 5)), ((0,), (0,)), ((0, 3, 4), (0, 4, 2))], ids=str
)
def test_zero_sizes_are_fine(cp, a, b):
    x, y = small(cp, *a), small(cp, *b)
    same(ks.matmul(x, y), host(x) @ host(y))
    n = b[-1] if len(b) > 1 else 1
    same(ks.matmul(x, y, bias=small(cp, n)), host(x) @ host(y) + host(small(cp, n)) if len(b) > 1 else host(x) @ host(y)
         + host(small(cp, 1))[0])  # fmt: skip


def test_more_matrices_than_a_grid_has_rows(cp):
    a, b = cp.arange(70_001, dtype="f4").reshape(-1, 1, 1), cp.full((70_001, 1, 2), 2, "f4")
    same(ks.matmul(a, b), 2 * np.arange(70_001.0).reshape(-1, 1, 1) * np.ones(2))


def test_inputs_and_outputs_may_have_any_strides(cp):
    a, b = small(cp, 26, 14), small(cp, 14, 22, seed=1)
    for x, y in [(a[::2, ::2], b[::2, ::2]), (a[13::-1, :7], b[:7]), (a[:7, :7].T, b[:11, :7].T),
                 (a[1:, 3:10], b[5:12, 1:]),
                 (cp.broadcast_to(a[:1, :7], (13, 7)), cp.broadcast_to(b[:7, :1], (7, 11)))]:  # fmt: skip
        same(ks.matmul(x, y), host(x) @ host(y))
    whole = cp.full((30, 40), 9, "f4")
    for out in (whole[1:27:2, 2:35:3], whole.T[4:17, 3:14], whole[20:7:-1, 5:16]):
        whole.fill(9)
        assert ks.matmul(a[:13, :7], b[:7, :11], out=out) is out
        same(out, host(a[:13, :7]) @ host(b[:7, :11]))
        out.fill(9)
        assert (whole == 9).all()


def test_an_output_may_be_or_overlap_an_input(cp):
    block = small(cp, 40, 40)
    b = small(cp, 7, 7, seed=1)
    for where in ((slice(1, 8), slice(1, 8)), (slice(0, 7), slice(0, 7)), (slice(3, 10), slice(5, 12))):
        now = block.copy()
        want = host(now[:7, :7]) @ host(b)
        ks.matmul(now[:7, :7], b, out=now[where])
        same(now[where], want)
    c, a = small(cp, 7, 7, seed=3), small(cp, 7, 7, seed=4)
    for _ in range(2):
        want = host(a) @ host(b) + 2 * host(c)
        assert ks.matmul(a, b, c=c, beta=2.0, out=c) is c
        same(c, want)
        c %= 3
    stack = small(cp, 2, 4, 5, 5)
    want = host(stack) @ host(stack[:, :1])
    same(ks.matmul(stack, stack[:, :1].copy(), out=stack), want)
    stack = small(cp, 4, 5, 5)
    want = host(stack) @ host(stack[::-1])
    same(ks.matmul(stack, stack[::-1], out=stack), want)


def misaligned(cp: Any, array: Any, shift: int) -> Any:
    """The same values, `shift` elements past an aligned address."""
    room = cp.empty(array.size + shift, array.dtype)[shift:].reshape(array.shape)
    room[...] = array
    return room


def test_arrays_that_a_plan_does_not_take_get_one_that_does(cp, gpu):
    problem = device_defaults.problem("gemm", "bfloat16", shape=(16, 24, 32))
    assumed = device_defaults.record(problem, gpu, assumes=("A.base % 16 == 0", "B.k % 8 == 0"))
    lookup.store().write(assumed)
    plan = runtime.load_problem(problem, gpu)
    assert plan.plan.assumes and plan.hit != "default"
    a, b = small(cp, 16, 32, dtype="bfloat16"), small(cp, 32, 24, dtype="bfloat16", seed=1)
    wide = cp.zeros((32, 27), b.dtype)
    wide[:, :24] = b
    for x, y in [(a, b), (misaligned(cp, a, 1), b), (misaligned(cp, a, 8), b), (a, wide[:, :24]), (a, b)]:
        for _ in range(2):
            same(plan(x, y), host(a) @ host(b))
            same(ks.matmul(x, y), host(a) @ host(b))


def test_a_plan_that_the_compiler_refuses_leaves_its_place_to_the_next(cp, gpu):
    problem = device_defaults.problem("gemm", "float32", shape=(16, 24, 40))
    broken = device_defaults.record(problem, gpu)
    kernels = tuple(
        msgspec.structs.replace(k, header=f'{k.header}\n#error "no such thing"') for k in broken.plan.kernels
    )
    lookup.store().write(msgspec.structs.replace(broken, plan=msgspec.structs.replace(broken.plan, kernels=kernels)))
    plan = runtime.load_problem(problem, gpu)
    assert plan.hit != "default"
    a, b = small(cp, 16, 40), small(cp, 40, 24, seed=1)
    with pytest.warns(UserWarning, match="no such thing.*serves in its place"):
        same(plan(a, b), host(a) @ host(b))
    same(plan(a, b), host(a) @ host(b))
    same(ks.matmul(a, b), host(a) @ host(b))


def test_without_another_plan_arrays_are_copied(cp, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "shipped_folder", lambda: tmp_path)
    problem = device_defaults.problem("gemm", "float32", shape=(16, 24, 32))
    lookup.store().write(device_defaults.record(problem, gpu, assumes=("A.base % 16 == 0", "D.base % 16 == 0")))
    plan = runtime.load_problem(problem, gpu)
    a, b = small(cp, 16, 32), small(cp, 32, 24, seed=1)
    out = misaligned(cp, cp.zeros((16, 24), "f4"), 1)
    for _ in range(2):
        out.fill(0)
        assert plan(misaligned(cp, a, 1), b, out=out) is out
        same(out, host(a) @ host(b))


def test_a_plan_is_called_with_its_arrays_by_place_or_name(cp):
    plan = ks.load("gemm", shape=(13, 11, 7), dtype="float16", epilogue="bias", device="cuda")
    a, b, bias = (small(cp, *s, dtype="float16", seed=i) for i, s in enumerate([(13, 7), (7, 11), (11,)]))
    want = host(a) @ host(b) + host(bias)
    out = cp.empty((13, 11), a.dtype)
    for _ in range(2):
        same(plan(a, b, bias), want)
        assert plan(a, b, bias, out=out) is out
        same(out, want)
        same(plan(a, bias=bias, B=b, alpha=2), 2 * (want - host(bias)) + host(bias))
    with pytest.raises(ArrayError, match="bias is missing"):
        plan(a, b, out=out)


def test_a_plan_of_the_cpu_takes_no_arrays_of_a_device(cp, monkeypatch):
    monkeypatch.undo()  # the defaults that are shipped
    runtime.forget()
    with pytest.raises(ArrayError, match="A is on cuda:0, this plan runs on the CPU"):
        ks.load("gemm", shape=(13, 11, 7), device="cpu")(small(cp, 13, 7), small(cp, 7, 11))


def test_what_does_not_fit_is_said_in_one_line(cp):
    a, b = small(cp, 13, 7), small(cp, 7, 11)
    plan = ks.load("gemm", shape=(13, 11, 7), dtype="float32", device="cuda")
    for error, match, call in [
        (ArrayError, "b is in host memory, a on cuda:0", lambda: ks.matmul(a, b.get())),
        (ArrayError, "a is in host memory, b on cuda:0", lambda: ks.matmul(a.get(), b)),
        (ArrayError, "a is in host memory, out on cuda:0", lambda: ks.matmul(a.get(), b.get(), out=cp.empty((13, 11)))),
        (ArrayError, "bias is in host memory", lambda: ks.matmul(a, b, bias=np.zeros(11, "f4"))),
        (ArrayError, "out has shape", lambda: ks.matmul(a, b, out=cp.empty((3, 3), "f4"))),
        (ArrayError, "want as many columns", lambda: ks.matmul(a, a)),
        (ArrayError, "visits an element twice",
         lambda: ks.matmul(a, b, out=cp.broadcast_to(cp.empty((1, 11), "f4"), (13, 11)))),
        (DtypeError, "int32", lambda: ks.matmul(a.astype("i4"), b.astype("i4"))),
        (DtypeError, "a is float32, b is float16", lambda: ks.matmul(a, b.astype("f2"))),
        (DtypeError, "float64", lambda: ks.matmul(a.astype("f8"), b.astype("f8"))),
        (ProblemError, "activation", lambda: ks.matmul(a, b, activation="sin")),
        (ArrayError, "A is in host memory", lambda: plan(a.get(), b)),
        (ArrayError, "D is in host memory", lambda: plan(a, b, out=np.empty((13, 11), "f4"))),
        (DtypeError, "B is float16", lambda: plan(a, b.astype("f2"))),
    ]:  # fmt: skip
        with pytest.raises(error, match=match) as told:
            call()
        assert "\n" not in str(told.value)


def test_no_memory_left_is_one_line(cp):
    with pytest.raises(DeviceError, match="cuda:0 has no memory left for a test") as told:
        libraries.room(cp.cuda.alloc, 1 << 50, what="a test", device=0)
    assert "\n" not in str(told.value)


class Foreign:
    """An array of a library that nobody knows, which speaks DLPack."""

    def __init__(self, array: Any):
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_of_any_library_come_in_by_dlpack(cp):
    a, b = small(cp, 13, 7), small(cp, 7, 11, seed=1)
    got = ks.matmul(Foreign(a), Foreign(b))
    assert type(got) is cp.ndarray
    same(got, host(a) @ host(b))
    out = cp.empty((13, 11), "f4")
    ks.matmul(a, Foreign(b), out=out)
    same(out, host(a) @ host(b))
    same(ks.load("gemm", shape=(13, 11, 7), dtype="float32", device="cuda")(Foreign(a), b), host(a) @ host(b))


def test_arrays_on_different_devices_are_refused(cp):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    a = small(cp, 13, 7)
    with cp.cuda.Device(1):
        b = small(cp, 7, 11)
    with pytest.raises(ArrayError, match="b is on cuda:1"):
        ks.matmul(a, b)
    with cp.cuda.Device(1):
        x = small(cp, 13, 7)
    same(ks.matmul(x, b), host(x) @ host(b))  # while device 0 is current
    assert ks.matmul(x, b).device.id == 1
