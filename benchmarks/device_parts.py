"""The parts of device.py. Each is a function of the time that is left and its options, and returns what to keep."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import tempfile
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import figures_h200
from device_figures import in_turn
from device_run import (
    CACHE,
    SANITIZED_AS,
    SANITIZER_FOUND,
    WORK,
    Deadline,
    Done,
    json_of,
    kernsearch,
    log,
    out,
    python,
    run,
    sanitized,
    table,
)  # fmt: skip

Result = dict[str, Any] | None


def gpu_tests(deadline: Deadline, files: list[str], jobs: int, each: float, select: str) -> Result:
    """A process a file, some at once; junit.xml and gpu-tests.log hold everything."""
    marked = re.compile(r"mark\.gpu\b")
    found = files or sorted(str(p) for p in Path("tests").rglob("test_*.py") if marked.search(p.read_text()))
    with tempfile.TemporaryDirectory() as folder:

        def one(number: int, file: str) -> Done:
            report = f"{folder}/{number}.xml"
            arguments = ["-m", "pytest", "-m", "gpu", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", file]
            arguments += [f"--junitxml={report}", "-o", "junit_family=xunit1", *(["-k", select] if select else [])]
            with tempfile.TemporaryDirectory() as cache:
                limit = min(each, deadline.left)
                return python(arguments, limit, KERNSEARCH_CACHE=cache) if limit > 5 else Done(None, "no time left", 0)

        with ThreadPoolExecutor(jobs) as pool:
            done = list(pool.map(one, range(len(found)), found))
        suites, rows, failures = xml.Element("testsuites"), [], []
        for number, (file, ended) in enumerate(zip(found, done, strict=True)):
            path = Path(folder, f"{number}.xml")
            counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
            if path.is_file():
                for suite in xml.parse(path).getroot().iter("testsuite"):
                    suites.append(suite)
                    counts = {name: counts[name] + int(suite.get(name, 0)) for name in counts}
            bad = counts["failures"] + counts["errors"]
            state = "time over" if ended.code is None else "ok" if ended.code in (0, 5) else f"exit {ended.code}"
            passed = counts["tests"] - bad - counts["skipped"]
            rows.append((file, passed, bad, counts["skipped"], f"{ended.seconds:.0f} s", state))
            failures += [line for line in ended.text.splitlines() if line.startswith(("FAILED", "ERROR "))]
            failures += [f"{file}: {ended.last}"] if ended.code is None or ended.code not in (0, 1, 5) else []
        xml.ElementTree(suites).write(out() / "junit.xml")
    log("gpu-tests", {file: ended.text for file, ended in zip(found, done, strict=True)})
    for line in failures[:60]:
        print(line[:240])
    table(("file", "passed", "failed", "skipped", "time", ""), rows)
    return {"files": [dict(zip(("file", "passed", "failed", "skipped", "time", "state"), row, strict=True))
                      for row in rows]}  # fmt: skip


def probe(deadline: Deadline) -> Result:
    done = {"probe": python([*WORK, "probe"], deadline.left), "doctor": kernsearch(["doctor"], deadline.left)}
    done["nvidia-smi"] = run(["nvidia-smi"], 30)
    log("probe", {name: ended.text for name, ended in done.items()})
    print(done["doctor"].text)
    print(done["probe"].text)
    text = json_of(done["probe"].text)
    return json.loads(text) if text else {"error": done["probe"].last}


# -- tuning

LEDGER = CACHE / "ledger.json"
START_S = 8.0  # of a tuning run, beside its time limit: starting, finals, ending


def tune(deadline: Deadline, workload: Path, only: str, enough: float, least: float, most: float) -> Result:
    """Rounds over the problems that were tuned least; every run goes on with the study that is there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    ledger: dict[str, Any] = json.loads(LEDGER.read_text()) if LEDGER.is_file() else {}
    keys = _problems(workload, only)
    logs, rows = {}, []
    while True:
        pending = sorted((_spent(ledger.get(key, {}), most), i) for i, key in enumerate(keys))
        pending = [(spent, i) for spent, i in pending if spent < enough]
        if not pending or deadline.left < least + 2 * START_S:
            break
        key = keys[pending[0][1]]
        share = min(most, max(least, deadline.left / len(pending) - START_S), deadline.left - 2 * START_S)
        done = kernsearch([*_words(key), "--timeout", f"{share:.0f}", "--trials", "100000", "--json"],
                          share + 60 if deadline.left > share + 70 else deadline.left - 5)  # fmt: skip
        entry = ledger.setdefault(key, {"seconds": 0.0, "runs": 0, "failed": 0, "best": []})
        text = json_of(done.text)
        told = json.loads(text) if text else {"error": done.last if done.code is not None else "time over"}
        entry["runs"] += 1
        if "median_s" in told:
            entry["seconds"] += share
            entry["best"].append(told["median_s"])
        else:
            entry["failed"] += 1
        LEDGER.write_text(json.dumps(ledger, indent=1) + "\n")
        logs[f"{key} #{entry['runs']}"] = done.text
        counts = told.get("counts", {})
        said = told.get("variant", told.get("error", ""))[:60]
        best = f"{told['median_s'] * 1e6:.2f} us" if told.get("median_s") else "-"
        rows.append((key, f"{share:.0f} s", counts.get("measured", "-"), best, said))
    log("tune", logs)
    _pack()
    table(("problem", "time", "measured", "best", "variant"), rows)
    return {"tuned": rows, "ledger": ledger}


