"""Softmax on the device machine: `python3 benchmarks/softmax_device.py PART --seconds S`, after device_setup.sh.

    check   every variant through all gates, on poisoned buffers against float64; the model's config and random ones
    table   the figures in one run, beside torch and a copy of the same bytes
    try     configs of one problem timed one after the other: where a template's time goes
    sanitize  Compute Sanitizer over every variant, at shapes with and without whole words

Tuning is benchmarks/device.py's: `tune --workload benchmarks/softmax-h200.toml`. Results lie under $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import softmax_figures
from device_figures import in_turn
from device_run import SANITIZED_AS, Deadline, json_of, log, out, python, sanitized, table

SELF = "benchmarks/softmax_device.py"
CHECKS = [
    (op, dtype, shape, prologue)
    for op in ("softmax", "softmax_backward", "log_softmax_backward")
    for dtype in ("float32", "bfloat16", "float16", "float64")
    for shape in ("300x1000", "40x40000")
    for prologue in (("none", "scale,bias,mask") if op == "softmax" and shape == "300x1000" else ("none",))
]


def check(deadline: Deadline, only: str) -> dict[str, Any]:
    """Each problem in a process of its own."""
    rows, logs, found = [], {}, {}
    for op, dtype, shape, prologue in CHECKS:
        name = f"{op} {shape} {dtype} {prologue}"
        if only not in name or deadline.left < 25:
            continue
        words = json.dumps({"op": op, "dtype": dtype, "shape": shape, "prologue": prologue})
        done = python([SELF, "gates", words], min(150, deadline.left - 5))
        logs[name] = done.text
        text = json_of(done.text)
        found[name] = json.loads(text) if text else {"error": done.last if done.code is not None else "time over"}
        refused = {v: why for v, why in found[name].items() if why != "ok"}
        rows.append((name, len(found[name]) - len(refused), len(refused), f"{done.seconds:.0f} s"))
        rows += [(f"    {variant[:90]}", "", "", str(why)[:150]) for variant, why in refused.items()]
    log("softmax-check", logs)
    table(("problem", "passed", "refused", ""), rows)
    return found


def _opened(words: dict[str, str]) -> Any:
    """(op, problem, device, backend, variants with spaces, rates)."""
    from kernsearch import backends, registry
    from kernsearch.derive import derive
    from kernsearch.feasible import FeasibleSpace
    from kernsearch.launch import itemsize
    from kernsearch.model import ceilings

    backend, device = backends.resolve("cuda")
    op = registry.op(words["op"])
    options = {"prologue": words["prologue"]} if words.get("prologue", "none") != "none" else {}
    problem = registry.problem(words["op"], words["shape"], words["dtype"], backend="cuda", **options)
    sizes = {**op.sizes(problem), "ITEMSIZE": itemsize(problem.dtype), "THREADS": int(device.facts["threads"])}
    found = []
    for variant in derive(problem, op, registry.templates("cuda")).variants[:24]:
        space = FeasibleSpace(variant.params, variant.constraints, device, sizes)
        if space.sample(random.Random(0)) is not None:
            found.append((variant, space))
    return op, problem, device, backend, found, ceilings.of(backend, device)


def gates(text: str) -> dict[str, str]:
    """The model's config of each variant and a random one, through all gates."""
    from kernsearch import model
    from kernsearch.candidate import lower
    from kernsearch.errors import Rejected
    from kernsearch.gates import open_bench

    op, problem, device, backend, found, rates = _opened(json.loads(text))
    told = {}
    with open_bench(op, problem, device, backend, run_timeout_s=20) as bench:
        for variant, space in found:
            ranked = model.rank(variant, space, device, space.sizes, rates)
            for config in (ranked[0][1], space.sample(random.Random(1))):
                name = f"{variant.name} {' '.join(f'{k}={v}' for k, v in config.items())}"
                try:
                    plan = lower(variant, config, problem, backend, device)
                    compiled = [backend.compile(kernel, device, timeout_s=60) for kernel in plan.kernels]
                    bench.examine(plan, compiled, config, thorough=True)
                    told[name] = "ok"
                except Rejected as error:
                    told[name] = f"{error.gate}: {error.reason}"
    return told


def trial(deadline: Deadline, shape: str, dtype: str, op: str, variant: str, count: int) -> dict[str, Any]:
    words = json.dumps({"op": op, "dtype": dtype, "shape": shape, "variant": variant, "count": count})
    done = python([SELF, "times", words], deadline.left - 5)
    text = json_of(done.text)
    log("softmax-try", {words: done.text})
    found = json.loads(text) if text else {"error": done.text[-2000:]}
    rows = sorted(found.items(), key=lambda item: item[1] if isinstance(item[1], float) else 1e9)
    table(("config", "us"), [(name, f"{us:.2f}" if isinstance(us, float) else us) for name, us in rows])
    return found


