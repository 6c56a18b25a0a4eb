import ctypes
import json
import multiprocessing
import re

import pytest

from kernsearch import backends
from kernsearch.backends import objects
from kernsearch.backends.cpu import toolchain
from kernsearch.errors import CacheError, CompilerError, Rejected

ANSWER = """\
#include "ks_generated.h"
#include "kernsearch.h"
int run(void) { return KS_X KS_MORE; }
"""
MORE = "#define KS_MORE + 100\n"
BACKEND = backends.get("cpu")


def answer(compiled) -> int:
    return getattr(ctypes.CDLL(str(compiled.path)), compiled.entry)()


def refused(plan, cpu, **options) -> str:
    with pytest.raises(Rejected) as refusal:
        BACKEND.compile(plan, cpu, **options)
    assert refusal.value.gate == "compile" and "\n" not in refusal.value.reason
    return refusal.value.reason


def test_a_plan_becomes_an_object_that_can_be_called(kernel_of, cpu):
    compiled = BACKEND.compile(kernel_of(ANSWER, header=MORE, X=3), cpu)
    assert answer(compiled) == 103
    assert not compiled.cached and compiled.seconds > 0
    assert compiled.evidence["object_bytes"] == compiled.path.stat().st_size


def test_the_second_time_it_comes_from_the_cache(kernel_of, cpu, home):
    first = BACKEND.compile(kernel_of(ANSWER, header=MORE, X=3), cpu)
    again = BACKEND.compile(kernel_of(ANSWER.replace("return", "/* why */ return"), header=MORE + "// x\n", X=3), cpu)
    assert again.cached and (again.path, again.evidence, again.seconds) == (first.path, first.evidence, first.seconds)
    assert first.path.parent == home / "objects"


def test_whatever_the_object_depends_on_is_in_its_key(kernel_of, cpu, home):
    def path(text=ANSWER, **change):
        return BACKEND.compile(kernel_of(text, **{"header": MORE, "X": 3, **change}), cpu).path

    paths = [
        path(),
        path(X=4),
        path(X=3, Y=1),
        path(header="#define KS_MORE + 101\n"),
        path(flags=("-O1",)),
        path(ANSWER.replace("KS_X", "1 + KS_X")),
    ]
    assert len(set(paths)) == len(paths)


def test_two_compilers_never_share_an_object(kernel_of, cpu, monkeypatch):
    plan = kernel_of(ANSWER, header=MORE, X=3)
    plain = BACKEND.compile(plan, cpu)
    monkeypatch.setenv("KERNSEARCH_CC", " ".join([*toolchain.find(cpu).command, "-DOTHER"]))
    assert BACKEND.compile(plan, cpu).path != plain.path


@pytest.mark.parametrize("damage", ["cut", "garbage", "no object", "no digest", "bad digest"])
def test_a_damaged_object_is_compiled_again(kernel_of, cpu, home, damage):
    plan = kernel_of(ANSWER, header=MORE, X=3)
    path = BACKEND.compile(plan, cpu).path
    data, digest = path.read_bytes(), path.with_suffix(".json")
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "garbage":
        path.write_bytes(b"\0" * len(data))
    elif damage == "no object":
        path.unlink()
    elif damage == "no digest":
        digest.unlink()
    else:
        digest.write_text(digest.read_text()[:-9])
    again = BACKEND.compile(plan, cpu)
    assert not again.cached and answer(again) == 103
    assert BACKEND.compile(plan, cpu).cached


def test_objects_hold_no_folder_of_the_machine_that_made_them(kernel_of, cpu):
    header = "#define KS_MORE\nconst char *header(void) { return __FILE__; }\n"
    data = BACKEND.compile(kernel_of(ANSWER, header=header, X=3), cpu).path.read_bytes()
    assert b"ks_generated.h" in data and b"kernsearch-cc-" not in data


def test_the_facts_of_the_device_reach_the_source(kernel_of, cpu):
    text = (
        "int run(void) { return KS_VECTOR_BYTES + KS_VECTOR_REGISTERS + KS_L1_BYTES + KS_L2_BYTES + KS_LINE_BYTES; }\n"
    )
    want = cpu.vector_bytes + cpu.vector_registers + cpu.l1d_bytes + cpu.l2_bytes + cpu.line_bytes
    assert answer(BACKEND.compile(kernel_of(text), cpu)) == want


def test_a_refusal_is_the_first_complaint_without_folders(kernel_of, cpu, tmp_path):
    reason = refused(kernel_of("int run(void) { return 1 }\n"), cpu)
    assert re.match(r"idea\.c:1:\d+: error: ", reason) and str(tmp_path) not in reason


def test_a_static_assertion_speaks_for_itself(kernel_of, cpu):
    text = '_Static_assert(KS_X <= 8, "tile has too many rows");\nint run(void) { return 0; }\n'
    assert "tile has too many rows" in refused(kernel_of(text, X=9), cpu)


