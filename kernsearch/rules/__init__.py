"""Rewrite rules: named functions from a program to equivalent programs, each with the site where it applied.

Phases run in order: algebra changes values, fusion and split change the partition, schedule annotates kernels. A rule
knows neither templates nor ops; what is kept is decided by the caller of the rules.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import KernsearchError
from ..program import Program, Site

PHASES = ("algebra", "fusion", "split", "schedule")
Rewrites = Iterator[tuple[Site, Program]]


@dataclass(frozen=True)
class Rule:
    name: str
    phase: str
    rewrites: Callable[[Program], Rewrites]

    def __call__(self, program: Program) -> Rewrites:
        return self.rewrites(program)


@dataclass(frozen=True)
class Step:
    """A rule applied at a site."""

    rule: str
    site: Site

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "site": self.site.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Step:
        return cls(data["rule"], Site.from_json(data["site"]))


_rules: dict[str, Rule] = {}


def rule(phase: str) -> Callable[[Callable[[Program], Rewrites]], Rule]:
    """Register a generator of (site, program) as a rule of that phase; its name is the function's."""
    assert phase in PHASES

    def register(function: Callable[[Program], Rewrites]) -> Rule:
        name = function.__name__
        if name in _rules:
            raise ValueError(f"rule {name!r} is defined twice")
        _rules[name] = Rule(name, phase, function)
        return _rules[name]

    return register


@cache
def _load() -> None:
    for module in ("algebra", "fusion", "split"):
        importlib.import_module(f"{__name__}.{module}")


def all_rules(phase: str | None = None) -> tuple[Rule, ...]:
    """All rules, or those of one phase, in order of phase and definition."""
    _load()
    chosen = [r for r in _rules.values() if phase in (None, r.phase)]
    return tuple(sorted(chosen, key=lambda r: PHASES.index(r.phase)))


def replay(root: Program, steps: Sequence[Step]) -> Program:
    """The program that the steps lead to. Raises KernsearchError when a step does not apply: the record was made by
    other rules."""
    from . import schedule

    _load()
    program = root
    for number, step in enumerate(steps):
        if step.rule in schedule.KINDS:
            found = schedule.apply(program, step.site)
        else:
            known = _rules.get(step.rule)
            found = next((q for site, q in known(program) if site == step.site), None) if known else None
        if found is None:
            raise KernsearchError(f"step {number + 1}, {step.rule}: does not apply here; want the rules it was made by")
        program = found
    return program
