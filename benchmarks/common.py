"""What the figures share: where they ran, fresh processes, and how results are written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernsearch import backends
from kernsearch.errors import CompilerError

RESULTS = Path(__file__).parent / "results"
_ABOUT = """# Figures

Written by `python benchmarks/figures.py report` from the JSON files beside it: `<figure>-<device key>.json`, one for
each figure and device. Each holds `figure`, `title`, what is `wanted`, a `summary` of what was measured with its
interval, whether it was `met`, the `date`, the `load` average of the machine when it started, the `machine` (CPU,
caches, threads, system, compiler, versions of the libraries), and the numbers of every run. The table repeats the
essence. `python benchmarks/figures.py --help` says how to take them again.
"""
CLI = "from kernsearch.cli import main; main()"
IDLE_LOAD = 0.5


def machine() -> dict[str, Any]:
    """The CPU, the system and the versions that matter. No name of a host or a user."""
    backend, device = backends.resolve("cpu")
    try:
        toolchain = backend.toolchain(device)
        compiler = f"{toolchain.name} {toolchain.version}"
    except CompilerError:
        compiler = "none"
    facts = device.facts
    return {
        "device": device.key,
        "cpu": device.name,
        "arch": device.arch,
        "threads": facts["threads"],
        "caches": {name: facts[f"{name}_bytes"] for name in ("l1d", "l2", "l3")},
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiler": compiler,
        "versions": {name: version(name) for name in ("kernsearch", "numpy", "optuna", "networkx", "torch")},
    }


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def wait_until_idle(patience_s: float = 120.0) -> float:
    """The one-minute load, after waiting for it to fall; a busy machine is told, not refused."""
    deadline = time.monotonic() + patience_s
    while (load := os.getloadavg()[0]) > IDLE_LOAD and time.monotonic() < deadline:
        time.sleep(5.0)
    if load > IDLE_LOAD:
        print(f"the machine is not idle: load {load:.2f}", file=sys.stderr)
    return load


def cli(*arguments: str, cache: Path | None = None, check: bool = True) -> dict[str, Any]:
    """Run the command line in a fresh process; what `--json` printed."""
    done = subprocess.run(
        [sys.executable, "-c", CLI, *arguments, "--json"], env=environment(cache), capture_output=True, text=True
    )
    if check and done.returncode != 0:
        raise SystemExit(f"kernsearch {' '.join(arguments)}: exit {done.returncode}\n{done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def environment(cache: Path | None) -> dict[str, str]:
    return {**os.environ, **({"KERNSEARCH_CACHE": str(cache)} if cache else {})}


def arrays_bytes(shape: Sequence[int], itemsize: int = 4) -> int:
    m, n, k = shape
    return itemsize * (m * k + k * n + m * n)


def keep(figure: str, result: Mapping[str, Any], load: float) -> Path:
    """Write a figure's result with its machine and date; one file a figure and device."""
    where = machine()
    now = datetime.datetime.now(datetime.UTC)
    data = {"figure": figure, "date": f"{now:%Y-%m-%d %H:%M} UTC", "load": load, "machine": where, **result}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{figure}-{where['device']}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{path.name}: {result.get('summary', '')}")
    return path


def report() -> Path:
    """One Markdown page of all results that are kept, by device."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [_ABOUT]
    for device in sorted({data["machine"]["device"] for data in found}):
        rows = [data for data in found if data["machine"]["device"] == device]
        where = rows[0]["machine"]
        caches = ", ".join(f"{name} {size >> 10} KB" for name, size in where["caches"].items())
        used = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
        lines += [
            f"## {where['cpu']}, {where['arch']}, {where['threads']} threads",
            "",
            f"{caches}; {where['system']}, Python {where['python']}, {where['compiler']}; {used}.",
            "",
            "| figure | wanted | measured | met | date | load |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['title']} | {row['wanted']} | {row['summary']} | {'yes' if row['met'] else 'no'} "
            f"| {row['date']} | {row['load']:.2f} |"
            for row in rows
        ]
        lines.append("")
    if not found:
        lines.append("Nothing has been measured yet.\n")
    path = RESULTS / "README.md"
    path.write_text("\n".join(lines))
    return path