def test_an_object_without_the_entry_is_refused(kernel_of, cpu):
    assert refused(kernel_of("int other(void) { return 0; }\n"), cpu) == "the source defines no function 'run'"
    assert "'run'" in refused(kernel_of("static int run(void) { return 0; }\n"), cpu)


def test_a_source_that_is_not_there_is_refused(kernel_of, cpu, tmp_path):
    plan = kernel_of(ANSWER)
    (tmp_path / "idea.c").unlink()
    assert "cannot be read" in refused(plan, cpu)


def test_a_compile_that_never_ends_is_stopped_and_the_limit_named(kernel_of, cpu, compilers_below):
    grow = "".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 30))
    reason = refused(kernel_of(f"#define A0 ;\n{grow}void run(void) {{ A29 }}\n"), cpu, timeout_s=0.5)
    assert reason == "the compiler took more than 0.5 s"
    assert compilers_below() == []


def test_warnings_are_counted(kernel_of, cpu):
    evidence = BACKEND.compile(kernel_of("int run(void) { int unused; return 0; }\n"), cpu).evidence
    assert evidence["warnings"] == 1


def test_subnormals_and_nan_survive_the_flags(kernel_of, cpu):
    text = """
    #include <math.h>
    int run(void) {
        volatile float tiny = 1e-40f, zero = 0.0f;
        float nan = zero / zero;
        return (tiny * 0.5f > 0.0f) + 2 * isnan(nan) + 4 * (nan != nan) + 8 * isinf(1.0f / zero);
    }
    """
    assert answer(BACKEND.compile(kernel_of(text), cpu)) == 15


def many(kernel_of, tmp_path):
    plans = []
    for n in range(6):
        plan = kernel_of("int run(void) { return KS_X" + (" + }" if n == 2 else "; }"), X=n)
        path = tmp_path / f"idea{n}.c"
        (tmp_path / "idea.c").rename(path)
        plans.append(type(plan)(**{f: getattr(plan, f) for f in plan.__struct_fields__} | {"source": str(path)}))
    return plans


def test_many_are_compiled_and_one_refusal_harms_no_other(kernel_of, cpu, tmp_path):
    outcomes = dict(BACKEND.compile_many(many(kernel_of, tmp_path), cpu, jobs=3))
    assert sorted(outcomes) == list(range(6))
    assert isinstance(outcomes[2], Rejected) and outcomes[2].gate == "compile"
    assert [answer(outcomes[n]) for n in (0, 1, 3, 4, 5)] == [0, 1, 3, 4, 5]


def test_nothing_to_compile_yields_nothing(cpu):
    assert list(BACKEND.compile_many([], cpu, jobs=2)) == []


def test_leaving_early_kills_the_rest(kernel_of, cpu, compilers_below, tmp_path):
    grow = "".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 30))
    quick, *_ = many(kernel_of, tmp_path)
    endless = kernel_of(f"#define A0 ;\n{grow}void run(void) {{ A29 }}\n")
    outcomes = BACKEND.compile_many([quick, endless, endless], cpu, jobs=2, timeout_s=500)
    index, _ = next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert index == 0 and compilers_below() == []


def compile_one(plan, cpu, barrier, results):
    barrier.wait()
    results.put(answer(BACKEND.compile(plan, cpu)))


def test_processes_may_compile_the_same_kernel_at_once(kernel_of, cpu, home):
    plan = kernel_of(ANSWER, header=MORE, X=7)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=compile_one, args=(plan, cpu, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [107] * 4
    for process in processes:
        process.join(20)
    assert sorted(path.suffix for path in (home / "objects").iterdir()) == [".json", ".so"]


def test_a_cache_that_cannot_be_written_is_one_line(kernel_of, cpu, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="KERNSEARCH_CACHE"):
        BACKEND.compile(kernel_of(ANSWER, header=MORE, X=3), cpu)


def test_an_objects_folder_that_is_none_is_one_line(kernel_of, cpu, home):
    home.mkdir(parents=True)
    (home / "objects").write_text("")
    with pytest.raises(CacheError, match="objects"):
        BACKEND.compile(kernel_of(ANSWER, header=MORE, X=3), cpu)


def test_with_no_compiler_many_fail_before_the_first(kernel_of, cpu, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CC", "nonesuch")
    with pytest.raises(CompilerError, match="nonesuch"):
        next(BACKEND.compile_many([kernel_of(ANSWER)], cpu, jobs=2))


def test_a_cached_object_is_vouched_for_by_its_digest(kernel_of, cpu, home):
    path = BACKEND.compile(kernel_of(ANSWER, header=MORE, X=3), cpu).path
    assert set(json.loads(path.with_suffix(".json").read_text())) == {"sha256", "seconds", "evidence"}
    assert objects.cached(path, "run") is not None
