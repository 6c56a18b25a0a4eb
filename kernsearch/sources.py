"""Kernel sources: where they are, and which tokens they hold.

Two sources with equal tokens compile to the same program: comments and white space do not count, so editing a comment
invalidates no record and no compiled object.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

GENERATED = "ks_generated.h"  # written by the compiler driver, part of no source
_BASE = "kernsearch.cuh"  # which the generated header of a CUDA kernel includes

_TOKEN = re.compile(
    r"""
      (?P<skip>  //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) | \\\n | [^\S\n]+ )
    | (?P<line>  \n )
    | (?P<word>  (?:L|u8|u|U)?"(?:\\.|[^"\\\n])*" | (?:L|u|U)?'(?:\\.|[^'\\\n])*'
               | \.?[0-9](?:[eEpP][+-]|[\w.'])* | [^\W\d]\w*
               | <<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|. )
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'#\x1finclude\x1f"([^"]+)"')


@cache
def kernels_folder() -> Path:
    """The folder of the sources that come with the package."""
    import kernsearch.kernels as kernels

    return Path(next(iter(kernels.__path__)))


def include_folders() -> tuple[Path, ...]:
    """Folders searched for `#include "..."` after the folder of the including file."""
    return tuple(kernels_folder() / "common" / language for language in ("c", "cuda"))


def path_of(source: str) -> Path:
    """The file of a source as plans name it: a path below the kernels folder, or an absolute path."""
    return kernels_folder() / source  # joining an absolute path gives that path


def tokens(path: str | Path) -> str:
    """sha256 of the tokens of a source and of the project headers it includes, directly or not.

    `path` is absolute or below the kernels folder. Headers that are not found (those of the system, the generated one)
    count by name only. Raises OSError when the source cannot be read.
    """
    if _unchanging:
        return _tokens_once(path_of(str(path)))
    return _tokens(path_of(str(path)))


@contextlib.contextmanager
def unchanging() -> Iterator[None]:
    """While it is open, sources are taken not to change: each is looked at once."""
    _tokens_once.cache_clear()
    _unchanging.append(True)
    try:
        yield
    finally:
        _unchanging.pop()


_unchanging: list[bool] = []


@cache
def _tokens_once(path: Path) -> str:
    return _tokens(path)


def _tokens(path: Path) -> str:
    digest = hashlib.sha256()
    for text in _closure(path):
        digest.update(text.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


def headers(path: str | Path, generated: str = "") -> dict[str, Path]:
    """Files of the project headers that a source and its generated header include, by the names in `#include`.

    Directly or not. Raises OSError when the source cannot be read, ValueError when one name means two files.
    """
    found: dict[str, Path] = {}
    source = path_of(str(path))
    waiting = [_find(name, source.parent) for name in _INCLUDE.findall(normalized(generated))]
    for start in (source, *(file for file in waiting if file is not None)):
        for file in _files(start):
            if file != source.resolve():
                found.setdefault(file.name, file)
            for name, header in _includes(file):
                if header is not None and found.setdefault(name, header) != header:
                    raise ValueError(f"two headers are included as {name!r}")
    return found


def _closure(path: Path) -> Iterator[str]:
    """Normalized texts of a source and its headers, each once, in the order of inclusion."""
    return map(text, _files(path))


def _files(path: Path) -> Iterator[Path]:
    waiting, seen = [path.resolve()], set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file
        waiting += [header for _, header in reversed(_includes(file)) if header is not None]


def _includes(file: Path) -> list[tuple[str, Path | None]]:
    names = _INCLUDE.findall(text(file))
    if file.suffix == ".cu" and GENERATED in names:
        names.insert(names.index(GENERATED), _BASE)
    return [(name, _find(name, file.parent)) for name in names]


def _find(name: str, beside: Path) -> Path | None:
    if Path(name).name == GENERATED:
        return None
    for folder in (beside, *include_folders()):
        if (folder / name).is_file():
            return (folder / name).resolve()
    return None


def text(file: Path) -> str:
    """The normalized text of a file; read again when it changes. Raises OSError when it cannot be read."""
    found = file.stat()
    return _file_text(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _file_text(path: Path, mtime_ns: int, size: int) -> str:
    return normalized(path.read_text(encoding="utf-8", errors="surrogateescape"))


def normalized(text: str) -> str:
    """The tokens of C or CUDA text, joined by a separator; lines matter only for preprocessor directives."""
    lines: list[list[str]] = [[]]
    after = 0  # where the last token ended
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "line":
            lines.append([])
        elif match.lastgroup == "word":
            word, line = match.group(), lines[-1]
            if word == "(" and len(line) == 3 and line[:2] == ["#", "define"] and match.start() == after:
                line.append("\x1e")  # `#define F(x)` is not `#define F (x)`
            line.append(word)
            after = match.end()
    out = ""
    for line in lines:
        if line:
            mark = "\n" if line[0] == "#" else "\x1f"
            out += ("\n" if line[0] == "#" and not out.endswith("\n") else "") + "\x1f".join(line) + mark
    return out
