"""Templates of a folder: one module for each family, each with its `templates()`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from .template import Template


def in_folder(package: str, path: Iterable[str]) -> tuple[Template, ...]:
    """Those of every module of a package that has some; `path` is the package's `__path__`."""
    modules = (importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path))
    return tuple(template for module in modules for template in getattr(module, "templates", tuple)())
