"""What a case declares, and where cases are: `CASES` in the `cases` module of an op's folder, or in a space file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from .. import registry
from ..device import Device
from ..errors import ProblemError, SpaceError
from ..problem import Option
from . import recordings


@dataclass(frozen=True)
class Arm:
    """One candidate of a case.

    label    what a person reads; unique in the case
    shape    sizes in the op's order
    variant  names of templates, the first that this problem has is taken
    fix      letters held; the others get what the model likes best
    like     label of an earlier arm: the other letters get what they have there
    threads  on the CPU, how many to use instead of all
    op       another op than the case's
    flags    compiler flags of all its kernels, beyond the template's
    doubted  the correctness gate may refuse it; then it is timed all the same, and what it would gain is not a win
    warm     caches keep what the run before has left
    zeros    it is timed on inputs that are 0 all over
    best_of  a sample is the shortest of so many runs
    """

    label: str
    shape: tuple[int, ...]
    variant: tuple[str, ...]
    fix: Mapping[str, int] = field(default_factory=dict)
    like: str = ""
    dtype: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    threads: int | None = None
    op: str = ""
    flags: tuple[str, ...] = ()
    doubted: bool = False
    warm: bool = False
    zeros: bool = False
    best_of: int = 1

    def how(self) -> list[str]:
        """In words, what is out of the ordinary in how it is compiled and timed."""
        found = list(self.flags)
        found += ["warm caches"] if self.warm else []
        found += ["inputs of zeros"] if self.zeros else []
        return found + ([f"best of {self.best_of}"] if self.best_of > 1 else [])

    def on(self, device: Device) -> Device:
        """The device as this arm uses it."""
        if self.threads is None:
            return device
        return replace(device, facts={**device.facts, "threads": self.threads})


@dataclass(frozen=True)
class Comparison:
    """Does going from one arm to another pay?

    per     "call" compares seconds, "flop" seconds for each operation
    note    what the model leaves out of this change: told where its prediction is wrong
    slower  what the note explains: that the change takes longer than predicted, or that it takes less (None: either)
    """

    label: str
    before: str
    after: str
    per: str = "call"
    note: str = ""
    slower: bool | None = None


@dataclass(frozen=True)
class Case:
    """A case study.

    claim        the optimization, as someone would recommend it
    mechanism    what may go wrong with it
    arms         the candidates on a device; empty where the case says nothing about that device
    comparisons  the first one is the case's verdict
    means        by verdict, what that says where what wins is not a kernel; "{times}" stands for how many times
    """

    name: str
    op: str
    claim: str
    mechanism: str
    backends: tuple[str, ...]
    arms: Callable[[Device], tuple[Arm, ...]]
    comparisons: Callable[[Device], tuple[Comparison, ...]]
    means: Mapping[str, str] = field(default_factory=dict)


def cases() -> dict[str, Case]:
    """All cases by name, sorted. Raises SpaceError when two have the same name."""
    declaring = [*(registry.companion(op, "cases") for op in registry.ops()), *registry.loaded()]
    found = sorted((case for module in declaring for case in getattr(module, "CASES", ())), key=lambda case: case.name)
    for one, next_one in pairwise(found):
        if one.name == next_one.name:
            raise SpaceError(f"case {one.name!r} is declared twice")
    return {case.name: case for case in found}


def find(name: str) -> Case:
    """The case of that name. Raises ProblemError naming all."""
    known = cases()
    if name not in known:
        raise ProblemError(f"case {name!r}: want one of {', '.join(known)}")
    return known[name]


def listed(found: Iterable[Case]) -> dict[str, Any]:
    """What `case list --json` prints."""
    names = ("name", "op", "claim", "mechanism")
    return {
        "cases": [
            {name: getattr(c, name) for name in names}
            | {"backends": list(c.backends), "recorded": list(recordings.shipped(c.name))}
            for c in found
        ]
    }
