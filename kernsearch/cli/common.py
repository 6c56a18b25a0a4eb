"""What the commands share: options that name a problem, how data is read, and how things are said."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_MORE = "kernsearch.options"  # where the context keeps what --option gives


def _pairs(context: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    """Keep NAME=VALUE pairs for `named_options`."""
    if wrong := [text for text in given if not text.partition("=")[2]]:
        raise click.BadParameter(f"{wrong[0]!r}: want NAME=VALUE, like result=log")
    names = [text.partition("=")[0] for text in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.BadParameter(f"{twice[0]!r} is given twice: want each option once")
    context.meta[_MORE] = {name: value for name, _, value in (text.partition("=") for text in given)}


def op_options(words: list[str], known: set[str]) -> list[str]:
    """The words of a command line with `--kv-heads 4` or `--kv-heads=4`, an option that some op has and no command
    knows, as `--option kv_heads=4`; `--return-lse` without a value as true."""
    strange = [w for w in words if w.startswith("--") and w.partition("=")[0] not in {*known, "--help", "--"}]
    if not strange:
        return words
    from ..registry import ops

    names = {spec.name for op in ops().values() for spec in (*op.options, *op.spellings)}
    found, left = [], deque(words)
    while left:
        name, equals, value = (word := left.popleft()).partition("=")
        own = name.removeprefix("--").replace("-", "_")
        if word not in strange or own not in names:
            found.append(word)
            continue
        if not equals:
            value = left.popleft() if left and not left[0].startswith("--") else "true"
        found += ["--option", f"{own}={value}"]
    return found


def given_twice(command: click.Command, words: list[str], context: click.Context) -> str | None:
    """An option of one value that a command line, or that of a command below, gives more than once, as "--shape"."""
    inner = click.Context(command, parent=context)
    _, left, order = command.make_parser(inner).parse_args(list(words))
    for param in set(order):
        many = not isinstance(param, click.Option) or param.multiple or param.is_flag or param.count
        if not many and order.count(param) > 1:
            return param.opts[0]
    below = command.commands.get(left[0]) if isinstance(command, click.Group) and left else None
    return None if below is None else given_twice(below, left[1:], inner)


def want_alone(what: str, *allowed: str) -> None:
    """A usage error for an argument on the command line that has no say beside `what`, as "--from". `allowed`: the
    parameters that have one."""
    context = click.get_current_context()
    for param in context.command.params:
        said = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        if said and param.name not in allowed:
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{name} beside {what}: want one or the other")


def named_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the problem, those of --option among them. A usage error for one that is given both ways."""
    more = click.get_current_context().meta.get(_MORE, {})
    if twice := [name for name in more if options.get(name) is not None]:
        raise click.UsageError(f"--option {twice[0]}={more[twice[0]]} beside --{twice[0]}: want one or the other")
    return {**options, **more}


def problem_options(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """`OP --shape … --dtype … --device … --layout … --epilogue …`, shared by all commands that name a problem."""
    for decorate in (
        click.option("--epilogue", default=None, metavar="LIST",
                     help="Of gemm: none, or a comma list of bias, one of relu|gelu|gelu_tanh|silu, residual. The "
                          "activation is always last: act(alpha A B + bias + beta C).  [default: none]"),
        click.option("--option", multiple=True, expose_value=False, callback=_pairs, metavar="NAME=VALUE",
                     help="Any option of the op, like result=log for softmax; or by its name, --result log."),
        click.option("--layout", default=None,
                     help="How arrays are stored; of gemm: n as is, t transposed, A first.  [default: nn]"),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
        click.option("--dtype", default=None, help="Default: float32 on the CPU, bfloat16 on CUDA."),
        click.option("--shape", required=required, metavar="SIZES",
                     help="In the op's order, joined by x: MxNxK of gemm, MxN of softmax, BxHxQxKxD of attention."),
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


def named_problems(
    op: str | None, shape: str | None, workload: str | None, device: str, named: dict[str, Any]
) -> tuple[list[Any], Any]:
    """The problems that a command names, one or a whole workload, and the device. `named`: dtype and options."""
    from .. import backends, registry
    from .. import workload as workloads
    from ..problem import parse_shape

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


def present(device: str, instead: str) -> None:
    """Raise DeviceError unless the device can be used here; `instead` says what can be seen of one that cannot."""
    from .. import backends
    from ..errors import DeviceError

    try:
        backends.resolve(device)
    except DeviceError as error:
        known = device.partition(":")[0] in ("cuda", *backends.names())
        raise DeviceError(f"{error}; {instead}" if known and instead else str(error)) from error


def recorded_on(device: str, name: str) -> str:
    """How to see the shipped recordings of a name that are of a kind of device, in words; "" where there is none."""
    from ..cases import recordings

    return recordings.seen(name, device.partition(":")[0])


def use_space(path: str | None) -> None:
    if path is not None:
        from ..registry import use_file

        use_file(Path(path))


def progress(quiet: bool) -> Callable[[str], None]:
    """Prints what goes on to standard error: one line over the other where that is a terminal, now and then else."""
    from ..report.progress import PLAIN_EVERY_S

    terminal, last = sys.stderr.isatty(), time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if quiet:
            return
        if terminal:
            click.echo(f"\r\033[K{text[:100]}", err=True, nl=False)
        elif time.monotonic() - last >= PLAIN_EVERY_S:
            last = time.monotonic()
            click.echo(text, err=True)

    return say


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def complain(message: str) -> None:
    click.echo("kernsearch: " + " ".join(message.split()), err=True)
