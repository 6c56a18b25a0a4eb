"""The figures: `python benchmarks/figures.py all` on an idle machine, or one of its parts.

Each part writes benchmarks/results/<figure>-<device>.json, with the machine, the versions, the date and the load it ran
under; `report` makes the table in benchmarks/results/README.md from them.
"""

from __future__ import annotations

import argparse

import attention_cpu
import breadth
import compare
import resolution
import search
import softmax_rows
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
    many = add("eight", "eight shapes of every kind against NumPy's BLAS; bfloat16 against torch")
    many.add_argument("--dtype", default="float32", choices=sorted(breadth.FLOORS))
    many.add_argument("--tune", action="store_true", help="tune the shapes first")
    many.add_argument("--rounds", type=int, default=None, help="interleaved rounds in each process")
    wide = add("softmax", "rows of four lengths against torch.softmax(out=)")
    wide.add_argument("--tune", action="store_true", help="tune the shapes first")
    wide.add_argument("--rounds", type=int, default=None, help="interleaved rounds in each process")
    heads = add("attention", "eight heads, whole and causal, against torch's scaled_dot_product_attention")
    heads.add_argument("--tune", action="store_true", help="tune the shapes first")
    heads.add_argument("--rounds", type=int, default=None, help="interleaved rounds in each process")
    add("untuned", "default candidates of twenty shapes against NumPy")
    add("near", "records of near shapes against tuning; takes about 15 minutes")
    sharp = add("resolution", "play-offs of a kernel with itself, and with a planted difference of 2 percent")
    sharp.add_argument("--runs", type=int, default=resolution.RUNS, help="of each kind")
    add("cases", "the case studies of CPUs, recorded where shipped recordings lie")
    add("cpu", "eight in all dtypes, tuned first; untuned, small, near, resolution, quality: some hours")
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
        case "eight":
            breadth.eight(given.dtype, given.tune, given.rounds)
        case "softmax":
            softmax_rows.rows(given.tune, given.rounds)
        case "attention":
            attention_cpu.heads(given.tune, given.rounds)
        case "untuned":
            breadth.untuned()
        case "near":
            breadth.near()
        case "resolution":
            resolution.resolution(given.runs)
        case "cases":
            breadth.cases()
        case "cpu":
            breadth.cases()
            for dtype in breadth.FLOORS:
                breadth.eight(dtype, tune=True)
            breadth.untuned()
            compare.small(True, None)
            compare.control(None)
            resolution.resolution()
            breadth.near()
            search.quality()
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
