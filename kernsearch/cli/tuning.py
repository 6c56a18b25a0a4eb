"""Searching for a kernel."""

from __future__ import annotations

from typing import Any

import click

from ..errors import DeviceError, NothingSurvived, SpaceError
from ..search import DEFAULT
from .common import (
    complain,
    json_option,
    named_options,
    named_problems,
    print_json,
    space_option,
    use_space,
    workload_options,
)


@click.command()
@workload_options
@space_option
@json_option
@click.option(
    "--trials", default=200, show_default=True, metavar="N", help="Distinct candidates, earlier runs counted."
)
@click.option("--timeout", default=120.0, show_default=True, metavar="SECONDS", help="Stop searching after this long.")
@click.option(
    "--searcher",
    default=DEFAULT,
    show_default=True,
    metavar="NAME",
    help="expected, tpe, genetic, local, random or exhaustive.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random generators.")
@click.option("--jobs", default=None, type=int, metavar="N", help="Compilers at once.  [default: usable cores]")
@click.option("--fix", "fixes", multiple=True, metavar="LETTER=VALUE", help="Hold a parameter. May be repeated.")
@click.option("--variant", default=None, metavar="NAME", help="Search this variant only.")
@click.option(
    "--max-workspace",
    default=None,
    type=int,
    metavar="BYTES",
    help="Refuse candidates that need more.  [default: half of what the arrays take, at least 32 MiB]",
)
@click.option("--deterministic", is_flag=True, help="Refuse variants whose result may differ from run to run.")
@click.option("--no-warm-start", is_flag=True, help="Do not seed the search from the model and earlier records.")
@click.option("--warm-from", multiple=True, metavar="WHERE",
              help="Learn from a recording, a record, a device's records or a storage. May be repeated.")  # fmt: skip
@click.option("--early-stop", default=0.002, show_default=True, metavar="GAIN",
              help="End when more trials are expected to save less than this share of time; 0: never.")  # fmt: skip
@click.option(
    "--storage", default=None, metavar="URL", help="Any Optuna storage.  [default: SQLite in the data folder]"
)
@click.option("--compile-timeout", default=20.0, show_default=True, metavar="SECONDS", help="For each compile.")
@click.option("--run-timeout", default=10.0, show_default=True, metavar="SECONDS", help="For each run of a candidate.")
def tune(op: str | None, shape: str | None, workload: str | None, device: str, dtype: str | None, layout: str | None,
         epilogue: str | None, as_json: bool, space_file: str | None, fixes: tuple[str, ...], no_warm_start: bool,
         **options: Any) -> None:  # fmt: skip
    """Search for the fastest correct kernel and record it.

    OP is gemm, softmax, attention or another: an unknown one is answered with the list of all. With --workload, of each
    problem in a file: --trials and --timeout are for each.

    \b
    kernsearch tune gemm --shape 2304x1544x4096
    kernsearch tune gemm --shape 64x4096x4096 --epilogue bias,gelu --trials 50
    kernsearch tune --workload benchmarks/gemm-h200.toml --device cuda
    """
    from ..report.progress import Progress
    from ..report.result import print_result
    from ..tune import parse_fix, run

    use_space(space_file)
    named = named_options({"dtype": dtype, "layout": layout, "epilogue": epilogue})
    problems, where = named_problems(op, shape, workload, device, named)
    fix = parse_fix(fixes)
    done: list[dict[str, Any]] = []
    failures = 0
    for number, problem in enumerate(problems, 1):
        with Progress(quiet=as_json, title="" if workload is None else f"{number}/{len(problems)}") as progress:
            try:
                result = run(problem.op, shape=problem.shape, dtype=problem.dtype, device=str(where),
                             fix=fix, warm_start=not no_warm_start, listener=progress.on,
                             **options, **dict(problem.options))  # fmt: skip
            except (DeviceError, NothingSurvived, SpaceError) as error:
                if workload is None:
                    raise
                failures += 1
                done.append({"problem": problem.key, "error": str(error)})
                complain(str(error))
                continue
        done.append(result.to_json())
        if not as_json:
            print_result(result)
        if result.interrupted:
            break
    if as_json:
        print_json(done[0] if workload is None else {"results": done, "failed": failures, "problems": len(problems)})
    if done[-1].get("interrupted"):
        raise SystemExit(130)
    if failures:
        raise SystemExit(1)