def times(text: str) -> dict[str, Any]:
    """Microseconds of random configs, compared with float64 once at the tuned shape."""
    from kernsearch.candidate import lower
    from kernsearch.errors import Rejected
    from kernsearch.gates import open_bench

    words = json.loads(text)
    op, problem, device, backend, found, _ = _opened(words)
    told: dict[str, Any] = {}
    with open_bench(op, problem, device, backend, run_timeout_s=20) as bench:
        for variant, space in found:
            if words["variant"] and variant.name != words["variant"]:
                continue
            configs = [space.sample(random.Random(seed)) for seed in range(words["count"])]
            for config in {str(c): c for c in configs}.values():
                name = f"{variant.name} {' '.join(f'{k}={v}' for k, v in config.items())}"
                try:
                    plan = lower(variant, config, problem, backend, device)
                    compiled = [backend.compile(kernel, device, timeout_s=60) for kernel in plan.kernels]
                    bench.examine(plan, compiled, config)
                    told[name] = min(bench.timer(plan, compiled)(5).seconds) * 1e6
                    told[name + " registers, spill"] = "; ".join(
                        f"{c.evidence['registers']}, {c.evidence['spill_stores']}" for c in compiled
                    )
                except Rejected as error:
                    told[name] = f"{error.gate}: {error.reason}"[:200]
    return told


SANITIZED = [
    ("softmax", "bfloat16", "scale,mask"), ("softmax", "float32", "none"), ("softmax", "float16", "bias"),
    ("softmax_backward", "bfloat16", "none"), ("log_softmax_backward", "float32", "none"),
]  # fmt: skip


def sanitize(deadline: Deadline, tools: str, only: str) -> dict[str, Any]:
    """A process for each problem and tool; the last line names what ran when it ended."""
    rows, logs = [], {}
    for tool in tools.split(","):
        for op, dtype, prologue in SANITIZED:
            name = f"{tool} {op} {dtype} {prologue}"
            if only not in name or deadline.left < 20:
                continue
            words = json.dumps({"op": op, "dtype": dtype, "shape": "129x1000", "prologue": prologue})
            done = sanitized(tool, [SELF, "launches", words], min(150, deadline.left))
            logs[name] = done.text
            state = SANITIZED_AS.get(done.code, f"exit {done.code}")
            rows.append((name, state, f"{done.seconds:.0f} s", done.last[:120]))
    log("softmax-sanitize", logs)
    table(("problem", "", "time", "last line"), rows)
    return {"rows": rows}


def launches(text: str) -> dict[str, Any]:
    """Two configs of each variant, once each, at two shapes, and compared with float64; each named before it runs."""
    from device_work import excess

    from kernsearch import registry

    op, problem, device, _, found, _ = _opened(json.loads(text))
    wrong: dict[str, Any] = {}
    for shape in ("129x1000", "5x1003"):
        here = registry.problem(op.name, shape, problem.dtype, backend="cuda", **dict(problem.options))
        for variant, space in found:
            for config in (space.sample(random.Random(seed)) for seed in range(2)):
                name = f"{shape} {variant.name} {' '.join(f'{k}={v}' for k, v in config.items())}"
                print(name, flush=True)
                if (off := excess(here, device, variant, config)) > 0:
                    wrong[name] = off
    return {"variants": len(found), "wrong": wrong}


def figures(deadline: Deadline, groups: str, rounds: int | None) -> dict[str, Any]:
    """Each group in a process of its own; what is there when time is over is the table."""

    def command(name: str) -> list[str]:
        return [SELF, "group", json.dumps({"name": name, "rounds": rounds})]

    found = in_turn(deadline, groups, softmax_figures.GROUPS, command, "softmax-table")
    softmax_figures.show(found)
    return found


def group(text: str) -> dict[str, Any]:
    from kernsearch import backends, registry
    from kernsearch.peers import bench_problems

    asked = json.loads(text)
    spec = softmax_figures.GROUPS[asked["name"]]
    problems = [registry.problem(spec.op, shape, spec.dtype, backend="cuda") for shape in spec.shapes]
    device = backends.resolve("cuda")[1]
    return bench_problems(problems, ("torch", "copy"), device=device, rounds=asked["rounds"], keep_going=True)


def main() -> None:
    inner = {"gates": gates, "times": times, "group": group, "launches": launches}
    if len(sys.argv) == 3 and sys.argv[1] in inner:
        print(json.dumps(inner[sys.argv[1]](sys.argv[2]), indent=1, default=str))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help="every variant through the gates")
    checks.add_argument("--only", default="", help="part of a problem's name, like 'softmax 300x1000 float32'")
    tables = commands.add_parser("table", help="the figures")
    tables.add_argument(
        "--groups", default="", help=f"comma list of {', '.join(softmax_figures.GROUPS)}; all when empty"
    )
    tables.add_argument("--rounds", type=int, default=None)
    tries = commands.add_parser("try", help="configs of one problem")
    tries.add_argument("--shape", default="4096x4096")
    tries.add_argument("--dtype", default="bfloat16")
    tries.add_argument("--op", default="softmax")
    tries.add_argument("--variant", default="")
    tries.add_argument("--count", type=int, default=12)
    sanitizes = commands.add_parser("sanitize", help="Compute Sanitizer over every variant")
    sanitizes.add_argument("--tools", default="memcheck,racecheck,synccheck")
    sanitizes.add_argument("--only", default="", help="part of a name, like 'memcheck softmax bfloat16'")
    for command in (checks, tables, tries, sanitizes):
        command.add_argument("--seconds", type=float, default=560.0, help="stop after so long")
    given = vars(parser.parse_args())
    name, seconds = given.pop("command"), given.pop("seconds")
    os.chdir(Path(__file__).resolve().parent.parent)
    result = {"check": check, "table": figures, "try": trial, "sanitize": sanitize}[name](Deadline(seconds), **given)
    (out() / f"softmax-{name}.json").write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
