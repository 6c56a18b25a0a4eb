"""Templates of transpose: one module for each backend, each with its `templates()`."""

from __future__ import annotations

from kernsearch.template import Template, in_folder


def templates() -> tuple[Template, ...]:
    """Those of every module of this folder."""
    return in_folder(__name__, __path__)
