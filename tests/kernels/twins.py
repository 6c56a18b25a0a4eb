"""Broken twins of C kernels: plans whose first kernel has another source, made from the true one by replacing text."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kernsearch import sources
from kernsearch.plan import Plan


def flat(text: str, folder: Path, seen: set[Path]) -> str:
    """A text with its headers in it, each once; that which is generated stays named."""

    def included(match: re.Match[str]) -> str:
        near = folder / match[1]
        found = near if near.exists() else sources.kernels_folder() / "common" / "c" / match[1]
        if match[1] == sources.GENERATED:
            return match[0]
        if found.resolve() in seen:
            return ""
        seen.add(found.resolve())
        return flat(found.read_text(), found.parent, seen)

    return re.sub(r'^#include "([^"]+)"', included, text, flags=re.M)


def twin(plan: Plan, changes: dict[str, str], folder: Path) -> Plan:
    """The plan with the sources of its first kernel changed, headers among them."""
    first, *rest = plan.kernels
    source, seen = sources.path_of(first.source), set()
    header = flat(first.header, folder, seen)
    text = flat(source.read_text(), source.parent, seen)
    for old, new in changes.items():
        assert old in header + text
        header, text = header.replace(old, new), text.replace(old, new)
    path = folder / "twin.c"
    path.write_text(text)
    first = msgspec.structs.replace(first, header=header, source=str(path), tokens=sources.tokens(path))
    return msgspec.structs.replace(plan, kernels=(first, *rest))
