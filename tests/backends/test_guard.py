import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernsearch.backends.cpu import compile_child, guard
from kernsearch.errors import CacheError

FOREVER = "".join(["#define A0 ;\n"] + [f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 30)])
FOREVER += "void run(void) { A29 }\n"  # the preprocessor has 4^29 semicolons to write


def forever(folder) -> str:
    """Shell words of a process that never ends and can be found by a folder on its command line."""
    return f"sh -c 'while :; do sleep 1; done' {folder}"


def test_commands_run_in_order_until_one_fails(tmp_path):
    with guard.scratch() as folder:
        commands = [
            ["sh", "-c", "echo one >> log"],
            ["sh", "-c", "echo two >> log; exit 3"],
            ["sh", "-c", "echo no >> log"],
        ]
        report = guard.run(commands, folder, timeout_s=20)
        assert (folder / "log").read_text() == "one\ntwo\n"
    assert report.returncode == 3 and not report.timed_out
    assert not folder.exists()


def test_a_program_that_is_not_there_is_reported(tmp_path):
    report = guard.run([["/nonesuch/cc"]], tmp_path, timeout_s=20)
    assert report.returncode == 127 and "/nonesuch/cc: No such file" in report.stderr


def test_a_program_that_crashes_is_reported_with_its_signal(tmp_path):
    report = guard.run([["sh", "-c", "kill -SEGV $$"]], tmp_path, timeout_s=20)
    assert report.returncode == -signal.SIGSEGV


def test_at_the_time_limit_the_compiler_and_its_children_are_killed(tmp_path, compilers_below, until):
    hang = ["sh", "-c", f"{forever(tmp_path)} & {forever(tmp_path)}"]
    report = guard.run([hang], tmp_path, timeout_s=0.3)
    assert report.timed_out
    until(lambda: compilers_below() == [], "what was killed is gone")


def test_children_that_a_compiler_leaves_behind_are_killed(tmp_path, compilers_below, until):
    left = ["sh", "-c", f"{forever(tmp_path)} & exit 0"]
    assert guard.run([left], tmp_path, timeout_s=20).returncode == 0
    until(lambda: compilers_below() == [], "what was killed is gone")


def test_a_killed_guard_is_not_the_fault_of_the_source(tmp_path, compilers_below, until):
    waits = "echo >> started; while [ $(wc -l < started) -lt 2 ]; do sleep 0.01; done"  # until it is run again
    killed = []

    def kill():
        until(lambda: (tmp_path / "started").exists(), "the first try starts")
        killed.extend(guards := [pid for pid in compilers_below() if Path(f"/proc/{pid}/cwd").resolve() != tmp_path])
        os.kill(*guards, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    report = guard.run([["sh", "-c", waits]], tmp_path, timeout_s=60)
    thread.join()
    assert len(killed) == 1 and report.returncode == 0


def test_a_compile_that_fails_for_want_of_room_is_not_the_fault_of_the_source(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (guard.ROOM_BYTES // 2, hard))
    try:
        with pytest.raises(CacheError, match=f"temporary folder '{tmp_path.parent}': cannot be written"):
            guard.run([["sh", "-c", "exit 1"]], tmp_path, timeout_s=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert guard.run([["sh", "-c", "exit 1"]], tmp_path, timeout_s=20).returncode == 1


def test_messages_without_end_do_not_fill_memory(tmp_path):
    report = guard.run([["sh", "-c", "yes error | head -c 3000000; exit 1"]], tmp_path, timeout_s=20)
    assert report.returncode == 1 and len(report.stderr) <= compile_child.HEAD_BYTES


def test_a_compiler_that_wants_too_much_memory_is_refused_it(tmp_path):
    want = f"x = bytearray({guard.MEMORY_BYTES + (1 << 30)})"
    report = guard.run([[sys.executable, "-c", want]], tmp_path, timeout_s=20)
    assert report.returncode != 0 and "MemoryError" in report.stderr


def test_files_without_end_do_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "FILE_BYTES", 1 << 20)
    report = guard.run([["sh", "-c", "yes > big"]], tmp_path, timeout_s=20)
    assert report.returncode != 0 and (tmp_path / "big").stat().st_size <= 1 << 20


def test_giving_up_a_batch_kills_what_runs_and_starts_nothing_more(tmp_path, compilers_below, until):
    batch, outcomes = guard.Batch(), []

    def compile_for_ever():
        try:
            guard.run([["sh", "-c", forever(tmp_path)]], tmp_path / "scratch", timeout_s=100, batch=batch)
        except guard.Cancelled:
            outcomes.append("cancelled")

    (tmp_path / "scratch").mkdir()
    thread = threading.Thread(target=compile_for_ever)
    thread.start()
    until(lambda: len(compilers_below()) > 0, "the compiler starts")
    batch.cancel()
    thread.join(20)
    compile_for_ever()
    assert outcomes == ["cancelled"] * 2
    assert compilers_below() == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_no_compiler_outlives_a_killed_parent(end, tmp_path, compilers_below, until, cpu):
    (tmp_path / "for ever.c").write_text(FOREVER)
    code = f"""if True:
        from kernsearch import backends
        from kernsearch.plan import KernelPlan
        backend, device = backends.resolve("cpu")
        plan = KernelPlan("t", {str(tmp_path / "for ever.c")!r}, "", "run", "", {{}}, (), (), ())
        print("ready", flush=True)
        list(backend.compile_many([plan, plan], device, jobs=2, timeout_s=500))
    """
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    variables = {**os.environ, "TMPDIR": str(scratch)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        until(lambda: len(list(scratch.glob("*/messages"))) == 2, "both compilers start")
    finally:
        parent.send_signal(end)
        parent.wait(30)
    until(lambda: compilers_below() == [], "the compilers are gone")
    until(lambda: list(scratch.iterdir()) == [], "their scratch folders are gone")
