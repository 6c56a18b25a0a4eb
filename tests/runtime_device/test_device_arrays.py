"""Plans and `matmul` on arrays of a GPU: CuPy, PyTorch and DLPack, streams, graphs, strides, places."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import device_defaults
import msgspec
import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends, runtime
from kernsearch.device import Device
from kernsearch.errors import ArrayError, DeviceError, DtypeError, ProblemError
from kernsearch.records import lookup
from kernsearch.runtime import libraries

pytestmark = pytest.mark.gpu
DTYPES = ("bfloat16", "float16", "float32")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_defaults.write(tmp_path_factory.mktemp("shipped"), backends.get("cuda").device(0))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def home(gpu: Device, shipped: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No records but the defaults; compiled objects are shared by the tests of this file."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(cache))
    monkeypatch.setattr(lookup, "shipped_folder", lambda: shipped)
    runtime.forget()
    yield
    for path in (cache / "records").rglob("*.json"):
        path.unlink()
    runtime.forget()


@pytest.fixture
def cp() -> Any:
    return pytest.importorskip("cupy")


def small(cp: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    """Small whole numbers, so that products are exact in any order and in every dtype."""
    return cp.asarray(np.random.default_rng(seed).integers(-2, 3, shape).astype("f4")).astype(cp.dtype(dtype))


def host(array: Any) -> np.ndarray:
    """As float64 on the host."""
    return array.astype("f4").get().astype(float)


def same(got: Any, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(host(got), want)


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


def test_a_stream_that_the_caller_made_current_stays_so(cp):
    from kernsearch.backends.cuda import arrays, timing

    mine, other = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    a, b = small(cp, 26, 14)[::2, ::2], small(cp, 14, 22, seed=1)[::2, ::2]  # strides that no kernel takes: copied
    cp.cuda.Device().synchronize()
    try:
        mine.use()
        with arrays.on(other):
            assert cp.cuda.get_current_stream() == other
        assert cp.cuda.get_current_stream() == mine
        timing.graph_timer(lambda copy: ks.matmul(a, b), 1, other)(2)
        assert cp.cuda.get_current_stream() == mine
        same(ks.matmul(a, b), host(a) @ host(b))
        assert cp.cuda.get_current_stream() == mine
    finally:
        cp.cuda.Stream.null.use()


def captured(cp: Any, work: Any) -> Any:
    """A graph of what `work` launches, and the stream it was captured on."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            work()
        finally:
            graph = stream.end_capture()
    return graph, stream


def test_a_call_runs_on_the_current_stream_and_a_warm_one_is_captured(cp):
    a, b, out = small(cp, 13, 7), small(cp, 7, 11, seed=1), cp.zeros((13, 11), "f4")
    plan = ks.load("gemm", shape=(13, 11, 7), dtype="float32", device="cuda")
    for call in (lambda: ks.matmul(a, b, out=out), lambda: plan(a, b, out=out)):
        call()
        out.fill(0)
        cp.cuda.Device().synchronize()
        graph, stream = captured(cp, call)
        assert (out == 0).all()
        for seed in (2, 3):
            a[...] = small(cp, 13, 7, seed=seed)
            cp.cuda.Device().synchronize()
            graph.launch(stream)
            stream.synchronize()
            same(out, host(a) @ host(b))


def test_a_cold_call_inside_a_capture_names_the_warm_up_call(cp, gpu):
    problem = device_defaults.problem("gemm", "float32", shape=(17, 19, 23))
    lookup.store().write(device_defaults.record(problem, gpu))  # a plan of its own, that nothing has loaded
    a, b, out = small(cp, 17, 23), small(cp, 23, 19), cp.zeros((17, 19), "f4")

    def work() -> None:
        with pytest.raises(DeviceError, match="call it once before capturing"):
            ks.matmul(a, b, out=out)

    captured(cp, work)
    same(ks.matmul(a, b, out=out), host(a) @ host(b))


