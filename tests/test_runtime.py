"""Plans that are called: compiled once, from many threads, after forks, on arrays of any strides."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import handmade
import numpy as np
import pytest

import kernsearch as ks
from kernsearch import backends, registry, runtime
from kernsearch.errors import ArrayError, CompilerError, DeviceError, DtypeError, ProblemError, SpaceError
from kernsearch.records import lookup
from kernsearch.runtime import plans

DEVICE = backends.resolve("cpu")[1]
SHAPE = (13, 11, 7)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled objects are shared by the tests of this file, records are not."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def home(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sources; there are no records yet."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(cache))
    shutil.rmtree(cache / "records", ignore_errors=True)
    runtime.forget()
    yield tmp_path
    ks.set_threads(DEVICE.threads)


def keep(
    folder: Path, layout: str = "nn", dtype: str = "float32", shape: tuple[int, ...] = SHAPE, **how: object
) -> None:
    """Record a hand-written plan for a problem."""
    problem = registry.problem("gemm", shape, dtype, layout=layout)
    lookup.store().write(handmade.record(problem, handmade.plan(folder, dtype, layout, **how), DEVICE))


def operands(shape: tuple[int, ...] = SHAPE, dtype: str = "float32", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers, so that products are exact in any order."""
    rng = np.random.default_rng(seed)
    m, n, k = shape
    return rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)


def test_a_plan_computes(home):
    keep(home)
    plan = ks.load("gemm", shape=SHAPE)
    a, b = operands()
    assert plan.hit == "exact"
    assert np.array_equal(plan(a, b), a @ b)
    out = np.full((13, 11), np.nan, np.float32)
    assert plan(a, b, out=out) is out
    assert np.array_equal(out, a @ b)


@pytest.mark.parametrize("dtype", ["float32", "float64", np.float32, np.dtype("float64")])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_and_dtypes_have_plans_of_their_own(home, layout, dtype):
    name = np.dtype(dtype).name
    keep(home, layout, name)
    a, b = operands(dtype=name)
    given = (a.T.copy() if layout[0] == "t" else a, b.T.copy() if layout[1] == "t" else b)
    assert np.array_equal(ks.load("gemm", shape=SHAPE, layout=layout, dtype=dtype)(*given), a @ b)


def test_arrays_and_scalars_may_be_named(home):
    keep(home)
    plan = ks.load("gemm", shape=SHAPE)
    a, b = operands()
    assert np.array_equal(plan(b=b, A=a, alpha=2), 2 * (a @ b))
    assert np.array_equal(plan(a, b), a @ b)  # a scalar is of one call only


def test_what_does_not_fit_is_said_in_one_line(home):
    keep(home)
    plan = ks.load("gemm", shape=SHAPE)
    a, b = operands()
    read_only = np.zeros((13, 11), np.float32)
    read_only.flags.writeable = False
    for error, match, arrays, named in [
        (ArrayError, "A has shape", (b, a), {}),
        (ArrayError, "B is missing", (a,), {}),
        (ArrayError, "3 arrays: want A, B", (a, b, a), {}),
        (ArrayError, "'bias'", (a, b), {"bias": a}),
        (ArrayError, "'a'", (a, b), {"a": a}),
        (DtypeError, "A is float64: want float32", (a.astype("float64"), b), {}),
        (DtypeError, "B is int32", (a, b.astype("int32")), {}),
        (ArrayError, "D has shape", (a, b), {"out": np.zeros((13, 12), np.float32)}),
        (ArrayError, "read-only", (a, b), {"out": read_only}),
    ]:
        with pytest.raises(error, match=match) as told:
            plan(*arrays, **named)
        assert "\n" not in str(told.value)


