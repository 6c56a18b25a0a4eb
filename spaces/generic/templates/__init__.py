"""Templates that run anything: one module for each family, each with its `templates()`."""

from __future__ import annotations

from kernsearch.template import Template, in_folder


def templates() -> tuple[Template, ...]:
    """Those of every module of this folder."""
    return in_folder(__name__, __path__)
