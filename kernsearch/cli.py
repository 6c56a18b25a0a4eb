"""The command line. Heavy modules are imported inside the commands, so that `--help` stays quick.

Exit codes: 0 done, 1 no candidate survived, 2 a request that cannot be met, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .errors import CacheError, DeviceError, KernsearchError, NothingSurvived, SpaceError


def problem_options(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """`OP --shape … --dtype … --device … --layout … --epilogue …`, shared by all commands that name a problem."""
    for decorate in (
        click.option("--epilogue", default=None, metavar="LIST",
                     help="none, or a comma list of bias, one of relu|gelu|gelu_tanh|silu, residual. The activation is "
                          "always last: act(alpha A B + bias + beta C).  [default: none]"),
        click.option("--layout", default=None, help="n as is, t stored transposed; A first.  [default: nn]"),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
        click.option("--dtype", default=None, help="Default: float32 on the CPU, bfloat16 on CUDA."),
        click.option("--shape", required=required, metavar="SIZES", help="Like 2304x1544x4096 (MxNxK)."),
        click.argument("op", required=required),
    ):  # fmt: skip
        command = decorate(command)
    return command


def optional_problem(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `problem_options`, none of them required."""
    return problem_options(command, required=False)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `problem_options`, or `--workload FILE` instead of a problem."""
    command = click.option("--workload", default=None, metavar="FILE.toml",
                           help="A list of problems instead of OP, --shape and their options.")(command)  # fmt: skip
    return problem_options(command, required=False)


def _problems(
    op: str | None, shape: str | None, workload: str | None, device: str, named: dict[str, Any]
) -> tuple[list[Any], Any]:
    """The problems that a command names, one or a whole workload, and the device. `named`: dtype and options."""
    from . import backends, registry
    from . import workload as workloads
    from .problem import parse_shape

    given = [name for name, value in {"OP": op, "--shape": shape}.items() if value is not None]
    given += [f"--{name}" for name, value in named.items() if value is not None]
    if workload is not None:
        if given:
            raise click.UsageError(f"{given[0]} beside --workload: want one or the other, the file names the problems")
        backend, where = backends.resolve(device)
        return workloads.read(workload, backend.name), where
    if op is None:
        raise click.UsageError("Missing argument 'OP'; or name a list of problems by --workload.")
    if shape is None:
        raise click.UsageError("Missing option '--shape'.")
    sizes = parse_shape(shape)
    backend, where = backends.resolve(device)
    return [registry.problem(op, sizes, backend=backend.name, **named)], where


def space_option(command: Callable[..., Any]) -> Callable[..., Any]:
    told = "Add ops, templates or cases."
    return click.option("--space", "space_file", default=None, metavar="FILE.py", help=told)(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


class _ReaderGone(Exception):
    """Nobody reads our output any more."""


class _Commands(click.Group):
    """A group that says in its own words when a pipe has broken; click would exit with 1, which has a meaning here."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="kernsearch", prog_name="kernsearch")
def cli() -> None:
    """Find the fastest kernel for your shape on your device, prove it right, and keep it."""


@cli.command()
@workload_options
@space_option
@json_option
@click.option(
    "--trials", default=200, show_default=True, metavar="N", help="Distinct candidates, earlier runs counted."
)
@click.option("--timeout", default=120.0, show_default=True, metavar="SECONDS", help="Stop searching after this long.")
@click.option("--searcher", default="tpe", show_default=True, metavar="NAME", help="tpe, random, local or exhaustive.")
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
@click.option(
    "--storage", default=None, metavar="URL", help="Any Optuna storage.  [default: SQLite in the data folder]"
)
@click.option("--compile-timeout", default=20.0, show_default=True, metavar="SECONDS", help="For each compile.")
@click.option("--run-timeout", default=10.0, show_default=True, metavar="SECONDS", help="For each run of a candidate.")
def tune(op: str | None, shape: str | None, workload: str | None, device: str, dtype: str | None, layout: str | None,
         epilogue: str | None, as_json: bool, space_file: str | None, fixes: tuple[str, ...], no_warm_start: bool,
         **options: Any) -> None:  # fmt: skip
    """Search for the fastest correct kernel of a problem and record it.

    With --workload, of each problem in a file: --trials and --timeout are for each.

    \b
    kernsearch tune gemm --shape 2304x1544x4096
    kernsearch tune gemm --shape 64x4096x4096 --epilogue bias,gelu --trials 50
    kernsearch tune --workload benchmarks/gemm-h200.toml --device cuda
    """
    from .report.progress import Progress
    from .report.result import print_result
    from .tune import parse_fix, run

    _use_space(space_file)
    named = {"dtype": dtype, "layout": layout, "epilogue": epilogue}
    problems, where = _problems(op, shape, workload, device, named)
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
                _complain(str(error))
                continue
        done.append(result.to_json())
        if not as_json:
            print_result(result)
        if result.interrupted:
            break
    if as_json:
        _print_json(done[0] if workload is None else {"results": done, "failed": failures, "problems": len(problems)})
    if done[-1].get("interrupted"):
        raise SystemExit(130)
    if failures:
        raise SystemExit(1)


