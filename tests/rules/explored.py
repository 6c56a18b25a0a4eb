"""Derivations of the textbook programs, made once, and the equality check that every rule and twin goes through."""

from __future__ import annotations

from functools import cache

import ladders
import numpy as np
import textbook

from kernsearch import registry
from kernsearch.derive import Derivation, explore
from kernsearch.meaning import interpret
from kernsearch.program import Program
from kernsearch.rules import all_rules

LARGE = {"M": 512, "N": 512, "K": 512, "B": 2, "H": 8, "G": 4, "Q": 512, "D": 64, "E": 64, "OFF": 0}
AWKWARD = {"M": 3, "N": 5, "K": 13, "B": 1, "H": 2, "G": 2, "Q": 4, "D": 3, "E": 2, "OFF": 6, "SPLIT": 3}


@cache
def derivation(op: str, backend: str = "cuda", without: str = "") -> Derivation:
    templates = ladders.ALL if backend == "cuda" else registry.templates(backend)
    return explore(textbook.ROOTS[op](), templates, LARGE, [r for r in all_rules() if r.name != without])


def differs(root: Program, program: Program, sizes: dict[str, int], seed: int = 0) -> str:
    """What is wrong with a program that should equal the root; '' when nothing is."""
    x = textbook.inputs(root, sizes, seed)
    want = interpret(root, x, sizes, textbook.SCALARS)
    got = interpret(program, x, sizes, textbook.SCALARS)
    for name, value in want.items():
        if value.shape != got[name].shape:
            return f"{name} has shape {got[name].shape}, want {value.shape}"
        if not np.allclose(got[name], value, rtol=1e-8, atol=1e-11, equal_nan=True):
            return f"{name} is off by {np.nanmax(np.abs(got[name] - value))}"
    return ""


def one_kernel(program: Program) -> bool:
    return len(program.kernels) == 1
