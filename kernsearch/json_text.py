"""JSON that others wrote, or that was damaged on its way: one reader for all of it, and one kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_OTHER_SHAPE = (LookupError, TypeError, AttributeError, msgspec.ValidationError)  # of data that `make` did not expect


def parse(text: str | bytes, make: Callable[[Any], T], what: str, *, nan: bool = False) -> T:
    """What `make` makes of JSON; `what` says what that is, as "a record". `nan` allows the numbers NaN and Infinity,
    which are no JSON but which many write.

    Raises ValueError in one line for what is not UTF-8, is no JSON or is nested too deep, and for data that `make`
    does not take; what other errors it raises are let through.
    """
    try:
        data = json.loads(_decoded(text)) if nan else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"it is not {what} ({_reason(error)})") from error
    return made(data, make, what)


def read(path: Path, make: Callable[[Any], T], what: str, *, nan: bool = False) -> T:
    """As `parse` of a file. Raises OSError too, when it cannot be read."""
    return parse(path.read_bytes(), make, what, nan=nan)


def made(data: Any, make: Callable[[Any], T], what: str) -> T:
    """What `make` makes of plain data. Raises ValueError in one line where the data has another shape than `make`
    takes."""
    try:
        return make(data)
    except _OTHER_SHAPE as error:
        raise ValueError(f"it is not {what} ({type(error).__name__}: {' '.join(str(error).split())})") from error


def holding(key: str) -> Callable[[Any], dict[str, Any]]:
    """Takes an object that has a list under that key."""

    def make(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise ValueError(f"it holds no list of {key}")
        return data

    return make


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"not text: byte {error.start + 1} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        at_end = error.pos >= len(error.doc.rstrip()) - 1 and not error.msg.startswith("Extra data")
        cut = at_end or error.msg.startswith("Unterminated")
        return f"truncated: {error}" if cut else f"not JSON: {error}"
    return f"not JSON: {error}"