@cli.command()
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
    from .peers import bench_problems
    from .report.tables import print_bench, print_comparison

    named = {"dtype": dtype, "layout": layout, "epilogue": epilogue}
    problems, where = _problems(op, shape, workload, device, named)
    if against is None:
        against = "numpy" if where.backend == "cpu" else "torch"
    libraries = tuple(filter(None, against.split(",")))
    results = bench_problems(problems, libraries, device=where, keep_going=workload is not None, **options)
    if as_json:
        _print_json(results)
    elif workload is None:
        print_bench(results)
    else:
        print_comparison(results)


@cli.command()
@problem_options
@space_option
@json_option
def explain(op: str, shape: str, as_json: bool, space_file: str | None, **options: Any) -> None:
    """Show derivation, predictions and measurements."""
    from .problem import parse_shape
    from .report.explain import explanation, print_explanation

    _use_space(space_file)
    told = explanation(op, shape=parse_shape(shape), **options)
    _print_json(told) if as_json else print_explanation(told)


@cli.command()
@problem_options
@space_option
@click.option("--format", "form", default="json", show_default=True, metavar="FORM", help="json, graphml or dot.")
def graph(op: str, shape: str, form: str, space_file: str | None, **options: Any) -> None:
    """Write the derivation graph to standard output."""
    from .problem import parse_shape
    from .report.graph import derivation_graph

    _use_space(space_file)
    click.echo(derivation_graph(op, form=form, shape=parse_shape(shape), **options))


@cli.command()
@optional_problem
@space_option
@json_option
@click.option("--from", "recorded", default=None, metavar="FILE", help="Print a recorded ladder; nothing is measured.")
@click.option("--out", default=None, metavar="FILE", help="Write the data there, predictions before measuring.")
@click.option("--tried", default=6, show_default=True, metavar="N", help="Configs tried of each rung.")
def ladder(op: str | None, shape: str | None, as_json: bool, space_file: str | None, recorded: str | None,
           out: str | None, **options: Any) -> None:  # fmt: skip
    """Climb from the plainest kernel to the best, prediction beside measurement.

    \b
    kernsearch ladder gemm --shape 4096x4096x4096
    kernsearch ladder gemm --from recorded.json
    """
    from .cases import ladder as ladders
    from .report.cases import print_ladder

    if recorded is not None:
        told = ladders.recording(_read_json(recorded, "rungs"))
    else:
        from .problem import parse_shape

        if op is None or shape is None:
            raise click.UsageError("want an OP and its --shape, or --from FILE")
        _use_space(space_file)
        told = ladders.run(op, shape=parse_shape(shape), out=None if out is None else Path(out),
                           listener=_progress(as_json), **options)  # fmt: skip
    _print_json(told) if as_json else print_ladder(told)


@cli.command()
@click.argument("name", metavar="list|NAME")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@space_option
@json_option
@click.option("--out", default=None, metavar="DIR", help="Write prediction.json and data.json there.")
@click.option("--from", "recorded", default=None, metavar="FILE", help="Judge recorded data; nothing is measured.")
def case(name: str, device: str, as_json: bool, space_file: str | None, out: str | None, recorded: str | None) -> None:
    """List the case studies, run one, or judge a recording of it.

    A run writes its predictions down first, then measures, then judges by the samples alone.

    \b
    kernsearch case list
    kernsearch case wave-quantization --device cuda --out waves
    """
    from .cases import cases, find, judged, listed, recording, run
    from .report.cases import print_case, print_list

    _use_space(space_file)
    if name == "list":
        found_all = cases().values()
        _print_json(listed(found_all)) if as_json else print_list(found_all)
        return
    found = find(name)
    if recorded is not None:
        told = judged(recording(_read_json(recorded, "arms"), name))
    else:
        told = run(found, device=device, out=None if out is None else Path(out), listener=_progress(as_json))
    _print_json(told) if as_json else print_case(told)


