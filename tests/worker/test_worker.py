"""A worker runs kernels, survives them, says what went wrong, and never outlives its host."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernsearch.errors import Rejected
from kernsearch.worker import Arena, Launch, Layout, Worker


class Vector:
    """A float32 vector in a worker's arena, and kernels on it."""

    def __init__(self, worker: Worker, built: Path, length: int = 100):
        self.worker, self.built, self.length = worker, built, length
        self.layout = Layout(worker.arena, 0)
        self.layout.add("x", "output", np.dtype("f4"), (length,))
        self.layout.commit()
        self.view = self.layout.view("x")
        self.view[:] = 0

    def run(self, entry: str, value: float = 1.0, *, sizes: tuple[int, ...] | None = None, **options):
        offset = self.layout.slots["x"].offset
        launch = Launch(str(self.built), entry, (offset,), (self.length,) if sizes is None else sizes, (value,))
        return self.worker.run([launch], **options)

    def still_works(self) -> bool:
        before = self.view.copy()
        self.run("add", 2.0)
        return bool((self.view == before + 2.0).all())


@pytest.fixture
def vector(worker: Worker, built: Path) -> Vector:
    return Vector(worker, built)


BAD = {
    "segfault": "segmentation fault",
    "stop_short": r"abort\(\)",
    "leave": r"ended the process: exit\(0\)",
    "close_all": "closed file descriptors that are not its own",
    "write_all": "wrote into the worker's pipe",
    "forge_length": "wrote into the worker's pipe",
    "eat_memory": "used more than 100 MB of memory",
    "missing": "no function 'missing'",
    "divide": "arithmetic fault",
}


@pytest.mark.parametrize("entry", sorted(BAD))
def test_a_bad_kernel_is_named_and_the_next_one_is_unharmed(vector: Vector, entry: str) -> None:
    if entry == "divide" and platform.machine() != "x86_64":
        pytest.skip("whole division by zero does not trap here")
    assert vector.still_works()
    with pytest.raises(Rejected, match=BAD[entry]) as caught:
        vector.run(entry, sizes=(vector.length, 0))
    assert caught.value.gate == "execution"
    assert vector.still_works()


def test_a_kernel_that_never_returns_is_killed_at_its_deadline(vector: Vector) -> None:
    with pytest.raises(Rejected, match=r"still running after 0\.2 s"):
        vector.run("hang", timeout_s=0.2)
    assert vector.still_works()


def test_no_process_that_a_kernel_starts_outlives_it(vector: Vector) -> None:
    with pytest.raises(Rejected, match="started another process"):
        vector.run("breed")
    with pytest.raises(ProcessLookupError):
        os.kill(int(vector.view[0]), 0)
    assert vector.still_works()


def test_closed_standard_streams_are_no_trouble(built: Path, tmp_path: Path) -> None:
    code = f"""if True:
        import os, sys
        for stream in range(3):
            os.close(stream)
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_worker import Vector, Worker
        with Worker() as worker:
            Path("said").write_text(str(Vector(worker, Path({str(built)!r})).still_works()))
    """
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60, check=False)
    assert (tmp_path / "said").read_text() == "True"


def test_the_deadline_is_for_one_repeat_and_not_for_all_of_them(vector: Vector) -> None:
    timing = vector.run("nap_briefly", sizes=(100_000,), repeat=8, timeout_s=0.4)
    assert len(timing.seconds) == 8


def test_memory_that_empties_the_caches_is_not_counted_as_the_kernels(built: Path) -> None:
    with Worker(memory_limit_bytes=64 << 20) as worker:
        vector = Vector(worker, built)
        vector.run("add", flush_bytes=128 << 20)
        assert vector.still_works()


def test_what_kernels_print_goes_nowhere(vector: Vector, capfd: pytest.CaptureFixture[str]) -> None:
    vector.run("talk")
    assert vector.still_works()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a bit of x86")
def test_a_kernel_that_leaves_another_floating_point_mode_is_refused(vector: Vector) -> None:
    with pytest.raises(Rejected, match="floating-point mode: flushes subnormals to zero"):
        vector.run("flush_subnormals")
    assert vector.still_works()


def test_a_kernel_cannot_cut_the_arena_from_under_the_host(vector: Vector) -> None:
    vector.view[:] = 5
    vector.run("cut_arena")
    assert (vector.view == 5).all()


