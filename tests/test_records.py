"""Records on disk, and which of them serves a problem."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import handmade
import msgspec
import pytest

from kernsearch import backends, records, registry
from kernsearch.errors import CacheError, SpaceError
from kernsearch.problem import Problem
from kernsearch.records import Measured, Record, fingerprint
from kernsearch.records import record as record_module
from kernsearch.records.lookup import NEAR, Store
from kernsearch.records.packing import pack

DEVICE = backends.resolve("cpu")[1]
OTHER = replace(DEVICE, name="another maker's", key="cpu-another-2t", arch="another")


ALL = [{}, {"dtype": "float64"}, {"layout": "tn"}, {"epilogue": "bias"}]  # what these tests look up


def problem(*shape: int, **options: str) -> Problem:
    return registry.problem("gemm", shape or (96, 80, 64), **options)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty user folder, and a shipped folder with a default."""
    shipped = tmp_path / "shipped"
    home = shipped / "defaults" / "any"
    home.mkdir(parents=True)
    home.joinpath("gemm.json").write_bytes(
        pack([record(tmp_path, problem(64, 64, 64, **how)).to_json() for how in ALL])
    )
    return Store(tmp_path / "user", shipped)


def record(folder: Path, what: Problem, **more: object) -> Record:
    assumes = more.pop("assumes", ())
    return handmade.record(what, handmade.plan(folder, what.dtype, assumes=assumes), DEVICE, **more)


def changed(told: Record, **fields: object) -> Record:
    return msgspec.structs.replace(told, fingerprint=msgspec.structs.replace(told.fingerprint, **fields))


# Files -------------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was(store, tmp_path):
    measured = Measured(1.5e-3, (1.4e-3, 1.6e-3), samples=(1.5e-3,), policy="p")
    told = record(tmp_path, problem(), measurement=measured, default_measurement=measured, tie=True,
                  evidence={"compile": [{"spills": 0}]}, counts={"asked": 3})  # fmt: skip
    assert records.read(store.write(told)) == told


def test_a_file_is_named_after_its_problem_and_lies_in_the_folder_of_its_device(store, tmp_path):
    path = store.write(record(tmp_path, problem(epilogue="bias,gelu")))
    assert path.parent == store.user / DEVICE.key
    assert path.name == "gemm_96x80x64_float32_epilogue=bias,gelu_layout=nn.json"


def test_names_stay_apart_whatever_an_option_holds():
    odd = [Problem("op", (1,), "float32", (("o", text),)) for text in ("a/b", "a:b", "a b", "ä", "x" * 300, "x" * 301)]
    names = [records.stem(p) for p in odd]
    assert len(set(names)) == len(names)
    assert all("/" not in name and len(name) < 200 and name.isascii() for name in names)


