"""Workloads: a TOML file that lists problems, for `tune` and `bench`.

[[problem]]
op = "gemm"
shape = "2304x1544x4096"     # or [2304, 1544, 4096]
dtype = "bfloat16"           # left out: the backend's first
layout = "nt"                # options of the op, as on the command line
epilogue = "bias,gelu_tanh"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from . import registry
from .errors import ProblemError
from .problem import Problem

_LIKE = 'want [[problem]] tables, like op = "gemm", shape = "2304x1544x4096", dtype = "bfloat16"'


def read(path: str | Path, backend: str) -> list[Problem]:
    """The problems of a workload file, in its order. Raises ProblemError in one line that names file and entry."""
    name = f"workload {str(path)!r}"
    try:
        data = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise ProblemError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(f"{name}: not UTF-8 text; {_LIKE}") from error
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{name}: not TOML: {error}") from error
    if unknown := sorted(set(data) - {"problem"}):
        raise ProblemError(f"{name}: {unknown[0]!r} is unknown; {_LIKE}")
    entries = data.get("problem")
    if not isinstance(entries, list) or not entries:
        raise ProblemError(f"{name}: no problem; {_LIKE}")
    problems: list[Problem] = []
    for number, entry in enumerate(entries, 1):
        where = f"{name}, problem {number}"
        try:
            problem = _problem(entry, backend)
        except ProblemError as error:
            raise type(error)(f"{where}: {error}") from error
        if problem in problems:
            raise ProblemError(f"{where}: it is problem {problems.index(problem) + 1} again, {problem.key}")
        problems.append(problem)
    return problems


def _problem(entry: Any, backend: str) -> Problem:
    if not isinstance(entry, dict):
        raise ProblemError(f"{entry!r}: {_LIKE}")
    for name in ("op", "shape"):
        if name not in entry:
            raise ProblemError(f"{name} is missing; {_LIKE}")
    op, shape, dtype = (entry.get(name) for name in ("op", "shape", "dtype"))
    if not isinstance(op, str):
        raise ProblemError(f"op {op!r}: want a name")
    if not isinstance(shape, str) and not (isinstance(shape, list) and all(type(size) is int for size in shape)):
        raise ProblemError(f'shape {shape!r}: want sizes, like "2304x1544x4096" or [2304, 1544, 4096]')
    if dtype is not None and not isinstance(dtype, str):
        raise ProblemError(f"dtype {dtype!r}: want a name")
    options = {name: value for name, value in entry.items() if name not in ("op", "shape", "dtype")}
    if wrong := next((name for name, value in options.items() if not isinstance(value, str | int)), None):
        raise ProblemError(f"{wrong} {options[wrong]!r}: want text or a whole number")
    return registry.problem(op, shape, dtype, backend=backend, **options)
