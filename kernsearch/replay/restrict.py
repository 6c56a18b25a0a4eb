"""Restrictions of a recorded space: expressions over its parameters, one a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import json_text
from ..errors import RecordingError

_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.IfExp, ast.Tuple, ast.List, ast.Call,
)  # fmt: skip


@dataclass(frozen=True)
class Restriction:
    """An expression that must hold, and the parameters it reads."""

    text: str
    letters: frozenset[str]
    code: Any

    @classmethod
    def parse(cls, text: str) -> Restriction:
        """Comparisons, arithmetic, and/or/not, min, max, abs over parameters; a single = compares too. Raises
        RecordingError."""
        plain = re.sub(r"(?<![<>=!])=(?!=)", "==", text.replace("·", "*"))
        try:
            tree = ast.parse(plain.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise RecordingError(f"restriction {text!r}: want an expression like 'KWG % KWI == 0'") from error
        functions = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        strange = [n for n in ast.walk(tree) if not isinstance(n, _ALLOWED)
                   or (isinstance(n, ast.Call) and (not isinstance(n.func, ast.Name) or n.keywords))]  # fmt: skip
        if strange or functions - set(_FUNCTIONS):
            raise RecordingError(f"restriction {text!r}: want comparisons and arithmetic of parameters")
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(_FUNCTIONS)
        return cls(text.strip(), frozenset(names), compile(tree, "<restriction>", "eval"))

    def holds(self, config: Mapping[str, Any]) -> bool:
        """What cannot be computed, such as a remainder of a division by zero, does not hold."""
        try:
            return bool(eval(self.code, {"__builtins__": {}, **_FUNCTIONS}, dict(config)))
        except (ArithmeticError, TypeError, ValueError):
            return False


def _strings(data: Any) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(line, str) for line in data):
        raise ValueError("it is not a list of strings")
    return data


def read(path: str | Path) -> list[Restriction]:
    """A file of restrictions: one a line, # begins a comment; or a JSON list of strings. Raises RecordingError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if text.lstrip().startswith("["):
        try:
            lines = json_text.parse(text, _strings, "a list of strings")
        except ValueError as error:
            raise RecordingError(f"{path}: {error}; want one restriction a line, or a JSON list of strings") from error
    found = [Restriction.parse(line) for line in lines if line]
    if not found:
        raise RecordingError(f"{path}: holds no restriction")
    return found
