"""The figures: `python benchmarks/figures.py all` on an idle machine, or one of its parts.

Each part writes benchmarks/results/<figure>-<device>.json, with the machine, the versions, the date and the load it ran
under; `report` makes the table in benchmarks/results/README.md from them.
"""

from __future__ import annotations

import argparse

import compare
import search
import starting
from common import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    for name, text in (
        ("mission", "2304x1544x4096 against NumPy's BLAS and other libraries that are installed"),
        ("small", "kernsearch.matmul on 96x96x96 against np.matmul(out=)"),
        ("control", "NumPy against itself by the same method"),
    ):
        command = add(name, text)
        command.add_argument("--rounds", type=int, default=None, help="interleaved rounds in each process")
        if name != "control":
            command.add_argument("--tune", action="store_true", help="tune the shape first")
        if name == "mission":
            command.add_argument("--against", default="numpy", help="libraries, like numpy,torch")
    quality = add("quality", "default searches against a ten times longer one; takes about 35 minutes")
    quality.add_argument("--longer", type=int, default=search.LONGER, help="how many times longer the long search is")
    add("memory", "peak resident memory of tune and its worker")
    add("starting", "processor time of --help and of loading a plan")
    add("graphs", "time to derive the programs of every op")
    add("report", "the table of all results")
    add("all", "everything above, the mission shape tuned first")
    given = parser.parse_args()
    match given.command:
        case "mission":
            compare.mission(given.against.split(","), given.tune, given.rounds)
        case "small":
            compare.small(given.tune, given.rounds)
        case "control":
            compare.control(given.rounds)
        case "quality":
            search.quality(longer=given.longer)
        case "memory":
            search.memory()
        case "starting":
            starting.starting()
        case "graphs":
            starting.graphs()
        case "all":
            starting.starting()
            starting.graphs()
            search.memory()
            compare.mission(["numpy"], True, None)
            compare.control(None)
            compare.small(False, None)
            search.quality()
    print(report())


if __name__ == "__main__":
    main()