def test_a_request_that_cannot_be_met_is_said_in_one_line():
    for error, how in [
        (ProblemError, {"shape": (0, 1, 1)}), (ProblemError, {"shape": (1, 1)}), (ProblemError, {"dtype": "int8"}),
        (ProblemError, {"dtype": np.int8}), (ProblemError, {"layout": "xy"}), (ProblemError, {"epilogue": "sin"}),
        (ProblemError, {"causal": True}), (DeviceError, {"device": "tpu"}), (SpaceError, {"policy": "lax"}),
    ]:  # fmt: skip
        with pytest.raises(error) as told:
            ks.load("gemm", **{"shape": SHAPE, **how})
        assert "\n" not in str(told.value)


def strided(array: np.ndarray, kind: str) -> np.ndarray:
    """The same values in another arrangement."""
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "reversed":
        return array[::-1, ::-1].copy()[::-1, ::-1]
    if kind == "padded":
        return np.pad(array, ((2, 3), (5, 4)), constant_values=np.nan)[2:-3, 5:-4]
    if kind == "every other":
        return np.repeat(np.repeat(array, 2, 0), 3, 1)[::2, ::3]
    if kind == "byte-misaligned":
        room = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        room[...] = array
        return room
    if kind == "odd strides":
        room = np.zeros((*array.shape, array.itemsize + 1), np.uint8)
        view = np.ndarray(array.shape, array.dtype, room, strides=room.strides[:2])
        view[...] = array
        return view
    if kind == "other byte order":
        return array.astype(array.dtype.newbyteorder())
    assert kind == "read-only"
    array = array.copy()
    array.flags.writeable = False
    return array


