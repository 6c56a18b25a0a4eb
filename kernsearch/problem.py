"""A problem: what to compute, never how."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ProblemError

Option = str | int | bool

DIGITS = 12  # of a size, at most


@dataclass(frozen=True)
class Problem:
    """op + shape + dtype + options. `shape` follows the op's size letters; `options` are sorted pairs.

    Hashable; equal problems have equal `key`.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    def option(self, name: str) -> Option:
        """The value of an option; KeyError when the op has none of that name."""
        return dict(self.options)[name]

    @property
    def key(self) -> str:
        """One readable line, stable across versions: 'gemm 2304x1544x4096 float32 epilogue=none layout=nn'."""
        words = [self.op, "x".join(map(str, self.shape)), self.dtype]
        return " ".join(words + [f"{name}={value}" for name, value in self.options])

    def at(self, shape: tuple[int, ...]) -> Problem:
        """The same problem at another shape."""
        return Problem(self.op, shape, self.dtype, self.options)

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op, "shape": list(self.shape), "dtype": self.dtype, "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        return cls(data["op"], tuple(data["shape"]), data["dtype"], tuple(data["options"].items()))


def parse_shape(text: str) -> tuple[int, ...]:
    """'2304x1544x4096' -> (2304, 1544, 4096). Raises ProblemError for anything but positive sizes joined by 'x'."""
    parts = text.strip().lower().split("x")
    if not all(p.isascii() and p.isdigit() and p.strip("0") for p in parts):
        raise ProblemError(f"shape {text!r}: want positive sizes joined by 'x', like 2304x1544x4096")
    if any(len(p.lstrip("0")) > DIGITS for p in parts):
        raise ProblemError(f"shape {text!r}: a size of more than {DIGITS} digits cannot be held by any device")
    return tuple(map(int, parts))


def whole_sizes(shape: Sequence[int] | str) -> tuple[int, ...]:
    """The sizes of a shape that a caller gave: whole numbers of any kind, or text. Raises ProblemError."""
    if isinstance(shape, str):
        return parse_shape(shape)
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError as error:
        raise ProblemError(f"shape {shape!r}: want whole sizes, like (2304, 1544, 4096)") from error
