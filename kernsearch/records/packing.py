"""Many records that say much the same, in one file: what is said twice is kept once.

    {"index": {problem: [[first, count], ...]}, "lines": [...], "shared": [...], "records": [...]}

{"$": n} stands for shared[n], and {"$lines": [n, ...]} for a text of lines[n], ... A record is whole, or it is
[n, changes]: as record n but for the changes, each a path and the value there; a path that ends with [start, stop] is
a stretch of a list. The index has the records of each problem, whatever its shape.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from .. import json_text
from ..problem import Problem

_PARTS = ("lines", "shared", "records", "index")
WORTH = 24  # characters of JSON from which a value is worth sharing
_BREAK = re.compile(r"\n(?![\s}#]|$)|\n(?=#(?:define|pragma once))")  # a line begins that belongs to none before it


def pack(records: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON of plain records (no key may be "$" or "$lines"), one on a line. Equal records give equal bytes.

    A record is kept as changes of the first that has its variant and as much of its problem as possible.
    """
    lines: dict[str, int] = {}
    trees: list[Any] = []
    first: dict[tuple[Any, ...], int] = {}
    rows: list[Any] = []
    problems = []
    for record in records:
        tree, like = _split(record, lines), _kind(record)
        problems.append(_shapeless(record))
        starts = [like[:length] for length in range(len(like), 0, -1)]
        base = next((first[start] for start in starts if start in first), None)
        rows.append(tree if base is None else [base, list(_changes(trees[base], tree, ()))])
        for start in starts:
            first.setdefault(start, len(trees))
        trees.append(tree)
    counts: Counter[bytes] = Counter()
    for row in rows:
        _count(row, counts)
    table = _Table(counts)
    packed = [table.packed(row, top=True) for row in rows]
    index = [msgspec.json.encode(key) + b": " + msgspec.json.encode(runs) for key, runs in _runs(problems).items()]
    parts = [b",\n".join(index), *(b",\n".join(map(msgspec.json.encode, p)) for p in (lines, table.rows, packed))]
    return b'{"index": {\n%s\n},\n"lines": [\n%s\n],\n"shared": [\n%s\n],\n"records": [\n%s\n]}\n' % tuple(parts)


