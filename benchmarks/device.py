"""What is run on the device machine: `python3 benchmarks/device.py PART --seconds S`, after benchmarks/device_setup.sh.

Each part is boxed in time, does its work in processes of their own so that a crash loses one piece, prints a short
table last and leaves everything else under $OUT (build/out where that is not set), a few files at most.

    gpu-tests   every test that is marked gpu, a process a file
    probe       the device, its clocks under load, versions, `kernsearch doctor`
    tune        goes on with the studies in build/h200, least tuned problems first; $OUT/h200.tar.gz is their new state
    tunes       single problems, as the lines of a file say: what one variant or a few configs come to
    quality     how near a search of 30 and of 120 seconds comes to the records
    table       the figures of the H200 in one run
    bench       one comparison, as `kernsearch bench` makes it
    cases       every case study and a ladder; $OUT/cases.tar.gz is what they have recorded
    sanitize    Compute Sanitizer over one config of each rung, and over faults that it must find
    ncu         Nsight Compute's view of one rung or record
    triton-ir   the intermediate representations of the Triton peer's kernel at one config
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import device_parts as parts
from device_run import Deadline, out

SECONDS = 560.0  # of a command on the device machine, which may take ten minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, function: Callable[..., object], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--seconds", type=float, default=SECONDS, help="stop after so long")
        command.set_defaults(function=function)
        return command

    tests = add("gpu-tests", parts.gpu_tests, "every test that is marked gpu")
    tests.add_argument("files", nargs="*", help="test files; all that hold the marker when none is named")
    tests.add_argument("--jobs", type=int, default=3, help="files at once")
    tests.add_argument("--each", type=float, default=240.0, help="seconds of one file")
    tests.add_argument("-k", dest="select", default="", help="as pytest's")
    add("probe", parts.probe, "the device and its clocks")
    tune = add("tune", parts.tune, "go on tuning a workload")
    tune.add_argument("--workload", type=Path, default=Path("benchmarks/gemm-h200.toml"))
    tune.add_argument("--only", default="", help="regular expression that a problem's key must match")
    tune.add_argument("--enough", type=float, default=600.0, help="problems tuned for so many seconds are left alone")
    tune.add_argument("--least", type=float, default=20.0, help="seconds of a problem, at least")
    tune.add_argument("--most", type=float, default=120.0, help="seconds of a problem, at most")
    several = add("tunes", parts.tunes, "single problems")
    several.add_argument("file", type=Path, help="arguments of `kernsearch tune` with a --timeout, a problem a line")
    quality = add("quality", parts.quality, "short searches against the records")
    quality.add_argument("--only", default="^gemm (2304x1544x4096|16x4096x4096|1543x2311x4095) bfloat16 .*none.*nn$")
    table = add("table", parts.figures, "the figures")
    table.add_argument("--groups", default="", help="comma list; all when empty")
    table.add_argument("--rounds", type=int, default=None)
    table.add_argument("--against", default="", help="libraries beside torch, like cupy,triton")
    bench = add("bench", parts.bench, "one comparison")
    bench.add_argument("arguments", nargs=argparse.REMAINDER, help="of kernsearch bench, after --")
    cases = add("cases", parts.cases, "case studies and a ladder")
    cases.add_argument("--only", default="", help="regular expression that a name must match; the ladder is 'ladder'")
    cases.add_argument("--shape", default="4096x4096x4096", help="of the ladder")
    cases.add_argument("--dtype", default="bfloat16", help="of the ladder")
    sanitize = add("sanitize", parts.sanitize, "Compute Sanitizer over the rungs")
    ncu = add("ncu", parts.ncu, "Nsight Compute over one kernel")
    ncu.add_argument("--sections", default="SpeedOfLight,Occupancy,LaunchStats,MemoryWorkloadAnalysis,WarpStateStats")
    for command in (sanitize, ncu):
        command.add_argument("--dtype", default="bfloat16")
        command.add_argument(
            "--rung", default="", help="a template; all rungs (sanitize) or the record (ncu) when empty"
        )
    sanitize.add_argument("--shape", default="200x136x192")
    sanitize.add_argument("--tools", default="memcheck,racecheck,synccheck")
    ncu.add_argument("--shape", default="2304x1544x4096")
    ncu.add_argument("--layout", default="nn")
    ncu.add_argument("--fix", default="", help="config as JSON, beside --rung")
    triton = add("triton-ir", parts.triton_ir, "intermediate representations of the Triton kernel")
    triton.add_argument("--shape", default="2304x1544x4096")
    given = vars(parser.parse_args())
    given.pop("command")
    function, seconds = given.pop("function"), given.pop("seconds")
    os.chdir(Path(__file__).resolve().parent.parent)
    result = function(Deadline(seconds), **given)
    if result is not None:
        name = function.__name__.replace("_", "-")
        (out() / f"{name}.json").write_text(json.dumps(result, indent=1, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