KINDS = (
    "fortran",
    "reversed",
    "padded",
    "every other",
    "byte-misaligned",
    "odd strides",
    "other byte order",
    "read-only",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("assumes", [(), ("B.n == 1", "D.n == 1", "A.k == 1")], ids=["any strides", "assuming"])
def test_arrays_may_have_any_strides(home, kind, assumes):
    keep(home, assumes=assumes)
    plan = ks.load("gemm", shape=SHAPE)
    a, b = operands()
    assert np.array_equal(plan(strided(a, kind), strided(b, kind)), a @ b)
    if kind != "read-only":
        out = strided(np.full((13, 11), np.nan, np.float32), kind)
        assert plan(a, b, out=out) is out
        assert np.array_equal(out, a @ b)


def test_writing_a_strided_output_leaves_its_surroundings_alone(home):
    keep(home)
    a, b = operands()
    room = np.full((15, 26), 7, np.float32)
    ks.load("gemm", shape=SHAPE)(a, b, out=room[1:-1, 2:24:2])
    assert np.array_equal(room[1:-1, 2:24:2], a @ b)
    room[1:-1, 2:24:2] = 7
    assert (room == 7).all()


def test_broadcast_inputs_are_taken_as_they_are(home):
    keep(home)
    a, b = operands()
    a = np.broadcast_to(a[:1], a.shape)
    assert np.array_equal(ks.load("gemm", shape=SHAPE)(a, b), a @ b)


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_an_output_that_overlaps_an_input_gets_the_right_values(home, shift):
    keep(home, shape=(8, 8, 8))
    a, b = operands((8, 8, 8))
    want = a @ b
    room = np.zeros(64 + shift, np.float32)
    inside, out = room[:64].reshape(8, 8), room[shift:].reshape(8, 8)
    inside[...] = a
    ks.load("gemm", shape=(8, 8, 8))(inside, b, out=out)
    assert np.array_equal(out, want)


def test_a_call_like_an_earlier_one_is_checked_all_the_same(home):
    keep(home, shape=(8, 8, 8))
    plan = ks.load("gemm", shape=(8, 8, 8))
    a, b = operands((8, 8, 8))
    want, out = a @ b, np.empty((8, 8), np.float32)
    for _ in range(2):
        np.testing.assert_allclose(plan(a, b, out=out), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(plan(a, b.copy(), out=a.copy()), want, rtol=1e-5, atol=1e-5)
    for mine, theirs in ((0, 0), (0, 3)):  # the output is the first operand, or overlaps it
        room = np.zeros((16, 8), np.float32)
        first, last = room[mine : mine + 8], room[theirs : theirs + 8]
        first[...] = a
        np.testing.assert_allclose(plan(first, b, out=last), want, rtol=1e-5, atol=1e-5)
    out.flags.writeable = False
    with pytest.raises(ArrayError, match="read-only"):
        plan(a, b, out=out)
    with pytest.raises(ArrayError, match="has shape"):
        plan(a[:4], b, out=np.empty((8, 8), np.float32))
    with pytest.raises(DtypeError):
        plan(a.astype(float), b, out=np.empty((8, 8), np.float32))
    with pytest.raises(ArrayError, match="missing"):
        plan(a, out=np.empty((8, 8), np.float32))


def test_values_between_kernels_and_scratch_are_provided(home):
    keep(home, two=True)
    plan = ks.load("gemm", shape=SHAPE)
    assert plan.workspace_bytes == 1024 + 13 * 11 * 4  # scratch of the first kernel, the value between both after it
    a, b = operands()
    for _ in range(3):
        assert np.array_equal(plan(a, b), a @ b)


def test_a_workspace_too_large_to_keep_is_given_back(home, monkeypatch):
    from kernsearch.backends.cpu import call

    monkeypatch.setattr(call, "KEEP_BYTES", 100)
    keep(home, two=True)
    a, b = operands()
    plan = ks.load("gemm", shape=SHAPE)
    before = call._scratch.block
    assert np.array_equal(plan(a, b), a @ b) and np.array_equal(plan(a, b), a @ b)
    assert call._scratch.block is before


def test_many_threads_share_a_plan_and_compile_it_once(home, monkeypatch):
    keep(home, two=True)
    plan = ks.load("gemm", shape=SHAPE)
    wrong, start = [], threading.Barrier(8)
    compiled, compile_ = [], runtime.CallPlan._function
    monkeypatch.setattr(
        runtime.CallPlan, "_function", lambda self, kernel: compiled.append(kernel) or compile_(self, kernel)
    )

    def work(seed: int) -> None:
        a, b = operands(seed=seed)
        start.wait()
        for _ in range(200):
            if not np.array_equal(plan(a, b), a @ b):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert compiled == list(plan.plan.kernels)


def _child(queue: multiprocessing.Queue) -> None:
    a, b = operands(seed=3)
    queue.put(bool(np.array_equal(ks.load("gemm", shape=SHAPE)(a, b), a @ b)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_daemonic_children_may_call(home, method, warm):
    keep(home, two=True)
    if warm:
        a, b = operands()
        ks.load("gemm", shape=SHAPE)(a, b)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,), daemon=True)
    child.start()
    assert queue.get(timeout=60)
    child.join()
    assert child.exitcode == 0


def test_a_fork_while_another_thread_loads_does_not_hang(home):
    keep(home)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with plans._lock:
        thread = threading.Thread(target=lambda: [context.Process(target=_child, args=(queue,), daemon=True).start()])
        thread.start()
        thread.join()
    assert queue.get(timeout=60)


def test_a_fork_while_another_thread_imports_does_not_hang(home):
    code = """if True:
        import os, signal, sys, threading
        import kernsearch as ks
        begun, go_on = threading.Event(), threading.Event()

        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "kernsearch.runtime.plans" and not begun.is_set():
                    begun.set()
                    go_on.wait(0.3)  # nobody sets it: the import takes its time, and the fork comes in the middle

        sys.meta_path.insert(0, Slow())
        thread = threading.Thread(target=lambda: ks.load)
        thread.start()
        begun.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            ks.load
            os._exit(0)
        thread.join()
        sys.exit(os.waitpid(child, 0)[1])
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_new_record_is_seen_at_once(home):
    keep(home, shape=(13, 11, 8))
    assert ks.load("gemm", shape=SHAPE).hit == "nearest"
    keep(home)
    assert ks.load("gemm", shape=SHAPE).hit == "exact"


def test_a_plan_is_loaded_once(home):
    keep(home)
    assert ks.load("gemm", shape=SHAPE) is ks.load("gemm", shape=list(SHAPE), dtype=np.float32, device="cpu")


def test_the_thread_count_is_settable(home):
    keep(home)
    a, b = operands()
    plan = ks.load("gemm", shape=SHAPE)
    for count in (1, 3, 2):
        ks.set_threads(count)
        assert ks.get_threads() == count
        assert np.array_equal(plan(a, b), a @ b)
    for count in (0, -1, 1.5, True, "2"):
        with pytest.raises(ProblemError, match="want a whole number"):
            ks.set_threads(count)


def test_why_says_what_load_does(home):
    told = runtime.why("gemm", shape=SHAPE)
    assert told["hit"] == ks.load("gemm", shape=SHAPE).hit
    assert told["hit"] in ("default", "nearest")  # some device has shipped records
    keep(home)
    told = runtime.why("gemm", shape=SHAPE)
    assert told["hit"] == "exact" and Path(told["record"]).is_file()
    json.dumps(told)


def test_without_any_compiler_the_first_call_names_what_to_install(home):
    keep(home)
    code = (
        "import numpy as np, kernsearch as ks\n"
        f"plan = ks.load('gemm', shape={SHAPE})\n"
        "assert plan.hit == 'compatible', plan.reasons\n"
        f"plan(np.zeros({SHAPE[0], SHAPE[2]}, 'f'), np.zeros({SHAPE[2], SHAPE[1]}, 'f'))\n"
    )
    nothing = {"PATH": "/nowhere", "KERNSEARCH_CACHE": os.environ["KERNSEARCH_CACHE"], "KERNSEARCH_CC": "/no/compiler"}
    told = subprocess.run([sys.executable, "-c", code], env=nothing, text=True, capture_output=True, check=False)
    assert told.returncode == 1
    assert "CompilerError" in told.stderr.splitlines()[-1]


def test_a_plan_that_does_not_compile_says_so(home):
    keep(home)
    home.joinpath("multiply.c").write_text(handmade.MULTIPLY + "int;;;x y z\n")
    from kernsearch.records import fingerprint

    fingerprint.source_tokens.cache_clear()
    keep(home)
    a, b = operands()
    with pytest.raises(CompilerError, match="does not compile"):
        ks.load("gemm", shape=SHAPE)(a, b)


@pytest.mark.parametrize(("hit", "layout"), [("exact", "nn"), ("default", "nt")])  # no record of nt is shipped
def test_loading_and_calling_import_nothing_heavy(home, hit, layout):
    if hit == "exact":
        keep(home)
    code = (
        "import sys, numpy as np, kernsearch as ks\n"
        f"plan = ks.load('gemm', shape={SHAPE}, layout={layout!r})\n"
        f"assert plan.hit == {hit!r}, plan.reasons\n"
        f"a, b = np.zeros({SHAPE[0], SHAPE[2]}, 'f'), np.zeros({SHAPE[2], SHAPE[1]}, 'f')\n"
        f"plan(a, b.T if {layout!r} == 'nt' else b)\n"
        "ks.matmul(np.zeros((3, 4), 'f'), np.zeros((4, 5), 'f'))\n"
        "print({'optuna', 'networkx', 'joblib', 'rich', 'click'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "set()"


def test_importing_the_package_is_light_and_its_names_are_there():
    code = (
        "import sys, kernsearch as ks\n"
        "assert not {'numpy', 'msgspec', 'optuna', 'networkx', 'joblib', 'rich', 'click'} & set(sys.modules)\n"
        "assert set(ks.__all__) <= set(dir(ks))\n"
        "import kernsearch.tune\n"
        "for name in ks.__all__: assert callable(getattr(ks, name)), name\n"
        "assert not hasattr(ks, 'nothing_of_this_name')\n"
        "from kernsearch import spaces, tune; assert callable(tune)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert told.returncode == 0, told.stderr
