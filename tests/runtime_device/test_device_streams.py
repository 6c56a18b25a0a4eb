"""Streams, CUDA graphs and threads: where a call runs, and what of it is captured."""

from __future__ import annotations

import gc
import threading
from typing import Any

import device_defaults
import numpy as np
import pytest
from device_arrays import host, same, small

import kernsearch as ks
from kernsearch import runtime
from kernsearch.errors import DeviceError
from kernsearch.records import lookup

pytestmark = pytest.mark.gpu


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
