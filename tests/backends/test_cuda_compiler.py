"""NVRTC for real, without a GPU: sources become cubins, or one line that says why not."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kernsearch import backends
from kernsearch.backends import objects
from kernsearch.backends.cuda import architectures, children, toolchain
from kernsearch.errors import CacheError, CompilerError, Rejected
from kernsearch.plan import KernelPlan, Launch

pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings")
BACKEND = backends.get("cuda")
HEADER = '#include "kernsearch.cuh"\nstruct ks_args { float *p_a; };\n'
IDEA = """\
#include "ks_generated.h"
extern "C" __global__ void __launch_bounds__(KS_T) idea(const __grid_constant__ ks_args x) {
    __shared__ float s[KS_T];
    s[threadIdx.x] = x.p_a[threadIdx.x] + KS_X;
    __syncthreads();
    x.p_a[threadIdx.x] = s[KS_T - 1 - threadIdx.x];
}
"""
# The preprocessor has 4^29 semicolons to write.
ENDLESS = "".join(["#define A0 ;\n"] + [f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 30)])
ENDLESS += 'extern "C" __global__ void idea(float *a) { A29 }\n'


@pytest.fixture
def hopper():
    return BACKEND.compile_only("sm_90a")


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., KernelPlan]:
    """A plan for CUDA text: plan_of(text, name="idea.cu", header=HEADER, launches=None, flags=(), X=3)."""

    def make(text=IDEA, *, name="idea.cu", header=HEADER, entry="idea", flags=(), launches=None, **defines):
        path = tmp_path / name
        path.write_text(text)
        defines = {"X": 3, "T": 128, **defines}
        if launches is None:
            launches = (Launch(entry, ("1", "1", "1"), str(defines["T"])),)
        return KernelPlan(
            "an idea", str(path), "", entry, header, defines, ("a",), ("M",), (), flags=flags, launches=launches
        )

    return make


def refused(plan, device, **options) -> str:
    with pytest.raises(Rejected) as refusal:
        BACKEND.compile(plan, device, **options)
    assert refusal.value.gate == "compile" and "\n" not in refusal.value.reason
    return refusal.value.reason


@pytest.mark.parametrize("arch", architectures.known())
def test_a_plan_becomes_a_cubin_of_every_architecture(plan_of, arch, home):
    compiled = BACKEND.compile(plan_of(), BACKEND.compile_only(arch))
    assert compiled.path.read_bytes()[:4] == b"\x7fELF" and compiled.path.parent == home / "objects"
    assert compiled.evidence["shared_bytes"] == 512 and compiled.evidence["barriers"] == 1
    assert compiled.evidence["entries"] == "idea" and compiled.evidence["warnings"] == ""
    assert compiled.evidence["object_bytes"] == compiled.path.stat().st_size


def test_the_second_time_it_comes_from_the_cache(plan_of, hopper, home):
    first = BACKEND.compile(plan_of(), hopper)
    again = BACKEND.compile(plan_of(IDEA.replace("s[threadIdx.x] =", "s[threadIdx.x] /* why */ ="), X=3), hopper)
    assert again.cached and (again.path, again.evidence, again.seconds) == (first.path, first.evidence, first.seconds)


def test_what_is_cached_starts_no_compiler(plan_of, hopper, home, monkeypatch):
    BACKEND.compile(plan_of(), hopper)
    monkeypatch.setattr(toolchain, "_known", {})
    monkeypatch.setattr(children, "_Child", None)
    children.close()
    assert BACKEND.compile(plan_of(), hopper).cached


def test_whatever_the_cubin_depends_on_is_in_its_key(plan_of, hopper, tmp_path, home):
    (tmp_path / "beside.cuh").write_text("#define KS_BESIDE 1\n")
    beside = IDEA.replace("#include", '#include "beside.cuh"\n#include', 1)

    def path(text=IDEA, device=hopper, **change):
        return BACKEND.compile(plan_of(text, **change), device).path

    paths = [
        path(),
        path(X=4),
        path(Y=1),
        path(header=HEADER + "#define KS_MORE 1\n"),
        path(flags=("--maxrregcount=32",)),
        path(IDEA.replace("+ KS_X", "- KS_X")),
        path(device=BACKEND.compile_only("sm_80")),
        path(beside),
    ]
    (tmp_path / "beside.cuh").write_text("#define KS_BESIDE 2\n")
    paths.append(path(beside))
    assert len(set(paths)) == len(paths)


def test_headers_are_found_beside_the_source_and_through_others(plan_of, hopper, tmp_path):
    (tmp_path / "first.cuh").write_text('#pragma once\n#include "second.cuh"\n')
    (tmp_path / "second.cuh").write_text("#pragma once\n#define KS_SECOND 2.0f\n")
    text = IDEA.replace("#include", '#include "first.cuh"\n#include', 1).replace("KS_X", "KS_SECOND")
    assert BACKEND.compile(plan_of(text), hopper).evidence["entries"] == "idea"


@pytest.mark.parametrize("damage", ["cut", "no digest"])
def test_a_damaged_cubin_is_compiled_again(plan_of, hopper, home, damage):
    path = BACKEND.compile(plan_of(), hopper).path
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-9])
    else:
        path.with_suffix(".json").unlink()
    assert not BACKEND.compile(plan_of(), hopper).cached
    assert BACKEND.compile(plan_of(), hopper).cached and objects.cached(path, "idea") is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IDEA.replace("KS_X;", "KS_X"), 'idea.cu:5: error: expected a ";"'),
        ('static_assert(KS_X > 8, "tile has too few rows");\n' + IDEA, "idea.cu:1: error: .*tile has too few rows"),
        ('#include "nowhere.cuh"\n' + IDEA, "idea.cu:1: error: .*nowhere.cuh"),
        ("#error not like this\n", "idea.cu:1: error: .*not like this"),
        (IDEA.replace('extern "C"', ""), "the source defines no kernel 'idea'"),
        (IDEA.replace("__syncthreads();", 'asm volatile("nonsense;");'), "ptxas: error: "),
    ],
)
def test_a_refusal_is_the_first_complaint_without_folders(plan_of, hopper, tmp_path, text, words):
    reason = refused(plan_of(text), hopper)
    assert re.match(words, reason), reason
    assert str(tmp_path) not in reason


def test_an_instruction_that_the_architecture_lacks_is_named(plan_of):
    text = IDEA.replace("__syncthreads();", 'asm volatile("wgmma.fence.sync.aligned;");')
    assert "wgmma.fence" in refused(plan_of(text), BACKEND.compile_only("sm_80"))
    assert "wgmma.fence" in refused(plan_of(text), BACKEND.compile_only("sm_90"))
    assert BACKEND.compile(plan_of(text), BACKEND.compile_only("sm_90a"))


def test_a_source_that_is_not_there_is_refused(plan_of, hopper, tmp_path):
    plan = plan_of()
    (tmp_path / "idea.cu").unlink()
    assert "cannot be read" in refused(plan, hopper)


def test_a_compile_that_never_ends_is_stopped_and_the_limit_named(plan_of, hopper):
    with pytest.raises(Rejected) as refusal:
        BACKEND.compile(plan_of(ENDLESS), hopper, timeout_s=0.5)
    assert refusal.value.reason == "the compiler took more than 0.5 s" and refusal.value.limit_s == 0.5
    assert BACKEND.compile(plan_of(), hopper)  # the next one gets a process of its own


def test_a_killed_compiler_is_not_the_fault_of_the_source(plan_of, hopper, home):
    BACKEND.compile(plan_of(), hopper)
    for child in list(children._all):
        os.kill(child.process.pid, signal.SIGKILL)
    assert not BACKEND.compile(plan_of(X=99), hopper).cached


def test_a_compiler_that_dies_at_its_work_is_replaced_once_and_then_the_source_is_refused(plan_of, hopper, until):
    killed: list[int] = []

    def kill() -> None:
        while len(killed) < 2:
            until(lambda: any(child.busy and child.process.pid not in killed for child in list(children._all)), "work")
            pid = next(c.process.pid for c in list(children._all) if c.busy and c.process.pid not in killed)
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    children.close()
    toolchain.find(hopper)
    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(Rejected, match="the compiler was ended by signal 9") as refusal:
        BACKEND.compile(plan_of(ENDLESS), hopper, timeout_s=60)
    thread.join()
    assert refusal.value.doubtful and len(set(killed)) == 2


def many(plan_of, count=5):
    return [plan_of(IDEA + ("oops" if n == 2 else ""), name=f"idea{n}.cu", X=n, T=64) for n in range(count)]


def test_many_are_compiled_and_one_refusal_harms_no_other(plan_of, hopper, home):
    outcomes = dict(BACKEND.compile_many(many(plan_of), hopper, jobs=2))
    assert sorted(outcomes) == [0, 1, 2, 3, 4]
    assert [index for index, outcome in outcomes.items() if isinstance(outcome, Rejected)] == [2]
    assert len({outcome.path for index, outcome in outcomes.items() if index != 2}) == 4
    assert not [path for path in (home / "objects").iterdir() if path.suffix not in (".cubin", ".json")]


def test_giving_up_kills_the_compilers_that_still_run(plan_of, hopper, home):
    slow = [plan_of(ENDLESS, name=f"slow{n}.cu", X=n) for n in range(3)]
    outcomes = BACKEND.compile_many([plan_of(), *slow], hopper, jobs=2, timeout_s=500)
    index, _ = next(outcomes)
    outcomes.close()
    assert index == 0 and not any(child.busy for child in children._all)


def test_none_are_compiled_at_once(hopper):
    assert list(BACKEND.compile_many([], hopper, jobs=2)) == []


def compile_one(plan, device, barrier, results):
    barrier.wait()
    results.put(BACKEND.compile(plan, device).evidence["entries"])


def test_processes_may_compile_the_same_kernel_at_once(plan_of, hopper, home):
    toolchain.find(hopper)  # a compiler of this process, which forked ones must leave alone
    plan, context = plan_of(), multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=compile_one, args=(plan, hopper, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=120) for _ in processes] == ["idea"] * 3
    for process in processes:
        process.join(30)
    assert sorted(path.suffix for path in (home / "objects").iterdir()) == [".cubin", ".json"]
    assert not BACKEND.compile(plan_of(X=77), hopper).cached


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None])
def test_no_compiler_outlives_its_parent(end, plan_of, tmp_path, until):
    plan_of(ENDLESS)
    code = f"""if True:
        from kernsearch import backends
        from kernsearch.backends.cuda import children
        from kernsearch.plan import KernelPlan
        backend = backends.get("cuda")
        device = backend.compile_only("sm_80")
        backend.toolchain(device)
        children.ask({{"name": "x.cu", "source": "", "headers": {{}}, "options": [], "want": "ptx"}}, timeout_s=60)
        print(*(child.process.pid for child in children._all), flush=True)
        if {end is not None}:
            plan = KernelPlan("t", {str(tmp_path / "idea.cu")!r}, "", "idea", "", {{}}, (), (), ())
            backend.compile(plan, device, timeout_s=500)
    """
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 1
        if end is not None:
            before = ticks(pids[0])
            until(lambda: ticks(pids[0]) > before + 20, "it compiles")
            parent.send_signal(end)
        parent.wait(60)
    until(lambda: not any(running(pid) for pid in pids), "the compiler is gone")


def ticks(pid: int) -> int:
    """Processor time that a process has used, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def running(pid: int) -> bool:
    try:
        return "compile_child" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_a_cache_that_cannot_be_written_is_one_line(plan_of, hopper, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="KERNSEARCH_CACHE"):
        BACKEND.compile(plan_of(), hopper)