def tunes(deadline: Deadline, file: Path) -> Result:
    """A line of the file holds the arguments of one `kernsearch tune`: a few configs or one variant of a problem."""
    CACHE.mkdir(parents=True, exist_ok=True)
    logs, rows = {}, []
    for line in filter(None, (line.strip() for line in file.read_text().splitlines())):
        words = shlex.split(line)
        if deadline.left < float(words[words.index("--timeout") + 1]) + 2 * START_S:
            rows.append((line, "-", "-", "no time left"))
            continue
        done = kernsearch(["tune", *words, "--device", "cuda", "--trials", "100000", "--json"], deadline.left)
        logs[line] = done.text
        told = json.loads(json_of(done.text) or "{}")
        best = f"{told['median_s'] * 1e6:.2f} us" if "median_s" in told else "-"
        config = " ".join(f"{letter}={value}" for letter, value in told.get("config", {}).items())
        said = f"{told['variant']} {config}" if "variant" in told else done.last
        rows.append((line, told.get("counts", {}).get("measured", "-"), best, said))
        print(*rows[-1], sep="  ", flush=True)
    log("tunes", logs)
    _pack()
    return {"tuned": rows}


def _pack() -> None:
    """Records, studies and rates, without what was compiled."""
    with tarfile.open(out() / "h200.tar.gz", "w:gz") as archive:
        archive.add(CACHE, CACHE.name, filter=lambda member: None if "/objects" in member.name else member)


def _spent(entry: dict[str, Any], most: float) -> float:
    """Seconds that a problem was tuned for; a failed run counts in the order, so that the others come first."""
    return float(entry.get("seconds", 0.0) + most * entry.get("failed", 0))


def _problems(workload: Path, only: str) -> list[str]:
    """Problems of a workload as JSON of what the command line wants, in the file's order."""
    done = python([*WORK, "problems", str(workload)], 60)
    if done.code != 0:
        raise SystemExit(done.text)
    keys: list[str] = json.loads(json_of(done.text))["keys"]
    return [key for key in keys if re.search(only, key)]


def _words(key: str) -> list[str]:
    """The command line of a problem's key: 'gemm 16x16x16 bfloat16 epilogue=none layout=nn'."""
    op, shape, dtype, *options = key.split()
    pairs = [option.partition("=") for option in options]
    named = [word for name, _, value in pairs for word in ("--option", f"{name}={value}")]
    return ["tune", op, "--shape", shape, "--dtype", dtype, "--device", "cuda", *named]


def quality(deadline: Deadline, only: str) -> Result:
    """Searches of 30 and 120 s from nothing, against the records: all by their ratio to torch in one comparison."""
    found: dict[str, Any] = {}
    rows = []
    for key in _problems(Path("benchmarks/gemm-h200.toml"), only):
        if deadline.left < 30 + 120 + 4 * START_S:
            break
        words = _words(key)[1:]
        ratios = {"record": _ratio(words, str(CACHE.resolve()), deadline)}
        for seconds in (30, 120):
            with tempfile.TemporaryDirectory() as folder:
                kernsearch(["tune", *words, "--timeout", str(seconds), "--trials", "100000"],
                           min(seconds + 90, deadline.left), KERNSEARCH_CACHE=folder)  # fmt: skip
                ratios[f"{seconds} s"] = _ratio(words, folder, deadline)
        found[key] = ratios
        best = max((r for r in ratios.values() if r), default=None)
        rows.append((key, *(f"{r / best:.3f}" if r and best else "-" for r in ratios.values())))
    table(("problem (speed by the best)", "record", "30 s", "120 s"), rows)
    return found


def _ratio(words: list[str], cache: str, deadline: Deadline) -> float | None:
    done = kernsearch(["bench", *words, "--against", "torch", "--json"], min(90, deadline.left), KERNSEARCH_CACHE=cache)
    text = json_of(done.text)
    return json.loads(text)["geomean"]["torch"] if done.code == 0 and text else None


