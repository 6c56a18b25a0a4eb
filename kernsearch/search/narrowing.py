"""What --fix and --variant leave of the spaces of all variants, and the hash that tells spaces apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from ..errors import SpaceError
from ..feasible import FeasibleSpace


def domains_of(variants: Mapping[str, FeasibleSpace]) -> dict[str, tuple[int, ...]]:
    """The union of the domains of each letter, in ascending order."""
    union: dict[str, set[int]] = {}
    for space in variants.values():
        for name, values in space.domains.items():
            union.setdefault(name, set()).update(values)
    return {name: tuple(sorted(values)) for name, values in union.items()}


def space_hash(variants: Mapping[str, FeasibleSpace], identity: Iterable[str]) -> str:
    spaces = {name: {letter: list(v) for letter, v in space.domains.items()} for name, space in variants.items()}
    text = json.dumps([spaces, sorted(identity)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def narrowed(
    variants: Mapping[str, FeasibleSpace], fix: Mapping[str, int], variant: str | None
) -> dict[str, FeasibleSpace]:
    """The variants and values that --variant and --fix leave; a variant without a fixed letter is left out."""
    if not variants:
        raise SpaceError("no variant to search: no program of this problem matches the templates of this device")
    if variant is not None and variant not in variants:
        raise SpaceError(f"variant {variant!r}: want one of {', '.join(variants)}")
    chosen = {variant: variants[variant]} if variant is not None else dict(variants)
    domains = domains_of(chosen)
    for name, value in fix.items():
        if name not in domains:
            raise SpaceError(f"parameter {name!r}: want one of {', '.join(sorted(domains)) or 'none'}")
        if value not in domains[name]:
            raise SpaceError(f"{name}={value}: want one of {', '.join(map(str, domains[name]))}")
    left = {
        name: space.narrowed(fix)
        for name, space in chosen.items()
        if all(value in space.domains.get(letter, ()) for letter, value in fix.items())
    }
    if not left:
        raise SpaceError(f"no variant allows {' with '.join(f'{k}={v}' for k, v in fix.items())}")
    return left