def test_an_objects_folder_that_is_none_is_one_line(plan_of, hopper, home):
    home.mkdir(parents=True)
    (home / "objects").write_text("")
    with pytest.raises(CacheError, match="objects"):
        BACKEND.compile(plan_of(), hopper)


def test_the_toolchain_says_its_exact_version_and_flags(hopper, home):
    found = BACKEND.toolchain(hopper)
    assert found.name == "nvrtc" and found.version.count(".") == 2
    assert found.id.startswith(f"nvrtc {found.version} sm_90a -std=c++17 ")
    assert BACKEND.toolchain(BACKEND.compile_only("sm_80")).id != found.id


def test_a_damaged_memory_of_the_toolchain_is_only_forgotten(hopper, home, monkeypatch):
    found = toolchain.find(hopper)
    monkeypatch.setattr(toolchain, "_known", {})
    for memory in (home / "toolchains").iterdir():
        memory.write_text('{"name": "nv')
    assert toolchain.find(hopper) == found


def test_without_the_package_the_message_says_what_to_install(plan_of, hopper, home, monkeypatch):
    monkeypatch.setattr(toolchain, "_known", {})
    monkeypatch.setattr(toolchain, "installed", lambda module: False)
    for act in (lambda: BACKEND.compile(plan_of(), hopper), lambda: list(BACKEND.compile_many([], hopper, jobs=1))):
        with pytest.raises(CompilerError, match=r'pip install "kernsearch\[cuda1[23]\]"'):
            act()


def test_without_headers_the_message_says_what_to_install(hopper, home, monkeypatch):
    monkeypatch.setattr(toolchain, "_known", {})
    monkeypatch.setattr(toolchain, "_header_folders", lambda: [])
    with pytest.raises(CompilerError, match=r"cuda_fp16\.h"):
        toolchain.find(hopper)
