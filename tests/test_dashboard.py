"""The dashboard over a real study: what it shows, that it changes nothing, that a search beside it goes on, and what it
says when it cannot be had."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import pytest
from command import exit_code, know_rates

from kernsearch.candidate import Candidate
from kernsearch.measure import Measurement, Playoff, Ratio
from kernsearch.search.notes import Page
from kernsearch.search.opening import artifacts_of
from kernsearch.search.study import Studies, Study
from kernsearch.tune import pages, run
from kernsearch.units import duration

pytest.importorskip("optuna_dashboard")
from kernsearch.report import dashboard

SHAPE = (44, 36, 52)
NAMED = ("status", "origin", "gflops", "vs_default")
PATIENCE_S = 60  # for a page, on a machine that is busy with other tests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own, where the CPU's rates are known already."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(folder))
        know_rates(folder)
        yield folder


def toy(storage: Path) -> None:
    """A study of two trials, one refused, with a note."""
    study = Study(str(storage), "toy 4x4 float32 cpu-example #0123abcd", ("plain",), {"B": (1, 2)})
    study.describe({"problem": "toy 4x4 float32"})
    study.add("plain", {"B": 1}, "measured", {"status": "measured", "origin": "default"}, 1e-3)
    study.add("plain", {"B": 2}, "refused", {"status": "rejected", "gate": "compile", "reason": "it spills"})
    study.annotate({None: Page("# toy")})
    study.close()


@dataclass
class Served:
    """The command `kernsearch dashboard` as it runs, and what a tuning run beside it came to."""

    address: str
    nice: int
    result: Any = None
    seen: list[int] = field(default_factory=list)  # trials of all studies, each time that somebody looked

    def ask(self, path: str, method: str = "GET", **headers: str) -> Any:
        request = urllib.request.Request(urljoin(self.address, path), None, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read()
        return json.loads(text) if "api" in path else text.decode()

    def study(self) -> Any:
        """All of the study that was tuned."""
        return self.ask("/api/studies/2?after=0")

    def watch(self, done: threading.Event) -> None:
        while not done.wait(0.05):
            studies = self.ask("/api/studies")["study_summaries"]
            self.seen.append(sum(len(self.ask(f"/api/studies/{s['study_id']}?after=0")["trials"]) for s in studies))


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """A dashboard over a study that was tuned while somebody read it all the time."""
    toy(home / "studies.db")
    command = [sys.executable, "-m", "kernsearch.cli", "dashboard", "--port", "0"]
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=listens) as process:
        assert process.stdout is not None
        found = Served(process.stdout.readline().strip(), os.getpriority(os.PRIO_PROCESS, process.pid))
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(found.watch, done)
            try:
                found.result = run("gemm", shape=SHAPE, device="cpu", trials=3, timeout=8.0, early_stop=0.0)
            finally:
                done.set()
            watching.result()
        yield found
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_a_search_beside_a_reader_goes_on(served: Served, home: Path) -> None:
    """Neither the search nor the reader saw an error, which would have failed the fixture, and nothing is left over."""
    assert served.result.counts["measured"] >= 1 and served.seen[0] <= served.seen[-1] and served.seen[-1] > 2
    studies = Studies(str(home / "studies.db"))
    states = [trial.state for trial in studies.trials(studies.names[0])]
    assert states.count("running") == 0 and states.count("measured") == served.result.counts["measured"]


def test_trials_show_their_attributes_and_flat_parameters(served: Served) -> None:
    told = served.study()
    measured = [trial for trial in told["trials"] if trial["state"] == "Complete"]
    for trial in measured:
        assert set(NAMED) <= {attr["key"] for attr in trial["user_attrs"]}
        assert all("." not in param["name"] for param in trial["params"])
    assert {attr["key"] for attr in told["user_attrs"]} >= {"problem", "device", "compiler"}


def test_the_study_has_a_note_with_problem_device_best_and_derivation(served: Served) -> None:
    note = served.study()["note"]["body"]
    record = served.result.record
    assert record.problem.key in note and record.fingerprint.device in note
    assert "## Best so far" in note and "## Derivation" in note and "schedule: " in note


def test_the_note_of_a_study_has_the_times_of_its_finalists(served: Served) -> None:
    """By trial, the fastest first, each with its interval and beside the winner's."""
    note, record = served.study()["note"]["body"], served.result.record
    rows = [re.split(r" *\| *", line)[1:-1] for line in note.splitlines() if re.match(r"\| \d", line)]
    times = record.evidence["finalists"]
    assert {name for _, name, *_ in rows} <= times.keys() and rows
    winner_s = record.measurement.median_s
    for number, name, median, interval, ratio in rows:
        assert any(t["number"] == int(number) for t in served.study()["trials"])
        assert median == duration(times[name]) and float(ratio) == pytest.approx(times[name] / winner_s, abs=1e-3)
        assert re.fullmatch(r"[\d.]+ \S+ to [\d.]+ \S+", interval)
    assert sorted(rows, key=lambda row: times[row[1]]) == rows and "1.000" in {row[-1] for row in rows}


