"""Where ops and templates are found: the folders under `spaces/`, entry points, and files named by the user."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import ProblemError, SpaceError
from .problem import Problem, whole_sizes
from .space import Op

if TYPE_CHECKING:
    from .template import Template

_extra: list[ModuleType] = []


@cache
def _own() -> tuple[str, ...]:
    spaces = importlib.import_module("kernsearch.spaces")
    return tuple(sorted(m.name for m in pkgutil.iter_modules(spaces.__path__)))


@cache
def _foreign() -> tuple[ModuleType, ...]:
    points = sorted(entry_points(group="kernsearch.spaces"), key=lambda point: point.name)
    return tuple(p.load() for p in points if not p.value.startswith("kernsearch.spaces."))


def _modules() -> list[ModuleType]:
    return [importlib.import_module(f"kernsearch.spaces.{name}") for name in _own()] + list(_foreign()) + _extra


def use_file(path: str | Path) -> ModuleType:
    """Load a space from a Python file: it may define OP, templates() and CASES. Raises SpaceError when it cannot be
    loaded."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(f"kernsearch_space_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SpaceError(f"space file {str(path)!r}: want a readable Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, OSError, NameError, AttributeError, TypeError, ValueError) as error:
        raise SpaceError(f"space file {str(path)!r}: {type(error).__name__}: {error}") from error
    if not any(hasattr(module, name) for name in ("OP", "templates", "CASES")):
        raise SpaceError(f"space file {str(path)!r}: want OP, templates() or CASES")
    _extra.append(module)
    return module


def loaded() -> tuple[ModuleType, ...]:
    """What `use_file` has loaded."""
    return tuple(_extra)


def files() -> list[str]:
    """The files that `use_file` has loaded, for a process that must know the same ops."""
    return [str(module.__file__) for module in _extra]


def ops() -> dict[str, Op]:
    """All ops by name."""
    found = [module.OP for module in _modules() if getattr(module, "OP", None) is not None]
    return {op.name: op for op in sorted(found, key=lambda op: op.name)}


def op(name: str) -> Op:
    """The op of that name. Built-in ops are found without loading anything else."""
    if name in _own():
        own = getattr(importlib.import_module(f"kernsearch.spaces.{name}"), "OP", None)
        if own is not None:
            return own
    known = ops()
    if name not in known:
        raise ProblemError(f"op {name!r}: want one of {', '.join(known)}")
    return known[name]


def problem(
    name: str, shape: Sequence[int] | str, dtype: Any = None, *, backend: str = "cpu", **options: Any
) -> Problem:
    """A checked problem of the op of that name, or of one that it leads to (`Op.spelled`). An option of None is its
    default; a dtype may be NumPy's."""
    if dtype is not None and not isinstance(dtype, str):
        dtype = getattr(dtype, "name", None) or getattr(dtype, "__name__", repr(dtype))
    given = {option: value for option, value in options.items() if value is not None}
    found, sizes = op(name), whole_sizes(shape)
    if found.spelled is not None:
        name, sizes, given = found.spelled(sizes, given)
        found = op(name)
    return found.problem(sizes, dtype, backend=backend, **given)


def public() -> dict[str, str]:
    """Functions that ops offer to `import kernsearch`, by name, each with the module that defines it."""
    return {
        name: f"{module.__name__}.public"
        for module in _modules()
        for name in getattr(getattr(module, "OP", None), "public", ())
    }


def companion(name: str, part: str) -> ModuleType | None:
    """The module `part` in the folder of an op, None when it has none. Raises ProblemError for an unknown op."""
    wanted = op(name)
    for module in _modules():
        if getattr(module, "OP", None) is wanted and hasattr(module, "__path__"):
            full = f"{module.__name__}.{part}"
            return importlib.import_module(full) if importlib.util.find_spec(full) is not None else None
    return None


def _declared(module: ModuleType) -> tuple[Template, ...]:
    """What `templates()` gives; a folder has it in its `templates.py`, so that looking at ops stays light."""
    if hasattr(module, "__path__"):
        name = f"{module.__name__}.templates"
        if importlib.util.find_spec(name) is None:
            return ()
        module = importlib.import_module(name)
    return tuple(getattr(module, "templates", tuple)())


def templates(backend: str) -> tuple[Template, ...]:
    """All templates of a backend, sorted by name. Loads the template modules, so it is for tuning, not the runtime."""
    found = [t for module in _modules() for t in _declared(module) if t.backend == backend]
    names = [t.name for t in found]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SpaceError(f"template {twice[0]!r} on {backend} is declared twice")
    return tuple(sorted(found, key=lambda t: t.name))
