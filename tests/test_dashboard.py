"""The dashboard over a real study: what it shows, that it changes nothing, that a search beside it goes on, and what it
says when it cannot be had."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernsearch import backends
from kernsearch.cli import main
from kernsearch.model import ceilings
from kernsearch.search.study import Studies, artifacts_of
from kernsearch.tune import run

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
        where = backends.resolve("cpu")[1]
        kept = folder / "ceilings" / f"{where.key}.json"
        kept.parent.mkdir(parents=True)
        kept.write_text(json.dumps(asdict(ceilings.guess(where))))
        yield folder


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Callable[..., Any]]:
    """A dashboard over a study that was tuned while somebody read it all the time; a function that asks it."""
    storage = str(home / "studies.db")
    run("gemm", shape=SHAPE, device="cpu", trials=1, timeout=15.0, storage=storage)
    with dashboard.open_server(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(path: str, method: str = "GET", **headers: str) -> Any:
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.server_port}{path}", None, headers, method=method
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
            return json.loads(text) if "api" in path else text.decode()

        done, seen = threading.Event(), []

        def watch() -> None:
            while not done.is_set():
                for row in ask("/api/studies")["study_summaries"]:
                    seen.append(len(ask(f"/api/studies/{row['study_id']}?after=0")["trials"]))

        reader = threading.Thread(target=watch)
        reader.start()
        try:
            result = run("gemm", shape=SHAPE, device="cpu", trials=4, timeout=15.0, storage=storage)
        finally:
            done.set()
            reader.join()
        ask.result, ask.seen, ask.server = result, seen, server  # type: ignore[attr-defined]
        yield ask
        server.shutdown()


def test_a_search_beside_a_reader_goes_on(served: Any, home: Path) -> None:
    """Neither the search nor the reader saw an error, which would have failed the fixture, and nothing is left over."""
    assert served.result.counts["measured"] >= 1 and len(served.seen) >= 1
    studies = Studies(str(home / "studies.db"))
    states = [trial.state for trial in studies.trials(studies.names[0])]
    assert states.count("running") == 0 and states.count("measured") >= 2


def test_trials_show_their_attributes_and_flat_parameters(served: Any) -> None:
    told = served("/api/studies/1?after=0")
    measured = [trial for trial in told["trials"] if trial["state"] == "Complete"]
    for trial in measured:
        assert set(NAMED) <= {attr["key"] for attr in trial["user_attrs"]}
        assert all("." not in param["name"] for param in trial["params"])
    assert {attr["key"] for attr in told["user_attrs"]} >= {"problem", "device", "compiler"}


def test_the_study_has_a_note_with_problem_device_best_and_derivation(served: Any) -> None:
    note = served("/api/studies/1?after=0")["note"]["body"]
    record = served.result.record
    assert record.problem.key in note and record.fingerprint.device in note
    assert "## Best so far" in note and "## Derivation" in note and "schedule: " in note


def test_finalists_have_a_note_and_files_that_can_be_fetched(served: Any) -> None:
    told = served("/api/studies/1?after=0")
    noted = [trial for trial in told["trials"] if "# Finalist" in trial["note"]["body"]]
    assert 1 <= len(noted) <= 6
    winners = [trial for trial in noted if "and winner" in trial["note"]["body"]]
    assert {p["name"]: int(p["param_external_value"]) for p in winners[0]["params"] if p["name"] != "variant"} == (
        served.result.record.config
    )
    files = {part["filename"]: part["artifact_id"] for part in winners[0]["artifacts"]}
    assert {"1-ks_generated.h", "1-compiler.log"} <= files.keys()
    place = f"/artifacts/1/{winners[0]['trial_id']}/"
    assert served(place + files["1-ks_generated.h"]) == served.result.record.plan.kernels[0].header
    assert "compiler: " in served(place + files["1-compiler.log"])


def test_files_are_kept_once_and_not_again_for_the_same_finalists(served: Any, home: Path) -> None:
    folder = artifacts_of(str(home / "studies.db"))
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == len(set(texts)) and sum(map(len, texts)) < 1 << 20


@pytest.mark.parametrize(
    "method, path, headers",
    [
        ("DELETE", "/api/studies/1", {}),
        ("POST", "/api/studies/1/rename", {}),
        ("PUT", "/api/studies/1/note", {}),
        ("GET", "/api/studies", {"Host": "rebound.example:80"}),
    ],
)
def test_nothing_can_be_changed_and_nobody_else_may_ask(served: Any, method: str, path: str, headers: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        served(path, method, **headers)
    assert refused.value.code == 403 and "this dashboard is for" in json.loads(refused.value.read())["reason"]
    assert len(served("/api/studies")["study_summaries"]) == 1


def test_it_listens_on_loopback_alone(served: Any) -> None:
    assert served.server.socket.getsockname()[0] == "127.0.0.1"
    assert dashboard.address(served.server).startswith("http://127.0.0.1:")


def test_a_journal_is_shown_too(home: Path, tmp_path: Path) -> None:
    journal = tmp_path / "runs.log"
    run("gemm", shape=SHAPE, device="cpu", trials=1, timeout=15.0, storage=str(journal))
    before = journal.read_bytes()
    with dashboard.open_server(0, str(journal)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/api/studies/0?after=0") as answer:
            told = json.loads(answer.read())
        server.shutdown()
    assert "# gemm" in told["note"]["body"] and len(told["trials"]) == 1 and journal.read_bytes() == before


def exit_code(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


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


def test_a_port_in_use_is_one_line(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert exit_code("dashboard", "--port", str(other.getsockname()[1])) == 2
    told = capsys.readouterr().err
    assert "in use; `kernsearch dashboard --port 0` takes one that is free" in told and told.count("\n") == 1


def test_a_missing_library_is_one_line(
    served: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard._app", None)
    assert exit_code("dashboard") == 2
    told = capsys.readouterr().err
    assert "pip install 'kernsearch[explore]'" in told and told.count("\n") == 1


# -- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, where there is one."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield found
    found.quit()


def shows(browser: Any, url: str, *words: str) -> str:
    """The words on a page once all of these are on it."""
    browser.get(url)
    text, end = "", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        text = browser.execute_script("return document.body ? document.body.innerText : ''")
        if all(word in text for word in words):
            return str(text)
    raise AssertionError(f"{url}: {[word for word in words if word not in text]} not in {text!r}")


def test_a_browser_shows_studies_trials_and_notes(served: Any, browser: Any) -> None:
    base, key = dashboard.address(served.server), served.result.record.problem.key
    shows(browser, base, f"{key} cpu-")
    shows(browser, f"{base}studies/1", "Best Trial", "compiler")
    shows(browser, f"{base}studies/1/note", "Best so far", "Derivation")
    shows(browser, f"{base}studies/1/smartSelection", "UserAttribute gflops", "UserAttribute origin", "Param MR")
    told = served("/api/studies/1?after=0")["trials"]
    number = next(trial["number"] for trial in told if "and winner" in trial["note"]["body"])
    shows(browser, f"{base}studies/1/trials?numbers={number}", "Finalist and winner", "1-compiler.log")
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
