"""Many records that say much the same, in one file: what is said twice is kept once.

    {"lines": [...], "shared": [...], "records": [...]}

{"$": n} stands for shared[n], and {"$lines": [n, ...]} for a text of lines[n], ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

WORTH = 24  # characters of JSON from which a value is worth sharing


def pack(records: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON of plain records (no key may be "$" or "$lines"), one on a line. Equal records give equal bytes."""
    lines: dict[str, int] = {}
    trees = [_split(record, lines) for record in records]
    counts: Counter[bytes] = Counter()
    for tree in trees:
        _count(tree, counts)
    table = _Table(counts)
    packed = [table.packed(tree, top=True) for tree in trees]
    parts = [b",\n".join(map(msgspec.json.encode, part)) for part in (lines, table.rows, packed)]
    return b'{"lines": [\n%s\n],\n"shared": [\n%s\n],\n"records": [\n%s\n]}\n' % tuple(parts)


class Packed:
    """A file that `pack` made, of which each record is put together when it is asked for."""

    def __init__(self, data: bytes):
        """Raises ValueError for any other file."""
        try:
            read = msgspec.json.decode(data)
            self._lines, self._shared, self._rows = read["lines"], read["shared"], read["records"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ValueError(f"not a file of packed records ({type(error).__name__}: {error})") from error

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._joined(self._rows[index])

    def field(self, index: int, name: str) -> Any:
        """One field of a record."""
        return self._joined(self._rows[index][name])

    def _joined(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$"}:
                return self._joined(self._shared[value["$"]])
            if value.keys() == {"$lines"}:
                return "\n".join([self._lines[n] for n in value["$lines"]])
            return {key: self._joined(item) for key, item in value.items()}
        return [self._joined(item) for item in value] if isinstance(value, list) else value


def _split(value: Any, lines: dict[str, int]) -> Any:
    if isinstance(value, str) and "\n" in value:
        return {"$lines": [lines.setdefault(line, len(lines)) for line in value.split("\n")]}
    if isinstance(value, Mapping):
        return {key: _split(item, lines) for key, item in value.items()}
    return [_split(item, lines) for item in value] if isinstance(value, list | tuple) else value


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