@cli.command()
@click.argument("record")
@click.option("--source", is_flag=True, help="Print the kernels' sources, generated headers included.")
@click.option("--log", is_flag=True, help="Print what the gates and the compiler found.")
@json_option
def show(record: str, source: bool, log: bool, as_json: bool) -> None:
    """Show a record: a path, or a name that `cache list` prints."""
    from .report.record import print_record, read_record

    found = read_record(record)
    if as_json:
        _print_json(found.to_json())
    else:
        print_record(found, source=source, log=log)


@cli.group()
def cache() -> None:
    """List, check and explain the records."""


@cache.command("list")
@json_option
def cache_list(as_json: bool) -> None:
    """List the records, yours first."""
    from .records.upkeep import list_records
    from .report.tables import print_records

    rows = list_records()
    _print_json(rows) if as_json else print_records(rows)


@cache.command("why")
@problem_options
@space_option
@click.option("--policy", default="compatible", show_default=True, help="strict, compatible or any.")
@json_option
def cache_why(op: str, shape: str, as_json: bool, space_file: str | None, **options: Any) -> None:
    """Say which record would be used, and why not others."""
    from .problem import parse_shape
    from .runtime import why

    _use_space(space_file)
    told = why(op, shape=parse_shape(shape), **options)
    if as_json:
        _print_json(told)
        return
    click.echo(told["hit"])
    for reason in told["reasons"]:
        click.echo(f"  {reason}")


@cache.command("verify")
@json_option
def cache_verify(as_json: bool) -> None:
    """Run the gates again on records that are not exact.

    Those are the ones whose compiler, measurement policy or package version changed.
    """
    from .records.upkeep import verify_records
    from .report.tables import print_verified

    rows = verify_records()
    _print_json(rows) if as_json else print_verified(rows)
    if any(row["status"] == "rejected" for row in rows):
        raise SystemExit(1)


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show device, compiler, folders and libraries."""
    from .report.doctor import examine, print_findings

    findings = examine()
    _print_json(findings) if as_json else print_findings(findings)
    if not findings["ok"]:
        raise SystemExit(2)


def _use_space(path: str | None) -> None:
    if path is not None:
        from .registry import use_file

        use_file(Path(path))


def _read_json(path: str, part: str) -> dict[str, Any]:
    """Recorded data with a list called `part`. Raises CacheError in one line for anything else."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CacheError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get(part), list):
        raise CacheError(f"{path}: want a recording with a list of {part}")
    return found


def _progress(quiet: bool) -> Callable[[str], None]:
    """Prints what goes on to standard error, one line over the other where that is a terminal."""

    def say(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            click.echo(f"\r\033[K{text[:100]}", err=True, nl=False)

    return say


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every foreseen error is one line on standard error."""
    _open_standard_streams()
    try:
        cli.main(args=arguments, prog_name="kernsearch", standalone_mode=False)
    except KernsearchError as error:
        _complain(str(error))
        if isinstance(error, NothingSurvived):
            for reason, count in sorted(error.reasons.items(), key=lambda item: (-item[1], item[0])):
                click.echo(f"  {count:5d}  {reason}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _complain(error.format_message())
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted; no record was changed, and trials that had ended are kept")
        sys.exit(130)
    except _ReaderGone:  # that is the reader's right; what is still to be flushed goes nowhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.exit(0)
    except MemoryError:
        _complain("out of memory")
        sys.exit(2)
    except OSError as error:  # what the system refuses: files, processes, descriptors, a full disk behind our output
        where = f"{error.filename!r}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        sys.exit(2)


def _open_standard_streams() -> None:
    """Standard streams that the caller has closed become empty ones: no file opened later may take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  as long as the process


def _complain(message: str) -> None:
    click.echo("kernsearch: " + " ".join(message.split()), err=True)


if __name__ == "__main__":
    main()