def _kind(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a record is like, the coarse first."""
    if "problem" not in record or "variant" not in record:
        return ()
    problem = Problem.from_json(record["problem"])
    return (record["variant"], problem.op, problem.dtype, *problem.options)


def _shapeless(record: Mapping[str, Any]) -> str:
    return Problem.from_json(record["problem"]).at(()).key if "problem" in record else ""


def _runs(keys: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Where each key is: (first, count) of its runs."""
    found: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for key, run in groupby(keys):
        count = len(list(run))
        found.setdefault(key, []).append((start, count))
        start += count
    return found


class Packed:
    """A file that `pack` made, of which each record is put together when it is asked for."""

    def __init__(self, data: bytes):
        """Raises ValueError for any other file."""
        parts = json_text.parse(data, lambda read: [read[name] for name in _PARTS], "a file of packed records")
        self._lines, self._shared, self._rows = parts[:-1]
        self._index: dict[str, list[tuple[int, int]]] = parts[-1]
        self._bases: dict[tuple[int, str], Any] = {}
        self._told: dict[tuple[int, str], list[tuple[list[Any], Any]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, problem: Problem) -> list[int]:
        """Where the records of a problem are, at all its shapes."""
        return [n for first, count in self._index.get(problem.at(()).key, ()) for n in range(first, first + count)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index
        while isinstance(self._rows[row], list):
            row = self._rows[row][0]
        return {name: self.field(index, name) for name in self._rows[row]}

    def field(self, index: int, name: str) -> Any:
        """One field of a record."""
        return self._joined(self._field(index, name))

    def _field(self, index: int, name: str) -> Any:
        """The field as the file has it, with the changes of its record."""
        row = self._rows[index]
        if isinstance(row, dict):
            return row[name]
        base, changes = row
        if (base, name) not in self._bases:
            self._bases[base, name] = self._field(base, name)
        return self._changed(self._bases[base, name], self._changes(changes, name))

    def _changes(self, changes: Any, name: str) -> list[tuple[list[Any], Any]]:
        """Those of one field, without its name; what many records share is read once."""
        key = (changes["$"], name) if isinstance(changes, dict) else None
        if key in self._told:
            return self._told[key]
        opened = (self._open(change) for change in self._open(changes))
        pairs = ((self._joined(path), value) for path, value in opened)
        found = [(path[1:], value) for path, value in pairs if path[0] == name]
        if key is not None:
            self._told[key] = found
        return found

    def _changed(self, value: Any, changes: list[tuple[list[Any], Any]]) -> Any:
        if not changes:
            return value
        if not changes[0][0]:
            return changes[0][1]
        value = self._open(value)
        fresh: Any = dict(value) if isinstance(value, dict) else list(value)
        below: dict[Any, list[tuple[list[Any], Any]]] = {}
        for path, new in changes:
            if isinstance(path[0], list):
                fresh[path[0][0] : path[0][1]] = self._open(new)
            else:
                below.setdefault(path[0], []).append((path[1:], new))
        for key, inner in below.items():
            fresh[key] = self._changed(fresh[key], inner)
        return fresh

    def _open(self, value: Any) -> Any:
        while isinstance(value, dict) and value.keys() == {"$"}:
            value = self._shared[value["$"]]
        return value

    def _joined(self, value: Any) -> Any:
        value = self._open(value)
        if isinstance(value, dict):
            if value.keys() == {"$lines"}:
                return "\n".join([self._lines[n] for n in self._open(value["$lines"])])
            return {key: self._joined(item) for key, item in value.items()}
        return [self._joined(item) for item in value] if isinstance(value, list) else value


def _split(value: Any, lines: dict[str, int]) -> Any:
    if isinstance(value, str) and "\n" in value:
        return {"$lines": [lines.setdefault(line, len(lines)) for line in _BREAK.split(value)]}
    if isinstance(value, Mapping):
        return {key: _split(item, lines) for key, item in value.items()}
    return [_split(item, lines) for item in value] if isinstance(value, list | tuple) else value


def _changes(old: Any, new: Any, path: tuple[Any, ...]) -> Iterable[list[Any]]:
    """What makes one value of another, in the order of their parts."""
    if isinstance(old, dict) and isinstance(new, dict) and list(old) == list(new):
        for key in old:
            yield from _changes(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (was, is_) in enumerate(zip(old, new, strict=True)):
            yield from _changes(was, is_, (*path, place))
    elif isinstance(old, list) and isinstance(new, list):
        start = next((n for n, (was, is_) in enumerate(zip(old, new, strict=False)) if was != is_),
                     min(len(old), len(new)))  # fmt: skip
        most = min(len(old), len(new)) - start
        same = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
        yield [[*path, [start, len(old) - same]], new[start : len(new) - same]]
    elif type(old) is not type(new) or old != new:
        yield [list(path), new]


def _key(value: Any) -> bytes | None:
    """What identifies a value, or None when it is too short to share."""
    key = msgspec.json.encode(value) if isinstance(value, str | list | dict) else b""
    return key if len(key) >= WORTH else None


def _count(value: Any, counts: Counter[bytes]) -> None:
    if (key := _key(value)) is not None:
        counts[key] += 1
        if counts[key] > 1:
            return  # its parts are shared with it
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _count(item, counts)


class _Table:
    """Shared values, each after those it stands on."""

    def __init__(self, counts: Counter[bytes]):
        self._counts = counts
        self._index: dict[bytes, int] = {}
        self.rows: list[Any] = []

    def packed(self, value: Any, *, top: bool = False) -> Any:
        key = None if top else _key(value)
        if key is not None and key in self._index:
            return {"$": self._index[key]}
        if isinstance(value, dict):
            value = {name: self.packed(item) for name, item in value.items()}
        elif isinstance(value, list):
            value = [self.packed(item) for item in value]
        if key is None or self._counts[key] == 1:
            return value
        self._index[key] = len(self.rows)
        self.rows.append(value)
        return {"$": self._index[key]}
