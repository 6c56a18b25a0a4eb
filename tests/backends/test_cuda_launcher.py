"""Launching on a GPU: arguments, workspace, streams, contexts, graphs, modules."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernsearch import backends, launch
from kernsearch.backends.cuda import arrays, driver
from kernsearch.backends.cuda.launcher import Launcher
from kernsearch.backends.cuda.modules import Module
from kernsearch.errors import ArrayError, DeviceError, Rejected
from kernsearch.launch import ArrayView
from kernsearch.plan import Buffer, KernelPlan, Operand, Plan
from kernsearch.plan import Launch as Geometry

pytestmark = pytest.mark.gpu

HEADER = """
struct ks_args { float *p_X, *p_P, *p_Y; char *scratch; long long e_n; double c_alpha; };
"""
SOURCE = """
#include "ks_generated.h"
extern "C" __global__ void scale(const __grid_constant__ ks_args x) {
    extern __shared__ float own[];
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    own[threadIdx.x] = float(x.c_alpha);
    if (i < x.e_n) x.p_P[i] = own[threadIdx.x] * x.p_X[i];
}
extern "C" __global__ void add_one(const __grid_constant__ ks_args x) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < x.e_n) x.p_Y[i] = x.p_P[i] + 1.0f, reinterpret_cast<float *>(x.scratch)[i] = x.p_P[i];
}
extern "C" __global__ void add_late(const __grid_constant__ ks_args x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < x.e_n) x.p_P[i] += 1.0f;
}
"""
SCALE = Geometry("scale", ("ceil(N, 256)", "1", "1"), "256", shared="100000")
ADD_ONE = Geometry("add_one", ("ceil(N, 256)", "1", "1"), "256")
ADD_LATE = Geometry("add_late", ("ceil(N, 256)", "1", "1"), "256", overlap=True)


@pytest.fixture(autouse=True)
def on_this_gpu(gpu):
    with arrays.xp().cuda.Device(gpu.index):
        yield


@pytest.fixture
def made(gpu, tmp_path):
    """made(*launches): (launcher, cubin, module) for arrays of 1000 elements; modules are closed afterwards."""
    opened = []

    def make(*launches, n=1000):
        source = tmp_path / "scale.cu"
        source.write_text(SOURCE)
        kernel = KernelPlan(
            "scale", str(source), "", "scale", HEADER, {}, ("X", "P", "Y", "scratch"), ("N",), ("alpha",),
            scratch="N * 4", launches=launches or (SCALE, ADD_ONE),
        )  # fmt: skip
        operands = (Operand("X", "float32", ("n",), ("N",), "input"), Operand("Y", "float32", ("n",), ("N",), "output"))
        plan = Plan("cuda", ("N",), operands, {"alpha": 1.0}, (Buffer("P", "float32", ("n",), ("N",)),), (kernel,))
        compiled = backends.get("cuda").compile(kernel, gpu, timeout_s=60)
        module = Module(compiled.path, gpu.index)
        opened.append(module)
        views = {name: ArrayView(0, (n,), (1,), 4) for name in "XY"}
        return Launcher(plan, launch.resolve(plan, views, threads=gpu.sms), [module], gpu), compiled.path, module

    yield make
    for module in opened:
        module.close()


def buffers(launcher, n=1000):
    x = np.random.default_rng(0).standard_normal(n).astype("float32")
    return x, arrays.from_host(x), arrays.empty((n,), "float32"), arrays.empty_bytes(launcher.workspace_bytes)


def test_launches_run_in_order_with_what_the_call_gives(made):
    launcher, *_ = made()
    x, there, out, room = buffers(launcher)
    for alpha in (2.0, -0.0, 3.0):
        launcher.run((there.data.ptr, out.data.ptr), (alpha,), arrays.current_stream(), room.ptr)
        np.testing.assert_array_equal(arrays.to_host(out), np.float32(alpha) * x + 1)
    again = arrays.empty((1000,), "float32")
    launcher.run((out.data.ptr, again.data.ptr), (1.0,), arrays.current_stream(), room.ptr)
    np.testing.assert_array_equal(arrays.to_host(again), 3 * x + 1 + 1)


def test_launches_that_overlap_wait_for_what_they_read(made):
    launcher, *_ = made(SCALE, *[ADD_LATE] * 20, ADD_ONE)
    _, there, out, room = buffers(launcher)
    launcher.run((there.data.ptr, out.data.ptr), (0.0,), arrays.current_stream(), room.ptr)
    np.testing.assert_array_equal(arrays.to_host(out), 21)


def test_a_call_whose_first_launch_overlaps_waits_for_the_calls_before(made):
    start, more, last = (made(launch)[0] for launch in (SCALE, ADD_LATE, ADD_ONE))
    _, there, out, room = buffers(start)
    for launcher in (start, *[more] * 20, last):
        launcher.run((there.data.ptr, out.data.ptr), (0.0,), arrays.current_stream(), room.ptr)
    np.testing.assert_array_equal(arrays.to_host(out), 21)


def test_a_missing_workspace_is_named(made):
    launcher, *_ = made()
    _, there, out, _ = buffers(launcher)
    with pytest.raises(DeviceError, match="workspace"):
        launcher.run((there.data.ptr, out.data.ptr), (2.0,), arrays.current_stream())


def test_a_call_can_be_captured_and_replayed(made):
    launcher, *_ = made()
    x, there, out, room = buffers(launcher)
    stream = arrays.xp().cuda.Stream(non_blocking=True)
    arrays.synchronize()
    with stream:
        assert not arrays.is_capturing(stream.ptr)
        stream.begin_capture()
        assert arrays.is_capturing(stream.ptr)
        launcher.run((there.data.ptr, out.data.ptr), (2.0,), arrays.current_stream(), room.ptr)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        arrays.synchronize(stream.ptr)
    np.testing.assert_array_equal(arrays.to_host(out), 2 * x + 1)


def test_a_thread_without_a_context_can_launch(made):
    launcher, *_ = made()
    x, there, out, room = buffers(launcher)
    arrays.synchronize()
    thread = threading.Thread(target=launcher.run, args=((there.data.ptr, out.data.ptr), (2.0,), 0, room.ptr))
    thread.start()
    thread.join()
    arrays.synchronize()
    np.testing.assert_array_equal(arrays.to_host(out), 2 * x + 1)


def test_a_size_of_zero_launches_nothing(made):
    launcher, *_ = made(n=0)
    launcher.run((0, 0), (2.0,), arrays.current_stream(), 256)
    arrays.synchronize()


def test_geometry_beyond_the_device_is_refused_when_it_is_bound(made):
    with pytest.raises(Rejected, match="shared memory"):
        made(Geometry("scale", ("1", "1", "1"), "256", shared="1 + N * 1000"))
    with pytest.raises(Rejected, match="along y"):
        made(Geometry("scale", ("1", "N * 100", "1"), "256"))


def test_an_entry_that_is_not_there_is_named(made):
    with pytest.raises((Rejected, driver.DriverError), match="no_such_kernel"):
        made(Geometry("no_such_kernel", ("1", "1", "1"), "256"))


def test_a_module_tells_registers_and_local_memory(made):
    *_, module = made()
    assert 0 < module.registers("scale") <= 255
    assert module.local_bytes("scale") == 0


def test_a_cubin_that_is_none_is_refused(gpu):
    with pytest.raises(driver.DriverError, match="load a kernel"):
        Module(b"nothing", gpu.index)


def test_memory_is_flat_over_many_modules(gpu, made):
    _, path, _ = made()
    image = path.read_bytes()
    free = arrays.xp().cuda.runtime.memGetInfo
    before = free()[0]
    for _ in range(300):
        with Module(image, gpu.index) as one:
            one.function("scale", shared=60000)
    assert before - free()[0] <= 8 << 20


def test_arrays_keep_their_dtype_on_the_way_to_a_gpu_and_back():
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        values = np.arange(12).reshape(3, 4).astype(arrays.dtype_of(dtype))
        there = arrays.from_host(values)
        assert arrays.view(there)[1:4] == ((3, 4), (4, 1), dtype)
        np.testing.assert_array_equal(arrays.to_host(there), values)
        np.testing.assert_array_equal(arrays.to_host(there.T), values.T)


def test_tensors_of_pytorch_are_seen_where_they_are():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.arange(12, device="cuda").reshape(3, 4).to(dtype).T
        seen = arrays.view(tensor)
        assert seen.pointer == tensor.data_ptr() and seen.shape == (4, 3) and seen.strides == (1, 4)
        array = arrays.from_any(tensor)
        assert array.data.ptr == seen.pointer and array.dtype.name == seen.dtype
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert arrays.current_stream(tensor) == stream.cuda_stream


def test_arrays_of_the_host_do_not_mix_with_those_of_a_gpu():
    there = arrays.empty((3,), "float32")
    with pytest.raises(ArrayError, match="array B is on the host, array A on a GPU"):
        arrays.common_device({"A": there, "B": np.zeros(3)})
    assert arrays.common_device({"A": there}) == there.device.id
