"""The study outlives its process: resumed, shared, killed, and on storages that fail."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from toy import one_variant, variants, work

from kernsearch.errors import StorageError
from kernsearch.search import Search, lease
from kernsearch.search.study import Study

WORKER = str(Path(__file__).with_name("work_on.py"))
ELSEWHERE = "elsewhere/0/0"


@pytest.fixture(params=["studies.db", "studies.log"])
def storage(request, tmp_path):
    return str(tmp_path / request.param)


def start(storage: str, trials: int, seed: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, WORKER, storage, str(trials), str(seed)], stdout=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> list[dict]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def states(storage: str) -> Counter[str]:
    with Search("toy", variants(), storage=storage) as search:
        return Counter(t.state for t in search._study.trials())


def test_a_second_run_goes_on_where_the_first_ended(storage):
    with Search("toy", variants(), storage=storage, trials=20) as search:
        work(search)
        first = search.finished()
        told = len([t for t in search._study.trials() if t.state in ("measured", "refused")])
    with Search("toy", variants(), storage=storage, trials=35) as search:
        assert search.resumed == told
        assert [(p.number, p.variant, p.config, p.status, p.gate, p.reason) for p in search.finished()] == [
            (p.number, p.variant, p.config, p.status, p.gate, p.reason) for p in first
        ]
        assert search.left == 15 and search.counts.asked == 0
        work(search)
        assert search.counts.measured + search.counts.rejected["compile"] == 15
        assert len({(p.variant, *sorted(p.config.items())) for p in search.finished()}) == 35
    with Search("toy", variants(), storage=storage, trials=35) as search:
        assert search.ask() is None


def test_attributes_are_short_scalars_and_values_have_four_digits(storage):
    with Search("toy", one_variant(1, 2), storage=storage, attrs={"problem": "toy"}) as search:
        attrs = {
            "gflops": 12.34567,
            "spills": 3,
            "vectorized": True,
            "log": "x" * 5000,
            "peak": float("nan"),
            "no": None,
        }
        search.tell_measured(search.ask(), 0.00123456, attrs)
        search.tell_rejected(search.ask(), "correctness", "off by 3")
        measured, refused = Study(storage, search.name, ("only",), {"BM": (1, 2)}).trials()
    assert measured.seconds == 0.001235
    kept = measured.attrs
    assert (kept["status"], kept["gflops"], kept["spills"], kept["vectorized"]) == ("measured", 12.35, 3, True)
    assert kept["peak"] == "nan" and len(kept["log"]) == 1000 and "no" not in kept
    assert {k: refused.attrs[k] for k in ("status", "gate", "reason", "origin")} == {
        "status": "rejected",
        "gate": "correctness",
        "reason": "off by 3",
        "origin": "random",
    }


def test_what_one_run_refused_to_ask_another_may(storage):
    with Search(
        "toy", one_variant(1, 2), storage=storage, keep=lambda v, c: "unwanted" if c["BM"] == 1 else None
    ) as one:
        work(one)
        assert [p.config["BM"] for p in one.finished()] == [2]
    with Search("toy", one_variant(1, 2), storage=storage) as two:
        work(two)
        assert sorted(p.config["BM"] for p in two.finished()) == [1, 2]
    with Search("toy", one_variant(1, 2), storage=storage, fix={"BM": 2}) as three:
        assert [p.config["BM"] for p in three.finished()] == [2]
        assert len(three.finished(narrowed=False)) == 2


def test_killed_at_random_nothing_told_is_lost_and_nothing_stays_running(storage):
    rng = random.Random(4)
    acknowledged: set[int] = set()
    finished = 0
    for seed in range(4):
        process = start(storage, 500, seed)
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["resumed"] == finished
        lines = [process.stdout.readline() for _ in range(rng.randrange(1, 12))]
        process.kill()
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        said = [json.loads(line) for line in (*lines, *rest.splitlines(True)) if line.endswith("\n")]
        acknowledged |= {line["told"] for line in said if "told" in line}
        with Search("toy", variants(), storage=storage, trials=500) as search:
            trials = search._study.trials()
            finished = sum(t.state in ("measured", "refused") for t in trials)
            assert search.resumed == finished
        assert acknowledged <= {t.number for t in trials if t.state == "measured"}
        assert not [t for t in trials if t.state == "running"]
        assert {t.attrs["status"] for t in trials if t.state == "failed"} <= {"stale", "abandoned"}
    assert len(acknowledged) > 5


def test_two_processes_share_one_study_and_measure_nothing_twice(storage):
    both = [said(process) for process in [start(storage, 40, 1), start(storage, 40, 1)]]
    asks = [line for lines in both for line in lines if "ask" in line]
    assert len({line["ask"] for line in asks}) == len(asks)
    assert len({json.dumps(line["config"], sort_keys=True) for line in asks}) == len(asks) == 40
    for lines in both:
        counts = lines[-1]
        assert counts["measured"] == sum("told" in line for line in lines)
        assert counts["asked"] == counts["measured"] + counts["duplicates"] + sum(counts["rejected"].values())
    assert states(storage)["measured"] == 40


def leave_running(storage: str, lease_text: str | None) -> None:
    """A trial that looks as if the process of that lease had been killed."""
    with Search("toy", one_variant(1, 2, 4), storage=storage) as search:
        attrs = {"status": "running", "origin": "model"}
        search._study.add("only", {"BM": 2}, "running", attrs, lease=lease_text or "")


def test_a_trial_of_a_dead_process_is_failed_and_asked_again(tmp_path):
    storage = str(tmp_path / "studies.db")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leave_running(storage, str(lease.Lease(lease.grant().place, dead.pid, "1", lease.grant().until)))
    with Search("toy", one_variant(1, 2, 4), storage=storage) as search:
        (stale,) = search._study.trials()
        assert (stale.state, stale.attrs["status"]) == ("failed", "stale")
        assert search.resumed == 0
        again = search.ask()
        assert (again.config, again.origin) == ({"BM": 2}, "model")


def test_a_recycled_pid_is_not_the_holder():
    now = lease.grant()
    assert now.alive
    assert not lease.Lease(now.place, now.pid, "1", now.until).alive


def test_a_trial_of_a_live_process_is_left_alone_and_not_asked_again(tmp_path):
    storage = str(tmp_path / "studies.db")
    live = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = lease.Lease(lease.grant().place, live.pid, lease._started(live.pid) or "", 0.0)
    leave_running(storage, str(held))
    with Search("toy", one_variant(1, 2, 4), storage=storage, trials=3) as search:
        work(search)
        assert sorted(p.config["BM"] for p in search.finished()) == [1, 4]
        live.communicate(b"\n")
        work(search)
        assert sorted(p.config["BM"] for p in search.finished()) == [1, 2, 4]


@pytest.mark.parametrize("until, state", [(0.0, "failed"), (4e9, "running")])
def test_another_machine_is_believed_until_its_lease_ends(tmp_path, until, state):
    storage = str(tmp_path / "studies.db")
    leave_running(storage, str(lease.Lease(ELSEWHERE, 1, "1", until)))
    with Search("toy", one_variant(1, 2, 4), storage=storage) as search:
        assert [t.state for t in search._study.trials()] == [state]


def test_a_running_trial_without_a_lease_is_failed_when_it_is_old(tmp_path):
    storage = str(tmp_path / "studies.db")
    leave_running(storage, None)
    with Search("toy", one_variant(1, 2, 4), storage=storage) as search:
        assert [t.state for t in search._study.trials()] == ["running"]
    with Search("toy", one_variant(1, 2, 4), storage=storage, lease_s=0.0) as search:
        assert [t.state for t in search._study.trials()] == ["failed"]


def test_a_result_that_comes_after_its_lease_is_kept(tmp_path):
    storage = str(tmp_path / "studies.db")
    with Search("toy", one_variant(1), storage=storage) as search:
        ask = search.ask()
        with Search("toy", one_variant(1), storage=storage) as other:
            other._study.finish(ask.id, "failed", {"status": "stale"})
        search.tell_measured(ask, 2.0, {"gflops": 3.0})
        assert search.best().seconds == 2.0
    with Search("toy", one_variant(1), storage=storage) as search:
        assert search.best().seconds == 2.0 and search.best().attrs["gflops"] == 3.0


def test_leases_are_renewed_while_work_goes_on(tmp_path):
    with Search("toy", one_variant(1, 2), storage=str(tmp_path / "s.db"), lease_s=0.0) as search:
        first = search.ask()
        before = search._study.trials()[0].lease
        search._lease_s = -100.0  # over at once, so that the next ask writes it anew
        search.ask()
        after = next(t for t in search._study.trials() if t.number == first.number).lease
        assert lease.parse(after).until < lease.parse(before).until


def test_sqlite_keeps_a_write_ahead_log(tmp_path):
    path = tmp_path / "studies.db"
    with Search("toy", one_variant(1), storage=f"sqlite:///{path}") as search:
        work(search)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_path_with_braces_and_blanks_is_a_path(tmp_path):
    path = tmp_path / "my {odd} studies.db"
    with Search("toy", one_variant(1), storage=str(path)) as search:
        work(search)
    assert path.exists()


def test_a_half_written_line_of_a_journal_is_cut(tmp_path):
    path = tmp_path / "studies.log"
    with Search("toy", one_variant(1, 2, 4), storage=str(path), trials=1) as search:
        work(search)
    with path.open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    with Search("toy", one_variant(1, 2, 4), storage=str(path), trials=3) as search:
        work(search)
    with Search("toy", one_variant(1, 2, 4), storage=str(path), trials=3) as search:
        assert len(search.finished()) == 3


UNUSABLE = {
    "a missing folder": "{home}/none/studies.db",
    "a folder": "{home}",
    "not a database": "{home}/not.db",
    "not a journal": "{home}/not.log",
    "a journal in a missing folder": "{home}/none/studies.log",
    "an unknown scheme": "nosuch://host/name",
    "a missing driver or server": "postgresql://user:secret@127.0.0.1:1/none",
    "not a url": "sqlite//:oops://",
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_storage_is_one_line(tmp_path, what):
    (tmp_path / "not.db").write_text("this is not a database, however long it is. " * 40)
    (tmp_path / "not.log").write_text("this is not a journal\n")
    url = UNUSABLE[what].format(home=tmp_path)
    with pytest.raises(StorageError, match=r"^storage ") as raised:
        Search("toy", one_variant(1), storage=url)
    assert "\n" not in str(raised.value) and "secret" not in str(raised.value)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    path = tmp_path / "studies.db"
    with Search("toy", one_variant(*range(200)), storage=str(path), trials=200, searcher="random") as search:
        search.tell_measured(search.ask(), 1.0)
        told = search.ask()
        engine = search._study._storage._backend.engine
        with engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StorageError, match="full"):
            for _ in range(200):
                search.tell_measured(told, 1.0, {"log": "x" * 900})
                told = search.ask()
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=1000000")
        measured = search.counts.measured
    with Search("toy", one_variant(*range(200)), storage=str(path), trials=200) as search:
        assert len(search.finished()) == measured


FILL = """
import resource, sys
from toy import one_variant
from kernsearch.errors import StorageError
from kernsearch.search import Search
with Search("toy", one_variant(*range(200)), storage=sys.argv[1], trials=200) as search:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 40_000))
    try:
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, 1.0)
            print(ask.number, flush=True)
    except StorageError as error:
        print(error, file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
"""


def test_a_journal_that_cannot_grow_is_one_line_and_loses_nothing(tmp_path):
    path = str(tmp_path / "studies.log")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run([sys.executable, "-c", FILL, path], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0 and ran.stderr.startswith("storage ") and ran.stderr.count("\n") == 1
    with Search("toy", one_variant(*range(200)), storage=path, trials=200) as search:
        assert {p.number for p in search.finished()} == {int(n) for n in ran.stdout.split()}
        search.tell_measured(search.ask(), 1.0)
