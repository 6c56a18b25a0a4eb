"""Calls that a thread has made before go from Python's objects straight to the kernels, checked all the same."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

import kernsearch as ks
from kernsearch.backends.cpu import known
from kernsearch.errors import ArrayError
from kernsearch.runtime import plans


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        plans.forget()
        yield
    plans.forget()


@pytest.fixture(autouse=True)
def _forgetful():
    plans.forget()


def whole(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def told(a, b, *, bias=None, activation=None, alpha=1.0, beta=0.0, c=None, out=None):
    """What the thread's table makes of a call of `ks.matmul`."""
    return plans.memory.call(a, b, bias, c, out, activation, alpha, beta)


def learned(m: int = 6, k: int = 8, n: int = 4, **how):
    """Arrays with which `ks.matmul` has been called."""
    a, b = whole(m, k), whole(k, n, seed=1)
    ks.matmul(a, b, **how)
    return a, b


def test_a_call_is_known_from_the_second_time_on():
    a, b, out = whole(6, 8), whole(8, 4), np.zeros((6, 4), np.float32)
    assert told(a, b) is None and told(a, b, out=out) is None
    ks.matmul(a, b), ks.matmul(a, b, out=out)
    assert np.array_equal(told(a, b), a @ b)
    x, y = whole(6, 8, seed=5), whole(8, 4, seed=6)
    assert told(x, y, out=out) is out and np.array_equal(out, x @ y)


def test_a_plan_knows_its_calls():
    plan = ks.load("gemm", shape=(6, 4, 8), device="cpu")
    a, b, out = whole(6, 8), whole(8, 4), np.zeros((6, 4), np.float32)
    plan(a, b), plan(a, b, out=out)
    assert plans.memory.call(plan, a, b, out) is out
    assert np.array_equal(plans.memory.call(plan, a, b, None), a @ b)
    other = ks.load("gemm", shape=(6, 4, 8), device="cpu", policy="any")
    assert other is not plan and plans.memory.call(other, a, b, None) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:5], lambda a: a[:, ::-1], lambda a: a.astype(np.float64), lambda a: a.astype(">f4"),
        lambda a: a[None], lambda a: np.asfortranarray(a), lambda a: a.tolist(), lambda a: a.view(np.matrix),
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
)  # fmt: skip
def test_arrays_of_another_form_are_not_known(change):
    a, b = learned()
    assert told(a, b) is not None and told(change(a), b) is None


def test_an_array_that_changes_its_form_is_not_known():
    a, b = learned()
    a.shape = (4, 12)
    assert told(a, b) is None
    with pytest.raises(ArrayError, match="as many columns"):
        ks.matmul(a, b)


def test_arrays_that_lie_badly_go_the_long_way():
    a, b = learned(out=np.zeros((6, 4), np.float32))
    room = np.zeros(1024, np.uint8)
    askew = room[1 : 1 + 96].view(np.float32).reshape(6, 4)
    assert told(a, b, out=askew) is None
    closed = np.zeros((6, 4), np.float32)
    closed.flags.writeable = False
    assert told(a, b, out=closed) is None and not closed.any()
    memory = np.zeros(64, np.float32)
    x, out = memory[:48].reshape(6, 8), memory[40:].reshape(6, 4)
    assert told(x, b, out=out) is None, "the output begins where the input's last row lies"
    assert told(memory[:48].reshape(6, 8), b, out=np.zeros((6, 4), np.float32)) is not None


def test_an_output_may_touch_an_input_but_not_overlap_it():
    a, b = learned(out=np.zeros((6, 4), np.float32))
    memory = np.zeros(48 + 24, np.float32)
    memory[:48] = a.ravel()
    out = memory[48:].reshape(6, 4)
    assert told(memory[:48].reshape(6, 8), b, out=out) is out and np.array_equal(out, a @ b)


def test_c_may_be_the_output_and_nothing_else_of_it():
    a, b, c = whole(6, 8), whole(8, 4), whole(6, 4)
    want = a @ b + 2 * c
    ks.matmul(a, b, c=c.copy(), beta=2.0, out=np.zeros_like(c))
    same = c.copy()
    assert told(a, b, c=same, beta=2.0, out=same) is same and np.array_equal(same, want)
    memory = np.zeros(28, np.float32)
    assert told(a, b, c=memory[:24].reshape(6, 4), beta=2.0, out=memory[4:].reshape(6, 4)) is None


