"""Attention on the device machine: `python3 benchmarks/attention_device.py PART --seconds S`, after device_setup.sh.

    table     the figures in one run, beside PyTorch's backends
    sanitize  Compute Sanitizer over variants of one pass, two configs each, in every dtype

Tuning is benchmarks/device.py's: `tune --workload benchmarks/attention-h200.toml`. Results lie under $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention_figures
from device_figures import in_turn
from device_run import SANITIZED_AS, Deadline, log, out, sanitized, table

SELF = "benchmarks/attention_device.py"
SANITIZED = [
    ("1x2x77x131x40x72", "bfloat16", {"causal": "top-left"}), ("1x8x1x300x128", "float16", {"kv_heads": 2}),
    ("1x2x130x67x64", "float16", {}), ("1x2x65x65x32", "float32", CAUSAL := {"causal": "bottom-right"}),
    ("1x4x70x200x256", "bfloat16", {**CAUSAL, "kv_heads": 2}),
]  # fmt: skip


def figures(deadline: Deadline, groups: str, rounds: int | None) -> dict[str, Any]:
    """Each group in a process of its own; what is there when time is over is the table."""

    def command(name: str) -> list[str]:
        return [SELF, "group", json.dumps({"name": name, "rounds": rounds})]

    found = in_turn(deadline, groups, attention_figures.GROUPS, command, "attention-table")
    attention_figures.show(found)
    return found


def group(text: str) -> dict[str, Any]:
    from kernsearch import backends, registry
    from kernsearch.peers import bench_problems

    asked = json.loads(text)
    if asked["name"] == "host":
        return host_cost()
    workloads = attention_figures.GROUPS[asked["name"]]
    problems = [registry.problem("attention", w.shape, "bfloat16", backend="cuda", **w.options) for w in workloads]
    against = (attention_figures.CUDNN, attention_figures.FLASH)
    device = backends.resolve("cuda")[1]
    return bench_problems(problems, against, device=device, rounds=asked["rounds"], keep_going=True)


def host_cost() -> dict[str, float]:
    """Microseconds that the host spends in a call on device arrays with `out` given, and in PyTorch's: of the shortest
    decode of the figures, which is one launch of its record, and of a tiny problem that takes a default of two."""
    import torch

    decode, tiny = _host_cost(torch.bfloat16, 32, 4, 1, 1024, 128), _host_cost(torch.float16, 2, 2, 16, 16, 64)
    return decode | {f"default_{name}": cost for name, cost in tiny.items()}


def _host_cost(dtype: Any, heads: int, kv_heads: int, queries: int, keys: int, depth: int) -> dict[str, float]:
    import torch

    import kernsearch as ks

    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, kept = (torch.ones(1, heads, queries, depth, dtype=dtype, device="cuda") for _ in range(2))
    k, v = (torch.ones(1, kv_heads, keys, depth, dtype=dtype, device="cuda") for _ in range(2))
    return {
        "attention_us": _microseconds(lambda: ks.attention(q, k, v, out=kept)),
        "torch_us": _microseconds(lambda: sdpa(q, k, v, enable_gqa=heads != kv_heads)),
    }


def _microseconds(call: Callable[[], object], calls: int = 250, blocks: int = 40) -> float:
    """Of the host in a call; a device that is still at work does not hold up so few."""
    import torch

    taken = []
    for _ in range(blocks):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - started) / calls * 1e6)
    return statistics.median(taken[1:])


def sanitize(deadline: Deadline, tools: str) -> dict[str, Any]:
    """A process for each problem and tool."""
    rows, logs = [], {}
    for tool in tools.split(","):
        for shape, dtype, options in SANITIZED:
            name = f"{tool} {shape} {dtype} {options}"
            if deadline.left < 20:
                rows.append((name, "no time left", "", ""))
                continue
            words = json.dumps({"shape": shape, "dtype": dtype, "options": options})
            done = sanitized(tool, [SELF, "launches", words], min(150, deadline.left))
            logs[name] = done.text
            rows.append(
                (name, SANITIZED_AS.get(done.code, f"exit {done.code}"), f"{done.seconds:.0f} s", done.last[:90])
            )
    log("attention-sanitize", logs)
    table(("problem", "", "time", "last line"), rows)
    return {"rows": rows}


def launches(text: str) -> dict[str, Any]:
    """Two configs of each variant of one pass, once each, and compared with float64; each named before it runs."""
    from device_work import excess

    from kernsearch import backends, registry
    from kernsearch.derive import derive
    from kernsearch.errors import Rejected
    from kernsearch.feasible import FeasibleSpace
    from kernsearch.launch import itemsize

    words = json.loads(text)
    device = backends.resolve("cuda")[1]
    problem = registry.problem("attention", words["shape"], words["dtype"], backend="cuda", **words["options"])
    op = registry.op(problem.op)
    sizes = {**op.sizes(problem), "ITEMSIZE": itemsize(problem.dtype), "THREADS": int(device.facts["threads"])}
    wrong: dict[str, Any] = {}
    variants = [v for v in derive(problem, op, registry.templates("cuda")).variants if v.name.startswith("attention")]
    for variant in variants:
        space = FeasibleSpace(variant.params, variant.constraints, device, sizes)
        for config in filter(None, (space.sample(random.Random(seed)) for seed in range(2))):
            name = f"{variant.name} {' '.join(f'{k}={v}' for k, v in config.items())}"
            print(name, flush=True)
            try:
                if (off := excess(problem, device, variant, config)) > 0:
                    wrong[name] = off
            except Rejected as error:  # a config that the compiler refuses launches nothing
                print(error)
    return {"variants": [variant.name for variant in variants], "wrong": wrong}


def main() -> None:
    inner = {"group": group, "launches": launches}
    if len(sys.argv) == 3 and sys.argv[1] in inner:
        print(json.dumps(inner[sys.argv[1]](sys.argv[2]), indent=1, default=str))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tables = commands.add_parser("table", help="the figures")
    known = ", ".join(attention_figures.GROUPS)
    tables.add_argument("--groups", default="", help=f"comma list of {known}; all when empty")
    tables.add_argument("--rounds", type=int, default=None)
    sanitizes = commands.add_parser("sanitize", help="Compute Sanitizer over variants of one pass")
    sanitizes.add_argument("--tools", default="memcheck,racecheck,synccheck")
    for command in (tables, sanitizes):
        command.add_argument("--seconds", type=float, default=560.0, help="stop after so long")
    given = vars(parser.parse_args())
    name, seconds = given.pop("command"), given.pop("seconds")
    os.chdir(Path(__file__).resolve().parent.parent)
    result = {"table": figures, "sanitize": sanitize}[name](Deadline(seconds), **given)
    (out() / f"attention-{name}.json").write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