# -- figures


def figures(deadline: Deadline, groups: str, rounds: int | None, against: str) -> Result:
    """Each group of problems in a process of its own; what is there when time is over is the table."""
    options = json.dumps({"rounds": rounds, "also": [x for x in against.split(",") if x]})
    found = in_turn(deadline, groups, figures_h200.GROUPS, lambda name: [*WORK, "group", name, options], "table")
    figures_h200.show(found)
    return found


def bench(deadline: Deadline, arguments: list[str]) -> Result:
    words = [word for word in arguments if word != "--"]
    done = kernsearch(["bench", *words, *([] if "--device" in words else ["--device", "cuda"])], deadline.left)
    log("bench", {" ".join(words): done.text})
    print(done.text)
    return None


# -- case studies


def cases(deadline: Deadline, only: str, shape: str, dtype: str) -> Result:
    """Every case and a ladder, one after the other; $OUT/cases.tar.gz holds what each has recorded."""
    rows, logs = [], {}
    listed = json.loads(json_of(kernsearch(["case", "list", "--json"], 60).text) or '{"cases": []}')["cases"]
    with tempfile.TemporaryDirectory() as folder:
        for name in [*(case["name"] for case in listed), "ladder"]:
            if not re.search(only, name) or deadline.left < 20:
                continue
            kept = Path(folder, name)
            words = ["case", name, "--out", str(kept)]
            if name == "ladder":
                words = ["ladder", "gemm", "--shape", shape, "--dtype", dtype, "--out", f"{kept}.json"]
            done = kernsearch([*words, "--device", "cuda"], deadline.left - 10)
            logs[name] = done.text
            rows.append((name, f"{done.seconds:.0f} s", "ok" if done.code == 0 else done.last))
        with tarfile.open(out() / "cases.tar.gz", "w:gz") as archive:
            archive.add(folder, "cases")
    log("cases", logs)
    table(("case", "time", ""), rows)
    return None


# -- looking inside


def sanitize(deadline: Deadline, dtype: str, rung: str, shape: str, tools: str) -> Result:
    """Rungs must be clean, planted faults must be found."""
    chosen = python([*WORK, "choose", shape, dtype, rung], min(180, deadline.left))
    logs, rows = {"choose": chosen.text}, []
    text = json_of(chosen.text)
    configs: dict[str, Any] = json.loads(text)["rungs"] if text else {}
    if not configs:
        print(chosen.text)
    for tool in tools.split(","):
        if deadline.left > 20:
            planted = sanitized(tool, [*WORK, "fault", tool], min(120, deadline.left))
            logs[f"{tool} fault"] = planted.text
            rows.append(
                (
                    tool,
                    "planted fault",
                    "found" if planted.code == SANITIZER_FOUND else "NOT FOUND",
                    f"{planted.seconds:.0f} s",
                )
            )
        for name, config in configs.items():
            if deadline.left < 20:
                rows.append((tool, name, "no time left", ""))
                continue
            words = json.dumps({"rung": name, "config": config, "shape": shape, "dtype": dtype})
            done = sanitized(tool, [*WORK, "rung", words], min(150, deadline.left))
            logs[f"{tool} {name}"] = done.text
            state = SANITIZED_AS.get(done.code, f"exit {done.code}: {done.last}")
            rows.append((tool, name, state, f"{done.seconds:.0f} s"))
    log("sanitize", logs)
    table(("tool", "kernel", "", "time"), rows)
    return {"rows": rows, "configs": configs}


def ncu(deadline: Deadline, dtype: str, rung: str, shape: str, layout: str, sections: str, fix: str) -> Result:
    words = {"rung": rung, "config": json.loads(fix) if fix else None, "shape": shape, "dtype": dtype, "layout": layout}
    command = ["ncu", "--clock-control", "none", "--target-processes", "all", "--profile-from-start", "off"]
    for section in sections.split(","):
        command += ["--section", section]
    done = run([*command, "python3", *WORK, "rung", json.dumps(words)], deadline.left)
    log("ncu", {json.dumps(words): done.text})
    wanted = r"^  \w+.*\(|Throughput|Duration|Registers|Occupancy|Waves|Shared Memory|Hit Rate|Cycles|Issued"
    kept = [line for line in done.text.splitlines() if re.search(wanted, line)]
    print("\n".join(kept[:60]) or done.last)
    return None


def triton_ir(deadline: Deadline, shape: str) -> Result:
    done = python([*WORK, "triton-ir", shape, str(out())], deadline.left)
    print(done.text[-6000:])
    return None