def test_a_file_that_is_no_object_cannot_be_loaded(vector: Vector, tmp_path: Path) -> None:
    (tmp_path / "bad.so").write_bytes(b"not an object")
    with pytest.raises(Rejected, match="cannot be loaded"):
        vector.worker.run([Launch(str(tmp_path / "bad.so"), "add", (), (), ())])
    with pytest.raises(Rejected, match="cannot be loaded: No such file"):
        vector.worker.run([Launch(str(tmp_path / "none.so"), "add", (), (), ())])
    assert vector.still_works()


def test_every_repeat_is_timed_on_all_clocks(vector: Vector) -> None:
    timing = vector.run("add", repeat=5, flush_bytes=1 << 20)
    for clock in (timing.seconds, timing.cpu_seconds, timing.thread_seconds, timing.wait_seconds):
        assert len(clock) == 5
    assert min(timing.seconds) > 0
    assert min(timing.cpu_seconds + timing.thread_seconds + timing.wait_seconds) >= 0
    assert (vector.view == 5).all()


def test_launches_of_one_run_go_in_order(worker: Worker, built: Path) -> None:
    layout = Layout(worker.arena, 0)
    for name in "xy":
        layout.add(name, "output", np.dtype("f4"), (3,))
    layout.commit()
    x, y = (layout.slots[name].offset for name in "xy")
    layout.view("x")[:], layout.view("y")[:] = 1, 10
    worker.run([Launch(str(built), "add", (y,), (3,), (5.0,)), Launch(str(built), "add_second", (x, y), (3,), ())])
    assert layout.view("x").tolist() == [16, 16, 16]


def test_the_arena_may_grow_between_runs_without_a_new_child(vector: Vector) -> None:
    vector.run("add")
    pid = vector.worker.pid
    larger = Vector(vector.worker, vector.built, 1 << 20)
    larger.run("add", 3.0)
    assert (larger.view == 3).all()
    assert vector.worker.pid == pid


def test_another_arena_may_be_attached(vector: Vector) -> None:
    vector.run("add")
    vector.worker.attach(Arena())
    assert Vector(vector.worker, vector.built).still_works()


def test_an_object_rebuilt_under_the_same_path_is_loaded_anew(vector: Vector, tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(vector.built.read_bytes())
    launch = Launch(str(path), "add", (vector.layout.slots["x"].offset,), (vector.length,), (1.0,))
    vector.worker.run([launch])
    pid = vector.worker.pid
    path.unlink()
    path.write_bytes(vector.built.read_bytes() + b"\0")
    vector.worker.run([launch])
    assert vector.worker.pid != pid
    assert (vector.view == 2).all()


def test_closing_a_worker_leaves_no_child(vector: Vector) -> None:
    vector.run("add")
    pid = vector.worker.pid
    vector.worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_is_refused_in_a_fork_of_its_owner(vector: Vector) -> None:
    vector.run("add")
    pid = os.fork()
    if pid == 0:
        try:
            vector.run("add")
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert vector.still_works()


def test_threads_of_the_host_may_share_a_worker(vector: Vector) -> None:
    threads = [threading.Thread(target=lambda: [vector.run("add") for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (vector.view == 80).all()


HOST = """
import sys, threading
import numpy as np
from kernsearch.worker import Launch, Worker
worker = Worker(run_timeout_s=100)
worker.run([])
print(worker.pid, flush=True)
run = lambda: worker.run([Launch(sys.argv[1], "hang", (), (), ())])
if sys.argv[2] == "busy":
    run()
else:
    sys.stdin.read()
"""
THREADED = HOST.replace("worker.run([])", "t = threading.Thread(target=worker.run, args=([],)); t.start(); t.join()")


@pytest.mark.parametrize("state", ["busy", "idle"])
@pytest.mark.parametrize("program", [HOST, THREADED], ids=["main thread", "other thread"])
def test_the_child_dies_with_its_host_even_by_a_kill(built: Path, state: str, program: str) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", program, str(built), state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None and host.stdin is not None
    child = int(host.stdout.readline())
    host.send_signal(signal.SIGKILL)
    host.wait()
    end = time.monotonic() + 20
    while _alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return not re.search(r"State:\s+[ZX]", status)
