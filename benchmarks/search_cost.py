"""Processor time of the search itself: what one trial costs, candidates, predictions and writes together.

    python benchmarks/search_cost.py [--trials 500] [--searcher expected] [--storage sqlite|journal|memory]

A made-up space of three variants and some hundred thousand candidates; nothing is compiled or timed. All threads of the
process count. Prints milliseconds of processor time a trial, over all trials and over the last hundred.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from kernsearch.device import Device
from kernsearch.feasible import FeasibleSpace
from kernsearch.search import DEFAULT, Search
from kernsearch.space import Constraint, Param

LAST = 100


def spaces() -> dict[str, FeasibleSpace]:
    """Tiles, stages and warps as a GPU's product kernel has them, with the constraints that usually bind."""
    device = Device("cpu", 0, "any", "any", "any")
    tile = [Param(name, (16, 32, 64, 128, 256), name) for name in ("BM", "BN")]
    rest = [Param("BK", (8, 16, 32, 64), "BK"), Param("STAGES", (1, 2, 3, 4, 6), "stages"),
            Param("WM", (8, 16, 32, 64), "WM"), Param("WN", (8, 16, 32, 64), "WN"),
            Param("VEC", (1, 2, 4, 8), "vector"), Param("GROUP", (1, 2, 4, 8, 16), "group")]  # fmt: skip
    rules = [
        Constraint("warp tiles divide", lambda c, d, s: c["BM"] % c["WM"] == 0 and c["BN"] % c["WN"] == 0),
        Constraint("too many threads", lambda c, d, s: 32 * (c["BM"] // c["WM"]) * (c["BN"] // c["WN"]) <= 1024),
        Constraint("shared memory", lambda c, d, s: 2 * c["STAGES"] * c["BK"] * (c["BM"] + c["BN"]) <= 200_000),
        Constraint("vector", lambda c, d, s: c["BK"] % c["VEC"] == 0),
    ]
    split = Param("SPLIT", (2, 4, 8, 16), "slabs")
    return {
        "tile": FeasibleSpace([*tile, *rest], rules, device, {}),
        "split+combine": FeasibleSpace([*tile, *rest, split], rules, device, {}),
        "tile+map": FeasibleSpace([*tile, *rest], rules, device, {}),
    }


def seconds(variant: str, config: dict[str, int]) -> float:
    """A made-up time with interactions between letters."""
    logs = {name: math.log2(value) for name, value in config.items()}
    far = abs(logs["BM"] - 7) + abs(logs["BN"] - 7) + 0.5 * abs(logs["BM"] - logs["BN"] - logs["WM"] + logs["WN"])
    far += 0.3 * abs(logs["BK"] + logs["STAGES"] - 7) + 0.2 * abs(logs["VEC"] - 2) + 0.1 * abs(logs["GROUP"] - 3)
    return 1e-3 * (1 + 0.2 * far + {"tile": 0.0, "tile+map": 0.1}.get(variant, 0.05 * logs.get("SPLIT", 1.0)))


def cost(searcher: str, trials: int, storage: str, folder: str) -> dict[str, Any]:
    where = {"sqlite": str(Path(folder, "s.db")), "journal": str(Path(folder, "s.log")), "memory": None}[storage]
    marks = []
    with Search("cost", spaces(), searcher=searcher, storage=where, trials=trials) as search:
        marks.append(time.process_time())
        while (ask := search.ask()) is not None:
            search.tell_measured(ask, seconds(ask.variant, ask.config), {"gflops": 1.0, "registers": 64})
            marks.append(time.process_time())
        best = search.best()
    done = len(marks) - 1
    return {
        "searcher": searcher, "storage": storage, "trials": done, "ms": 1e3 * (marks[-1] - marks[0]) / done,
        "ms_last": 1e3 * (marks[-1] - marks[-1 - min(LAST, done)]) / min(LAST, done),
        "best": best.seconds if best else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--searcher", default=DEFAULT)
    parser.add_argument("--storage", default="sqlite")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernsearch-cost-") as folder:
        print(json.dumps(cost(args.searcher, args.trials, args.storage, folder)))


if __name__ == "__main__":
    main()