def test_workspace_of_a_captured_call_lives_as_long_as_its_graph(cp, gpu):
    from kernsearch.backends.cuda import capture

    problem = device_defaults.problem("gemm", "float32", epilogue="bias", shape=(64, 96, 32))
    lookup.store().write(device_defaults.record(problem, gpu, variant="contraction+map+map"))
    a, b, bias = small(cp, 64, 32), small(cp, 32, 96, seed=1), small(cp, 96, seed=2)
    out = cp.zeros((64, 96), "f4")
    plan = runtime.load_problem(problem, gpu)
    assert plan.workspace_bytes > 0
    plan(a, b, bias, out=out)
    before = len(capture._kept)
    graph, stream = captured(cp, lambda: plan(a, b, bias, out=out))
    assert len(capture._kept) == before + 1
    with stream:  # whoever gets memory now must not get that of the graph
        others = [cp.full(64 * 96 * k, np.nan, "f4") for k in (1, 2, 3)]
        for _ in range(3):
            graph.launch(stream)
            for other in others:
                assert cp.isnan(other).all()
                other.fill(np.nan)
    stream.synchronize()
    same(out, host(a) @ host(b) + host(bias))
    semaphores = [entry[0] for entry in capture._kept[before:]]
    del graph
    gc.collect()
    cp.cuda.Device().synchronize()
    again, _ = captured(cp, lambda: plan(a, b, bias, out=out))
    assert not semaphores[0] or len(capture._kept) <= before + 2
    del again


def test_many_threads_share_a_plan(cp):
    plan = ks.load("gemm", shape=(33, 35, 37), dtype="float32", epilogue="bias", device="cuda")
    wrong: list[Any] = []

    def work(seed: int) -> None:
        with cp.cuda.Stream(non_blocking=True) as stream:
            a, b, bias = small(cp, 33, 37, seed=seed), small(cp, 37, 35, seed=seed + 1), small(cp, 35, seed=seed + 2)
            want = host(a) @ host(b) + host(bias)
            for _ in range(20):
                results = plan(a, b, bias), ks.matmul(a, b, bias=bias)
                stream.synchronize()
                wrong.extend(r for r in results if not np.array_equal(host(r), want))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


# PyTorch -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    return found


def tensor(torch: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).integers(-2, 3, shape).astype("f4")
    return torch.from_numpy(values).cuda().to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_tensors_give_tensors(torch, dtype, batch):
    a, b = tensor(torch, *batch, 13, 7, dtype=dtype), tensor(torch, *batch, 7, 11, dtype=dtype, seed=1)
    bias, c = tensor(torch, 11, dtype=dtype, seed=2), tensor(torch, *batch, 13, 11, dtype=dtype, seed=3)
    want = torch.relu(a.double() @ b.double() + bias.double() + 2 * c.double())
    out = torch.empty(*batch, 13, 11, dtype=a.dtype, device=a.device)
    for _ in range(2):
        got = ks.matmul(a, b)
        assert type(got) is torch.Tensor and got.dtype == a.dtype and got.device == a.device
        assert torch.equal(got.double(), a.double() @ b.double())
        assert ks.matmul(a, b, bias=bias, c=c, beta=2.0, activation="relu", out=out) is out
        assert torch.equal(out.double(), want)
    assert torch.equal(ks.matmul(b.mT, a.mT).double(), (a.double() @ b.double()).mT)


def test_a_tensor_on_the_cpu_or_with_a_gradient_is_refused(torch):
    a, b = tensor(torch, 13, 7), tensor(torch, 7, 11)
    with pytest.raises(ArrayError, match="b is in host memory"):
        ks.matmul(a, b.cpu())
    a.requires_grad_()
    with pytest.raises(ArrayError, match="requires a gradient"):
        ks.matmul(a, b)
    with torch.no_grad():
        assert torch.equal(ks.matmul(a, b), a @ b)
    with pytest.raises(ArrayError, match="requires a gradient"):
        ks.matmul(a, b)  # a call like the last one, but for the gradient
    assert torch.equal(ks.matmul(a.detach(), b), (a @ b).detach())


def test_tensors_run_on_the_current_stream_of_pytorch_and_in_its_graphs(torch):
    a, b = tensor(torch, 64, 32), tensor(torch, 32, 96, seed=1)
    out = torch.zeros(64, 96, device="cuda")
    ks.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = ks.matmul(a, b)
        ks.matmul(a, b, out=out)
    for seed in (2, 3):
        a.copy_(tensor(torch, 64, 32, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, a @ b) and torch.equal(new, a @ b)