def test_fields_of_a_later_version_are_passed_over(store, tmp_path):
    path = store.write(record(tmp_path, problem()))
    data = json.loads(path.read_text())
    data["novelty"] = data["fingerprint"]["novelty"] = data["plan"]["novelty"] = {"deep": [1]}
    path.write_text(json.dumps(data))
    assert store.find(problem(), DEVICE).kind == "exact"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"text"', "{}", '{"schema": 1}', "\x00\xff", '{"schema": 999}', '{"schema": 0}',
     '{"schema": "1"}', '{"schema": 1, "problem": 3}'],
)  # fmt: skip
def test_a_file_that_is_no_record_is_skipped_with_a_warning_and_kept(store, tmp_path, text):
    path = store.write(record(tmp_path, problem()))
    path.write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match=r"record .* is skipped") as told:
        hit = store.find(problem(), DEVICE)
    assert hit.kind == "default"
    assert len(told) == 1
    assert any("skipped" in reason for reason in hit.reasons)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize(
    "place, value, words",
    [
        ("kernels", [], "it has no kernel"),
        ("operands", [], "no array is called 'A'"),
        ("sizes", ["M"], "zip"),
        ("assumes", ["A.nowhere == 1"], "A.nowhere"),
        ("assumes", ["A.m =="], "SyntaxError"),
        ("operands.0.extents", ["M", "Q"], "'Q'"),
        ("operands.0.dtype", "float99", "float99"),
        ("kernels.0.buffers", ["A", "B"], "no kernel writes 'D'"),
        ("kernels.0.buffers", ["A", "B", "Z"], "no array is called 'Z'"),
        ("kernels.0.scalars", ["gamma"], "gamma"),
        ("kernels.0.scratch", "1/0", "Div is not allowed"),
        ("kernels.0.scratch", "-" * 100_000 + "1", "Error"),  # which one depends on Python
    ],
)
def test_a_plan_that_does_not_hang_together_is_skipped(store, tmp_path, place, value, words):
    path = store.write(record(tmp_path, problem()))
    data = json.loads(path.read_text())
    *way, last = place.split(".")
    part = data["plan"]
    for step in way:
        part = part[int(step) if step.isdigit() else step]
    part[last] = value
    path.write_text(json.dumps(data))
    with pytest.warns(UserWarning, match="its plan is damaged"):
        hit = store.find(problem(), DEVICE)
    assert hit.kind == "default"
    assert any("its plan is damaged" in reason and words in reason for reason in hit.reasons), hit.reasons


def test_a_file_nested_deeper_than_python_follows_is_skipped(store, tmp_path):
    path = store.write(record(tmp_path, problem()))
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.warns(UserWarning, match="it is not a record .nested too deep"):
        assert store.find(problem(), DEVICE).kind == "default"


def test_a_record_whose_fingerprint_lacks_its_source_is_a_conflict(store, tmp_path):
    store.write(changed(record(tmp_path, problem()), sources={}))
    hit = store.find(problem(), DEVICE)
    assert hit.kind == "default"
    assert any("conflict, its fingerprint does not know its kernel source" in reason for reason in hit.reasons)


def test_a_file_that_cannot_be_used_is_not_overwritten(store, tmp_path):
    path = store.write(record(tmp_path, problem()))
    path.write_text("not a record")
    beside = store.write(record(tmp_path, problem()))
    assert beside != path
    assert path.read_text() == "not a record"
    with pytest.warns(UserWarning, match="is skipped"):
        assert store.find(problem(), DEVICE).path == beside