def test_a_finalist_that_failed_while_it_was_timed_says_so(home: Path) -> None:
    """In the note on the study; it has no time, and no page of its own."""
    candidates = {name: Candidate.of(name, {}) for name in ("kept", "failed")}
    passed: Any = {number: SimpleNamespace(candidate=c) for number, c in enumerate(candidates.values())}
    kept, failed = (candidate.name for candidate in candidates.values())
    taken = Measurement(1e-3, (9e-4, 2e-3), 0.99, (1e-3,), 1e-3, 0.0, 1.0, False)
    played = Playoff(kept, kept, (kept,), {}, Ratio(1.0, (0.9, 1.1), 9), {kept: taken}, 0.99, 4, False, "decided",
                     {failed: "execution: it hangs"})  # fmt: skip
    rows = list(pages._times(played, kept, passed))
    assert rows[2:] == [f"| 0 | {kept} | 1 ms | 900 µs to 2 ms | 1.000 |",
                        f"| 1 | {failed} | failed while it was timed: execution: it hangs | | |"]  # fmt: skip


def test_finalists_have_a_note_and_files_that_can_be_fetched(served: Served) -> None:
    told = served.study()
    noted = [trial for trial in told["trials"] if "# Finalist" in trial["note"]["body"]]
    assert 1 <= len(noted) <= 6
    winners = [trial for trial in noted if "and winner" in trial["note"]["body"]]
    assert {p["name"]: int(p["param_external_value"]) for p in winners[0]["params"] if p["name"] != "variant"} == (
        served.result.record.config
    )
    files = {part["filename"]: part["artifact_id"] for part in winners[0]["artifacts"]}
    assert {"1-ks_generated.h", "1-compiler.log"} <= files.keys()
    place = f"/artifacts/2/{winners[0]['trial_id']}/"
    assert served.ask(place + files["1-ks_generated.h"]) == served.result.record.plan.kernels[0].header
    assert "compiler: " in served.ask(place + files["1-compiler.log"])


def test_files_are_kept_once_and_not_again_for_the_same_finalists(served: Served, home: Path) -> None:
    folder = artifacts_of(str(home / "studies.db"))
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == len(set(texts)) and sum(map(len, texts)) < 1 << 20


@pytest.mark.parametrize(
    "method, path, headers",
    [
        ("DELETE", "/api/studies/2", {}),
        ("POST", "/api/studies/2/rename", {}),
        ("PUT", "/api/studies/2/note", {}),
        ("GET", "/api/studies", {"Host": "rebound.example:80"}),
    ],
)
def test_nothing_can_be_changed_and_nobody_else_may_ask(served: Served, method: str, path: str, headers: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask(path, method, **headers)
    assert refused.value.code == 403 and "this dashboard is for" in json.loads(refused.value.read())["reason"]
    assert len(served.ask("/api/studies")["study_summaries"]) == 2


def test_it_yields_the_processor_and_listens_on_loopback_alone(served: Served, home: Path) -> None:
    assert served.nice == 19 and served.address.startswith("http://127.0.0.1:")
    with dashboard.open_server(0, str(home / "studies.db")) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_journal_is_shown_too_and_not_written(tmp_path: Path) -> None:
    journal = tmp_path / "runs.log"
    toy(journal)
    before = journal.read_bytes()
    with dashboard.open_server(0, str(journal)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = Served(dashboard.address(server), 0).ask("/api/studies/0?after=0")
        server.shutdown()
    assert told["note"]["body"] == "# toy" and len(told["trials"]) == 2 and journal.read_bytes() == before


def _empty(path: Path) -> None:
    path.touch()


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table anything (x)")


def _text(path: Path) -> None:
    path.write_text("no database at all " * 100)


@pytest.mark.parametrize(
    "make, says",
    [
        (None, "there are no studies yet; `kernsearch tune gemm --shape 512x512x512 --storage"),
        (_empty, "there are no studies yet"),
        (_foreign, "kernsearch tune"),
        (_text, "file is not a database"),
    ],
)
def test_a_storage_without_studies_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, says: str
) -> None:
    path = tmp_path / "runs.db"
    if make is not None:
        make(path)
    assert exit_code("dashboard", "--port", "0", "--storage", str(path)) == 2
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and not told.out
    assert path.exists() == (make is not None)


def test_a_port_in_use_is_one_line(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert exit_code("dashboard", "--port", str(other.getsockname()[1])) == 2
    told = capsys.readouterr().err
    assert "in use; `kernsearch dashboard --port 0` takes one that is free" in told and told.count("\n") == 1


def test_a_missing_library_is_one_line(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard._app", None)
    assert exit_code("dashboard") == 2
    told = capsys.readouterr().err
    assert "pip install 'kernsearch[explore]'" in told and told.count("\n") == 1


# -- in a browser


def shows(browser: Any, url: str, *words: str) -> str:
    """The words on a page once all of these are on it."""
    browser.get(url)
    text, end = "", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        text = browser.execute_script("return document.body ? document.body.innerText : ''")
        if all(word in text for word in words):
            return str(text)
    raise AssertionError(f"{url}: {[word for word in words if word not in text]} not in {text!r}")


def test_a_browser_shows_studies_trials_and_notes(served: Served, browser: Any) -> None:
    base, key = served.address, served.result.record.problem.key
    shows(browser, base, f"{key} cpu-")
    shows(browser, f"{base}studies/2", "Best Trial", "compiler")
    shows(browser, f"{base}studies/2/note", "Best so far", "Derivation")
    shows(browser, f"{base}studies/2/smartSelection", "UserAttribute gflops", "UserAttribute origin", "Param MR")
    told = served.study()["trials"]
    number = next(trial["number"] for trial in told if "and winner" in trial["note"]["body"])
    shows(browser, f"{base}studies/2/trials?numbers={number}", "Finalist and winner", "1-compiler.log")
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
