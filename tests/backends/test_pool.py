import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernsearch.backends.cpu import compiler, device, pool
from kernsearch.errors import DeviceError

TASKS = Path(__file__).with_name("pool_tasks.c")


class Call(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("scalars", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    ]


class Tasks:
    """The kernels of pool_tasks.c on the pool of this process."""

    def __init__(self, library: ctypes.CDLL, ours: pool.Pool):
        self.library, self.pool = library, ours

    def call(self, count: int, threads: int, *buffers: ctypes.Array) -> Call:
        addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, buffers))
        sizes = (ctypes.c_int64 * 1)(count)
        return Call(addresses, sizes, None, threads, self.pool.function, self.pool.handle)

    def run(self, name: str, count: int, threads: int, *buffers: ctypes.Array) -> None:
        getattr(self.library, name)(ctypes.byref(self.call(count, threads, *buffers)))

    def counted(self, name: str, count: int, threads: int, length: int | None = None) -> bool:
        """Every counter is one after the run."""
        seen = (ctypes.c_int64 * max(1, length or count))()
        self.run(name, count, threads, seen, seen)
        return list(seen)[: length or count] == [1] * (length or count)

    def met(self, threads: int) -> set[int]:
        """The threads that ran tasks which wait for each other."""
        arrived, who = (ctypes.c_int64 * 1)(), (ctypes.c_int64 * threads)()
        self.run("meet", threads, threads, arrived, who)
        return set(who)

    def crowd(self, count: int, threads: int) -> int:
        seen, most = (ctypes.c_int64 * count)(), (ctypes.c_int64 * 1)()
        self.run("crowd", count, threads, seen, most)
        assert list(seen) == [1] * count
        return most[0]


@pytest.fixture
def tasks(cpu, own_settings):
    compiled = compiler.build(str(TASKS), "count", cpu, name="pool_tasks")
    ours = pool.get_pool()
    before = pool.get_threads()
    pool.set_threads(4)
    yield Tasks(ctypes.CDLL(str(compiled.path)), ours)
    pool.set_threads(before)


def wait_for(process: int, seconds: float = 30.0) -> int:
    """The exit code of a child; kills it and fails when it does not end."""
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 64, 1001, 100_000])
def test_every_task_runs_once(tasks, count, threads):
    assert tasks.counted("count", count, threads)


@pytest.mark.parametrize("threads", [2, 4])
def test_tasks_that_wait_for_each_other_run_on_as_many_threads(tasks, threads):
    assert len(tasks.met(threads)) == threads


def test_the_caller_works_too(tasks):
    assert threading.get_native_id() in tasks.met(2)


def test_one_thread_is_the_caller(tasks):
    pool.set_threads(1)
    assert tasks.crowd(50, 8) == 1
    assert tasks.met(1) == {threading.get_native_id()}


def test_the_limit_may_change_between_calls_in_both_directions(tasks):
    for limit in (3, 1, 6, 2, 4):
        pool.set_threads(limit)
        assert pool.get_threads() == limit
        assert tasks.crowd(200, 100) <= limit
        assert len(tasks.met(limit)) == limit


def test_a_call_may_ask_for_fewer_threads_than_the_limit(tasks):
    tasks.met(4)
    assert tasks.crowd(200, 2) <= 2


def test_a_task_may_run_tasks(tasks):
    assert tasks.counted("nested", 20, 3, length=400)


def test_many_callers_at_once_all_get_their_work_done(tasks):
    wrong = []

    def call(seed: int) -> None:
        for n in range(300):
            name, count = ("nested", 5) if (n + seed) % 7 == 0 else ("count", (n * seed) % 67)
            if not tasks.counted(name, count, 1 + (n + seed) % 5, length=25 if name == "nested" else None):
                wrong.append((seed, n))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(1, 9)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert wrong == [] and not any(caller.is_alive() for caller in callers)


def test_thousands_of_short_jobs_lose_none(tasks):
    assert all(tasks.counted("count", n % 9, 2 + n % 3) for n in range(5000))


