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
    **options: Any,
) -> None:
    """Time the recorded kernel against libraries.

    Each library runs in a process of its own, and so does kernsearch; rounds are interleaved. On a GPU all are timed
    as replays of CUDA graphs over rotating copies of the operands.

    \b
    kernsearch bench gemm --shape 2304x1544x4096 --against numpy,torch
    kernsearch bench --workload benchmarks/gemm-h200.toml --device cuda --against torch,cupy,triton
    """
    from ..peers import bench_problems
    from ..report.tables import print_bench, print_comparison

    named = named_options({"dtype": dtype, "layout": layout, "epilogue": epilogue})
    problems, where = named_problems(op, shape, workload, device, named)
    if against is None:
        against = "numpy" if where.backend == "cpu" else "torch"
    libraries = tuple(filter(None, against.split(",")))
    results = bench_problems(problems, libraries, device=where, keep_going=workload is not None, **options)
    if as_json:
        print_json(results)
    elif workload is None:
        print_bench(results)
    else:
        print_comparison(results)
