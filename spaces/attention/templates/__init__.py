"""Templates of attention: one module for each family, each with its `templates()`."""

from __future__ import annotations

import importlib
import pkgutil

from kernsearch.template import Template


def templates() -> tuple[Template, ...]:
    """Those of every module of this folder."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return tuple(template for module in modules for template in getattr(module, "templates", tuple)())