def test_a_forked_child_has_a_pool_of_its_own(tasks):
    tasks.met(3)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(tasks.met(3)) == 3 and tasks.counted("count", 100, 3) else 1)
    assert wait_for(child) == 0
    assert len(tasks.met(3)) == 3


def test_a_fork_while_other_threads_use_the_pool_is_safe(tasks):
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            tasks.counted("count", 40, 3)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        codes = []
        for _ in range(15):
            child = os.fork()
            if child == 0:
                os._exit(0 if len(tasks.met(2)) == 2 else 1)
            codes.append(wait_for(child))
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert codes == [0] * 15


def test_daemonic_processes_may_use_the_pool(tasks):
    process = multiprocessing.get_context("fork").Process(target=tasks.met, args=(2,), daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode == 0


def test_the_caller_keeps_its_affinity_and_its_signals(tasks):
    before = os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    tasks.met(3)
    assert before == (os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_the_threads_leave_signals_to_others_and_are_not_pinned(tasks):
    for thread in tasks.met(3) - {threading.get_native_id()}:
        status = Path(f"/proc/self/task/{thread}/status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))
        assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)


@pytest.mark.parametrize("threads", [1, 4])
def test_subnormals_are_kept_and_the_mode_of_the_caller_is_restored(tasks, threads):
    tiny = (ctypes.c_float * 64)(*[1e-39] * 64)
    call = tasks.call(64, threads, tiny)
    kernels, calls = (ctypes.c_void_p * 1)(), (ctypes.c_void_p * 1)(ctypes.addressof(call))
    kernels[0] = ctypes.cast(tasks.library.halve, ctypes.c_void_p).value
    launch = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(tasks.pool.launch)
    tasks.library.flush_subnormals(1)
    try:
        launch(1, ctypes.addressof(kernels), ctypes.addressof(calls))
        assert tasks.library.flush_subnormals(1) == 1
    finally:
        tasks.library.flush_subnormals(0)
    assert all(0 < x < 1e-39 for x in tiny)


def test_kernels_are_launched_in_order(tasks):
    numbers = (ctypes.c_float * 8)(*[8.0] * 8)
    many = [tasks.call(8, 2, numbers) for _ in range(3)]
    calls = (ctypes.c_void_p * 3)(*map(ctypes.addressof, many))
    kernels = (ctypes.c_void_p * 3)(*[ctypes.cast(tasks.library.halve, ctypes.c_void_p).value] * 3)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(tasks.pool.launch)(
        3, ctypes.addressof(kernels), ctypes.addressof(calls)
    )
    assert list(numbers) == [1.0] * 8


def test_rousing_returns_whether_or_not_threads_can_be_had(tasks):
    for threads in (0, 1, 2, 500):
        tasks.pool.rouse(threads)
    assert tasks.counted("count", 10, 2)


def test_a_process_ends_cleanly_while_its_threads_sleep():
    code = "from kernsearch.backends.cpu import pool; pool.set_threads(3); pool.get_pool().rouse(3)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_thread_count_follows_the_settings_until_it_is_set(monkeypatch):
    monkeypatch.setattr(pool, "_threads", None)
    assert pool.get_threads() == device.usable_cores()
    monkeypatch.setenv("KERNSEARCH_THREADS", "3")
    assert pool.get_threads() == 3


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, "2", None, pool.MAX_THREADS + 1])
def test_a_thread_count_that_is_none_is_refused(threads):
    with pytest.raises(DeviceError, match="want a whole number from 1 to"):
        pool.set_threads(threads)


def test_with_every_thread_refused_the_caller_does_the_work():
    code = f"""if True:
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_pool import TASKS, Tasks, compiler, ctypes, device, pool
        library = ctypes.CDLL(str(compiler.build(str(TASKS), "count", device.this_device(), name="pool_tasks").path))
        tasks = Tasks(library, pool.get_pool())
        pool.set_threads(4)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), used + (4 << 20)))  # less than a stack
        sys.exit(0 if tasks.counted("count", 100, 4) and tasks.crowd(100, 4) == 1 else 1)
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
