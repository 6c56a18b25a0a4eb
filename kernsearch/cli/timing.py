"""Timing records against libraries."""

from __future__ import annotations

from typing import Any

import click

from .common import json_option, named_options, named_problems, print_json, workload_options


@click.command()
@workload_options
@json_option
@click.option(
    "--against",
    default=None,
    metavar="LIST",
    help="Libraries, like numpy,torch.  [default: numpy on the CPU, torch on CUDA]",
)
@click.option("--rounds", default=None, type=int, metavar="N", help="Interleaved rounds.  [default: 12 to 40]")
@click.option("--warm", is_flag=True, help="Leave the caches warm between samples.")
@click.option(
    "--end-to-end",
    is_flag=True,
    help="Also what comes before the first result: compiling, loading, transfers, the first call.",
)
@click.option(
    "--compare",
    "then_file",
    default=None,
    metavar="OLD.json",
    help="What `bench --json` printed earlier: say what got faster or slower. Without OP, its problems and libraries.",
)
def bench(
    op: str | None,
    shape: str | None,
    workload: str | None,
    device: str,
    dtype: str | None,
    layout: str | None,
    epilogue: str | None,
    as_json: bool,
    against: str | None,
    then_file: str | None,
    **options: Any,
) -> None:
    """Time the recorded kernel against libraries.

    Each library runs in a process of its own, and so does kernsearch; rounds are interleaved. On a GPU all are timed
    as replays of CUDA graphs over rotating copies of the operands.

    \b
    kernsearch bench gemm --shape 2304x1544x4096 --against numpy,torch
    kernsearch bench --workload benchmarks/gemm-h200.toml --device cuda --against torch,cupy,triton
    kernsearch bench --compare old.json

    With --compare the exit code is 1 when a problem got slower: its intervals then and now lie apart by more than 2 %,
    both of our times and of our times by each library's.
    """
    from .. import backends
    from ..peers import bench_problems, then
    from ..report.tables import print_bench, print_changes, print_comparison

    named = named_options({"dtype": dtype, "layout": layout, "epilogue": epilogue})
    earlier = None if then_file is None else then.read(then_file)
    if earlier is not None and op is None and workload is None:
        where = backends.resolve(device)[1]
        then.check(earlier, where.key, options["warm"])
        problems, against = then.problems(earlier), against or ",".join(then.libraries(earlier))
    else:
        problems, where = named_problems(op, shape, workload, device, named)
        if earlier is not None:
            then.check(earlier, where.key, options["warm"])
    if against is None:
        against = "numpy" if where.backend == "cpu" else "torch"
    libraries = tuple(filter(None, against.split(",")))
    many = workload is not None or len(problems) > 1
    results = bench_problems(problems, libraries, device=where, keep_going=many, **options)
    if earlier is not None:
        results["compared"] = then.compared(results, earlier)
    if as_json:
        print_json(results)
    else:
        print_comparison(results) if many else print_bench(results)
        if earlier is not None:
            print_changes(results["compared"])
    if earlier is not None and results["compared"]["slower"]:
        raise SystemExit(1)