def test_a_full_disk_leaves_the_old_record_whole(store, tmp_path):
    old = store.write(record(tmp_path, problem(), created="old"))
    before = old.read_bytes()
    big = record(tmp_path, problem(), evidence={"log": "x" * 100_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(CacheError, match="cannot be written: File too large") as told:
            store.write(big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "\n" not in str(told.value)
    assert old.read_bytes() == before
    assert sorted(p.name for p in old.parent.iterdir()) == sorted([".lock", old.name])


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path):
    tmp_path.joinpath("file").write_text("in the way")
    with pytest.raises(CacheError, match="cannot be written"):
        Store(tmp_path / "file", tmp_path).write(record(tmp_path, problem()))


def test_a_held_lock_is_waited_for_and_then_told(store, tmp_path, monkeypatch):
    import filelock

    monkeypatch.setattr(record_module, "LOCK_TIMEOUT_S", 0.05)
    home = store.write(record(tmp_path, problem())).parent
    with filelock.FileLock(home / ".lock"), pytest.raises(CacheError, match="locked by another process"):
        store.write(record(tmp_path, problem()))


def _write_many(folder: str, user: str, mark: int) -> None:
    for n in range(10):
        records.write(record(Path(folder), problem(), created=f"{mark}.{n}", evidence={"x": "y" * 20_000}), Path(user))


def test_writers_at_once_leave_one_whole_record(store, tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(str(tmp_path), str(store.user), i)) for i in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        for path in store.files(store.user, DEVICE.key):
            records.read(path)  # never half a file
    assert [writer.exitcode for writer in writers] == [0] * 4
    (path,) = store.files(store.user, DEVICE.key)
    assert records.read(path).created.endswith(".9")


def test_a_killed_writer_leaves_a_whole_record(store, tmp_path):
    path = store.write(record(tmp_path, problem()))
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        writer = context.Process(target=_write_many, args=(str(tmp_path), str(store.user), 0))
        writer.start()
        before = path.stat().st_mtime_ns
        while writer.is_alive() and path.stat().st_mtime_ns == before:
            pass
        writer.kill()
        writer.join()
        records.read(path)
    store.write(record(tmp_path, problem()))  # the lock of the dead is free
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([".lock", path.name])


def test_a_folder_may_have_any_name(tmp_path, store):
    odd = Store(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a b\xff")), store.shipped)
    path = odd.write(record(tmp_path, problem()))
    assert odd.find(problem(), DEVICE).path == path


# Lookup ------------------------------------------------------------------------------------------------------------


def test_an_empty_store_gives_the_default_and_says_why(store):
    hit = store.find(problem(), DEVICE)
    assert hit.kind == "default" and hit.path is None
    assert [reason.partition(":")[0] for reason in hit.reasons][:3] == ["user", "shipped", "nearest"]
    assert problem().key in hit.reasons[0] and DEVICE.key in hit.reasons[0]


def test_an_exact_record_is_found(store, tmp_path):
    path = store.write(record(tmp_path, problem()))
    for policy in fingerprint.POLICIES:
        hit = store.find(problem(), DEVICE, policy)
        assert (hit.kind, hit.path) == ("exact", path)


@pytest.mark.parametrize("what", ["compiler", "policy", "package", "driver"])
def test_another_compiler_policy_or_version_is_compatible_unless_the_caller_is_strict(store, tmp_path, what):
    store.write(changed(record(tmp_path, problem()), **{what: "another"}))
    for policy in ("compatible", "any"):
        hit = store.find(problem(), DEVICE, policy)
        assert hit.kind == "compatible"
        assert "was another" in hit.reasons[-1]
    hit = store.find(problem(), DEVICE, "strict")
    assert hit.kind == "default"
    assert any("refused by policy strict" in reason and "was another" in reason for reason in hit.reasons)


@pytest.mark.parametrize("what", [{"name": "another"}, {"arch": "another"}, {"sources": {"gone.c": "0"}}])
def test_a_conflict_is_never_used_and_never_overwritten(store, tmp_path, what):
    told = changed(record(tmp_path, problem()), **what)
    path = store.write(told)
    for policy in fingerprint.POLICIES:
        hit = store.find(problem(), DEVICE, policy)
        assert hit.kind == "default"
        assert any("conflict" in reason for reason in hit.reasons)
    mine = store.write(record(tmp_path, problem()))
    assert mine != path and records.read(path) == told
    assert store.find(problem(), DEVICE).path == mine
    assert store.write(record(tmp_path, problem(), created="later")) == mine


def test_a_changed_kernel_source_is_a_conflict_and_a_changed_comment_is_none(store, tmp_path):
    store.write(record(tmp_path, problem()))
    source = tmp_path / "multiply.c"
    source.write_text(handmade.MULTIPLY + "\n// more to say\n\n")
    fingerprint.source_tokens.cache_clear()
    assert store.find(problem(), DEVICE).kind == "exact"
    source.write_text(handmade.MULTIPLY.replace("T sum = 0", "T sum = 1"))
    fingerprint.source_tokens.cache_clear()
    with pytest.raises(CacheError, match=r"multiply\.c' has changed since"):  # the default's source is the same one
        store.find(problem(), DEVICE)


def test_records_of_another_device_are_told_but_not_used(store, tmp_path):
    plan = handmade.plan(tmp_path)
    store.write(handmade.record(problem(), plan, OTHER))
    hit = store.find(problem(), DEVICE)
    assert hit.kind == "default"
    assert any(OTHER.key in reason for reason in hit.reasons)


def test_the_users_record_goes_before_a_shipped_one(store, tmp_path):
    shipped = records.write(record(tmp_path, problem()), store.shipped)
    hit = store.find(problem(), DEVICE)
    assert (hit.kind, hit.path) == ("exact", shipped)
    mine = store.write(changed(record(tmp_path, problem()), compiler="another"))
    hit = store.find(problem(), DEVICE)
    assert (hit.kind, hit.path) == ("compatible", mine)


@pytest.mark.parametrize("other", [{"dtype": "float64"}, {"layout": "tn"}, {"epilogue": "bias"}])
def test_dtype_and_options_are_part_of_what_is_looked_up(store, tmp_path, other):
    store.write(record(tmp_path, problem(**other)))
    assert store.find(problem(), DEVICE).kind == "default"
    assert store.find(problem(97, 80, 64), DEVICE).kind == "default"


def test_the_nearest_shape_serves(store, tmp_path):
    near, far = problem(96, 80, 70), problem(300, 300, 300)
    for what in (far, near):
        store.write(record(tmp_path, what))
    hit = store.find(problem(), DEVICE)
    assert (hit.kind, hit.record.problem) == ("nearest", near)


def test_a_far_shape_serves_only_who_takes_any(store, tmp_path):
    far = problem(*(int(2 ** (NEAR + 1)) * n for n in problem().shape))
    store.write(record(tmp_path, far))
    hit = store.find(problem(), DEVICE)
    assert hit.kind == "default"
    assert any("too far" in reason for reason in hit.reasons)
    assert store.find(problem(), DEVICE, "any").record.problem == far


def test_a_near_record_that_is_not_valid_at_the_shape_is_passed_over(store, tmp_path):
    picky = problem(96, 80, 72)
    store.write(record(tmp_path, picky, assumes=("K % 72 == 0", "B.n == 1")))
    store.write(record(tmp_path, problem(96, 80, 40)))
    hit = store.find(problem(), DEVICE)
    assert (hit.kind, hit.record.problem) == ("nearest", problem(96, 80, 40))
    assert any("not valid here: it assumes K % 72 == 0" in reason for reason in hit.reasons)
    assert store.find(problem(96, 80, 144), DEVICE).record.problem == picky


def test_a_near_record_that_wants_too_much_memory_is_passed_over(store, tmp_path):
    small = replace(DEVICE, facts={**DEVICE.facts, "memory_bytes": 1 << 20})
    two = handmade.record(problem(96, 80, 72), handmade.plan(tmp_path, two=True), DEVICE)
    store.write(two)
    assert store.find(problem(), small).kind == "nearest"
    hit = store.find(problem(900, 900, 64), small)
    assert hit.kind == "default"
    assert any("bytes of workspace" in reason for reason in hit.reasons)


def test_near_records_for_seeding_come_nearest_first(store, tmp_path):
    shapes = [(96, 80, 64), (96, 80, 70), (90, 300, 64), (4000, 4000, 4000)]
    for shape in reversed(shapes):
        store.write(record(tmp_path, problem(*shape)))
    store.write(changed(record(tmp_path, problem(96, 80, 65)), arch="another"))
    assert [r.problem.shape for r in store.nearby(problem(), DEVICE, 3)] == shapes[:3]


def test_an_unknown_policy_is_refused(store):
    with pytest.raises(SpaceError, match="policy 'lax': want one of strict, compatible, any"):
        store.find(problem(), DEVICE, "lax")


def test_nothing_at_all_is_an_error_that_says_what_was_looked_at(store):
    shutil.rmtree(store.shipped)
    with pytest.raises(CacheError, match="no default of gemm float32 with these options for any"):
        store.find(problem(), DEVICE)


def test_looking_up_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from kernsearch import backends, registry; from kernsearch.records import lookup\n"
        "store = lookup.store()\n"
        "store.nearby(registry.problem('gemm', (8, 8, 8)), backends.resolve('cpu')[1], 1)\n"
        "print({'optuna', 'networkx', 'joblib', 'rich', 'click'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert told.stdout.strip() == "set()"
