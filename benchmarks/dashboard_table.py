"""Figure: `kernsearch dashboard` shows the table of a study of 500 trials in Chromium.

    python benchmarks/dashboard_table.py [--trials 500] [--runs 5] [--keep]

Studies have the variants, configs and attributes of gemm on this CPU and on an H200; times are made up and nothing is
compiled. Each run starts the command and a browser anew. Seconds end when the table's rows are painted:

cold     from asking a new browser for the table's address; `parts`: script of the page, what the server tells, drawing
chosen   in the list of studies, whose address the command prints: from a click on a study, through its page, to a
         click on the table
again    the address once more in the same browser

`--keep` writes results/dashboard-table-<device>.json. Wants Chromium and chromedriver on PATH. Without a GPU the page's
plots are drawn by the processor, before the table that stands under them; `cold` without WebGL is what is left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from common import CLI, keep, wait_until_idle
from selenium import webdriver

from kernsearch import backends, registry
from kernsearch.device import Device
from kernsearch.model import ceilings
from kernsearch.search.narrowing import domains_of
from kernsearch.search.notes import Page
from kernsearch.search.study import Study
from kernsearch.tune.prospects import Prospects
from kernsearch.tune.request import Request

WANTED_S = 3.0
SHAPE = (2304, 1544, 4096)
FINALISTS = 6
PATIENCE_S = 120.0
ROWS = """
window.painted = null;
new MutationObserver((_, self) => {
    if (location.pathname.endsWith('/smartSelection') && document.querySelectorAll('table tbody tr').length >= 10) {
        self.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.painted = performance.now() / 1e3 }, 0));
    }
}).observe(document, {childList: true, subtree: true});
"""
PARTS = """
const page = performance.getEntriesByType('navigation')[0];
const told = performance.getEntriesByType('resource').find(e => e.name.includes('/api/studies/'));
return {script: page.loadEventEnd / 1e3, told: told.duration / 1e3, bytes: told.decodedBodySize};
"""
CLICK = """
const link = document.querySelector(arguments[0]);
if (link) { window.clicked = window.clicked || performance.now() / 1e3; link.click() }
return Boolean(link);
"""


def fill(storage: Path, backend_name: str, trials: int) -> str:
    """Write a study as the tuner does; its name."""
    backend = backends.get(backend_name)
    where: Device = backends.resolve("cpu")[1] if backend_name == "cpu" else backend.compile_only("sm_90a")
    problem = registry.problem("gemm", SHAPE, None, backend=backend_name)
    spaces = Prospects(registry.op("gemm"), problem, backend, where, ceilings.guess(where), Request()).spaces
    name, pick = f"{problem.key} {where.key} #01234567", random.Random(0)
    study = Study(str(storage), name, tuple(spaces), domains_of(spaces))
    study.describe({"problem": problem.key, "device": where.key})
    configs = {variant: list(itertools.islice(space.iterate(), 0, 20 * trials, 7)) for variant, space in spaces.items()}
    for number, variant in zip(range(trials), itertools.cycle(spaces), strict=False):
        config, seconds = pick.choice(configs[variant]), pick.lognormvariate(-6, 0.5)
        told = attributes(backend_name, pick, seconds)
        if number % 4 == 3:
            told |= {"status": "rejected", "gate": "compile", "reason": "a register tile that does not fit spills"}
            study.add(variant, config, "refused", told)
        else:
            study.add(variant, config, "measured", told, seconds)
    files = {f"1-{part}": part * 400 for part in ("source.cu", "ks_generated.h", "compiler.log")}
    pages: dict[int | None, Page] = {number: Page(f"# Finalist {number}\n" * 100, files) for number in range(FINALISTS)}
    study.annotate({None: Page("# Study\n" * 100), **pages})
    study.close()
    return name


def attributes(backend: str, pick: random.Random, seconds: float) -> dict[str, Any]:
    """What a trial shows, by the names that the tuner gives."""
    common = {"status": "measured", "origin": pick.choice(["model", "search", "random"]), "gflops": 1 / seconds,
              "vs_default": pick.random(), "benchmark_s": pick.random(), "compile_s": pick.random(),
              "verify_s": pick.random(), "predicted_s": seconds * pick.random(), "object_bytes": 32280,
              "warnings": ""}  # fmt: skip
    if backend == "cpu":
        return common | {"vector_bytes": 32, "hot_loop_instructions": 57, "hot_loop_stack_accesses": 0}
    return common | {"registers": pick.randrange(32, 255), "spills": 0, "spill_loads": 0, "stack_bytes": 0,
                     "smem": pick.randrange(1 << 17), "barriers": 1, "waves": pick.random()}  # fmt: skip


@contextmanager
def serving(storage: Path) -> Iterator[str]:
    """The command as a person starts it; the address that it prints."""
    command = [sys.executable, "-c", CLI, "dashboard", "--port", "0", "--storage", str(storage)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def browsing(*more: str) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *more):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": ROWS})
        yield browser
    finally:
        browser.quit()


def until(browser: Any, script: str, *arguments: str) -> Any:
    """What a script returns once it is not false."""
    end = time.monotonic() + PATIENCE_S
    while not (found := browser.execute_script(script, *arguments)):
        if time.monotonic() > end:
            raise SystemExit(f"{browser.current_url}: no {arguments or 'table'} within {PATIENCE_S:g} s")
        time.sleep(0.02)
    return found


def looked(browser: Any, page: str) -> dict[str, Any]:
    """The table by its address."""
    browser.get(page)
    seconds = until(browser, "return window.painted")
    parts = browser.execute_script(PARTS)
    return {"seconds": seconds, "parts": {**parts, "drawing": seconds - parts["script"] - parts["told"]}}


def chosen(browser: Any, address: str, number: int) -> float:
    """The table by two clicks, without waiting for the plots of the page between."""
    browser.get(address)
    study = f"a[href$='/studies/{number}']"
    until(browser, "return Boolean(document.querySelector(arguments[0]))", study)
    time.sleep(1.0)  # a person looks for the study meanwhile, and the list is drawn
    until(browser, CLICK, study)
    until(browser, CLICK, f"a[href$='/studies/{number}/smartSelection']")
    return float(until(browser, "return window.painted && window.painted - window.clicked"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    load = wait_until_idle() if given.keep else 0.0
    with tempfile.TemporaryDirectory(prefix="kernsearch-dashboard-") as folder:
        storage = Path(folder, "studies.db")
        names = [fill(storage, backend, given.trials) for backend in ("cpu", "cuda")]
        rows = []
        for run, (number, name) in itertools.product(range(given.runs), enumerate(names, 1)):
            row: dict[str, Any] = {"study": name, "run": run}
            with serving(storage) as address, browsing() as browser:
                page = f"{address}studies/{number}/smartSelection"
                row |= {"cold": looked(browser, page), "again": looked(browser, page)}
            with serving(storage) as address, browsing() as browser:
                row["chosen"] = {"seconds": chosen(browser, address, number)}
            with serving(storage) as address, browsing("--disable-webgl") as browser:
                row["without_webgl"] = looked(browser, f"{address}studies/{number}/smartSelection")
            rows.append(row)
            print(json.dumps(rows[-1]), file=sys.stderr)
    ways = ("chosen", "cold", "again", "without_webgl")
    medians = {way: median(row[way]["seconds"] for row in rows) for way in ways}
    told = {
        "title": f"dashboard's table of a study of {given.trials} trials in Chromium, from a click on the study",
        "wanted": f"at most {WANTED_S:g} s",
        "summary": f"{medians['chosen']:.2f} s; by its address in a new browser {medians['cold']:.2f} s, once more "
        f"{medians['again']:.2f} s, in a new one without WebGL {medians['without_webgl']:.2f} s; medians of "
        f"{len(rows)} runs, of which the server tells "
        f"{median(row['cold']['parts']['told'] for row in rows):.2f} s",
        "met": medians["chosen"] <= WANTED_S,
        "runs": rows,
    }
    keep("dashboard-table", told, load) if given.keep else print(told["summary"])


if __name__ == "__main__":
    main()
