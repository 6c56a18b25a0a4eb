"""A made-up problem to search: three variants that share letters, and what each candidate would take."""

from __future__ import annotations

from collections.abc import Mapping

from kernsearch.device import Device
from kernsearch.feasible import FeasibleSpace
from kernsearch.search import Search
from kernsearch.space import Constraint, Param

DEVICE = Device("cpu", 0, "any", "any", "any")
POWERS = (8, 16, 32, 64, 128)
BLOCK = Constraint("block is too big", lambda c, d, s: c["BM"] * c["BN"] <= 2048)
SPLITS = Constraint("more slabs than K", lambda c, d, s: c["SPLIT"] <= s["K"])


def variants() -> dict[str, FeasibleSpace]:
    bm, bn = Param("BM", POWERS, "rows"), Param("BN", POWERS, "columns")
    tm = Param("TM", (1, 2, 4, 8), "rows of a thread")
    sizes = {"M": 300, "N": 200, "K": 6}
    return {
        "tile": FeasibleSpace((bm, bn, tm), (BLOCK,), DEVICE, sizes),
        "split+combine": FeasibleSpace(
            (Param("BM", (4, 8, 16), "rows"), bn, Param("SPLIT", (2, 4, 8), "slabs")), (BLOCK, SPLITS), DEVICE, sizes
        ),
        "naive": FeasibleSpace((), (), DEVICE, sizes),
    }


def one_variant(*values: int) -> dict[str, FeasibleSpace]:
    return {"only": FeasibleSpace((Param("BM", values, "rows"),), (), DEVICE, {})}


def seconds(variant: str, config: Mapping[str, int]) -> float:
    """Least, 0.001, for tile with BM=64 BN=32 TM=4."""
    if variant in ("naive", "only"):
        return 1.0 + sum(config.values())
    far = abs(config["BM"].bit_length() - 7) + abs(config["BN"].bit_length() - 6)
    return 0.001 * (1 + far + (3 if variant != "tile" else abs(config["TM"].bit_length() - 3)))


def work(search: Search, most: int = 10_000) -> None:
    """Ask and tell until nothing is left: one in seven fails to compile."""
    for _ in range(most):
        ask = search.ask()
        if ask is None:
            return
        if sum(ask.config.values()) % 7 == 3:
            search.tell_rejected(ask, "compile", "does not compile")
        else:
            search.tell_measured(ask, seconds(ask.variant, ask.config), {"gflops": 1.23456})
    raise AssertionError("the search does not end")