def test_scalars_are_those_of_each_call_and_zero_is_another_call():
    a, b, c = whole(6, 8), whole(8, 4), whole(6, 4)
    ks.matmul(a, b, c=c, alpha=2.0, beta=3.0)
    for alpha, beta in ((1.0, 1.0), (-2.0, 0.5), (3.0, -1.0)):
        assert np.array_equal(told(a, b, c=c, alpha=alpha, beta=beta), alpha * (a @ b) + beta * c)
    for beta in (0.0, -0.0):
        assert told(a, b, c=c, alpha=2.0, beta=beta) is None


def test_whole_numbers_are_made_floats_and_known():
    a, b = learned()
    assert np.array_equal(ks.matmul(a, b, alpha=1, beta=0), a @ b)
    assert told(a, b, alpha=1) is None


def test_an_epilogue_is_part_of_the_call():
    a, b, bias = whole(6, 8), whole(8, 4), whole(4)
    ks.matmul(a, b, bias=bias, activation="relu")
    assert np.array_equal(told(a, b, bias=bias, activation="relu"), np.maximum(a @ b + bias, 0))
    assert told(a, b, bias=bias) is None and told(a, b, activation="relu") is None
    assert told(a, b, bias=bias, activation="silu") is None


def test_everything_is_forgotten_together():
    a, b = learned()
    plans.forget()
    assert told(a, b) is None
    assert np.array_equal(ks.matmul(a, b), a @ b)


def test_the_table_starts_anew_when_it_is_full(monkeypatch):
    monkeypatch.setattr(known, "KEEP", 3)
    arrays = [whole(n, n) for n in range(1, 6)]
    for _ in range(2):
        for a in arrays:
            assert np.array_equal(ks.matmul(a, a), a @ a)
    assert sum(told(a, a) is not None for a in arrays) in range(1, 4)


def test_nothing_is_kept_of_the_arrays():
    a, b = learned(out=np.zeros((6, 4), np.float32))
    out = np.zeros((6, 4), np.float32)
    count = [sys.getrefcount(x) for x in (a, b, out, None)]
    for _ in range(1000):
        assert told(a, b, out=out) is out
        told(a, b)
    assert [sys.getrefcount(x) for x in (a, b, out)] == count[:3]
    assert abs(sys.getrefcount(None) - count[3]) < 100


def test_a_new_output_belongs_to_the_caller():
    a, b = learned()
    first, second = told(a, b), told(a, b)
    assert not np.may_share_memory(first, second) and sys.getrefcount(first) == 2


def test_a_table_is_its_threads_own():
    a, b = learned()
    found = []
    thread = threading.Thread(target=lambda: found.append(told(a, b)))
    thread.start()
    thread.join()
    assert found == [None]


def test_kernels_run_without_pythons_lock():
    """Another thread sees that this one is in a kernel."""
    a = np.ones((700, 700), np.float32)
    ks.matmul(a, a)
    inside, stop, seen = threading.Event(), threading.Event(), []

    def look() -> None:
        while not stop.is_set() and not seen:
            seen.extend([True] * inside.is_set())

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(20):
        inside.set()
        assert told(a, a) is not None
        inside.clear()
    stop.set()
    thread.join()
    assert seen


def test_objects_that_lie_otherwise_are_not_read(monkeypatch):
    monkeypatch.setattr(known, "_as_read", lambda: False)
    known._library.cache_clear()
    try:
        a, b = learned()
        assert told(a, b) is None and np.array_equal(ks.matmul(a, b), a @ b)
    finally:
        known._library.cache_clear()


@pytest.mark.parametrize("field", ["data", "dimensions", "shape", "strides", "dtype", "flags"])
def test_a_field_elsewhere_is_noticed(monkeypatch, field):
    """Each field is probed: with its place taken by another of the same kind, nothing is read."""
    swaps = {"data": "base", "shape": "strides", "strides": "shape", "dtype": "base", "dimensions": "flags",
             "flags": "dimensions"}  # fmt: skip
    names = [name for name, _ in known._Array._fields_]
    kinds = dict(known._Array._fields_)
    other = swaps[field]
    order = [other if name == field else field if name == other else name for name in names]
    moved = type("Moved", (known.ctypes.Structure,), {"_fields_": [(n, kinds[n]) for n in order]})
    monkeypatch.setattr(known, "_Array", moved)
    assert known._as_read() is False
    gc.collect()
