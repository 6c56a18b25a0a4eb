"""Record case studies on this machine: every case that is about the device, and what came of each prediction.

    python benchmarks/case_recordings.py --device cuda
    python benchmarks/case_recordings.py --device cpu split-k fusion --again

Writes `<case>.json` below `--into` (by default the recordings that are shipped, of this device), the reports below
`--reports`, and prints each change with prediction, measurement, interval and verdict. With `--again` nothing recorded
is written over: the new verdicts are held against the recorded ones, and one that turned round ends it with exit
code 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import wait_until_idle

from kernsearch import backends
from kernsearch.cases import cases, judged, recording, recordings, run, wrong
from kernsearch.errors import KernsearchError
from kernsearch.report.case_report import write_report

SHIPPED = Path(__file__).parent.parent / "cache" / recordings.FOLDER
REPORTS = Path("build/cases")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help="all cases that are about the device by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--into", type=Path, default=None, help="folder of this device's recordings")
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--again", action="store_true", help="compare with what is recorded instead of writing it")
    asked = parser.parse_args()
    sys.exit(int(not record(asked.device, asked.names, asked.into, asked.reports, again=asked.again)))


def record(
    device: str, names: Sequence[str] = (), into: Path | None = None, reports: Path = REPORTS, *, again: bool = False
) -> bool:
    """Run cases, all that are about the device by default. Did all of them run, and no recorded verdict turn round?"""
    where, good = backends.resolve(device)[1], True
    into = into or SHIPPED / where.key
    for name in names or [name for name, case in cases().items() if where.backend in case.backends]:
        if where.backend == "cpu":
            wait_until_idle()
        began, folder = time.monotonic(), reports / name
        try:
            told = run(cases()[name], device=device, out=folder)
        except KernsearchError as error:
            print(f"\n{name}: {error}", flush=True)
            good = False
            continue
        write_report(folder, told)
        show(told, time.monotonic() - began)
        if not again:
            recordings.keep(into / f"{name}.json", told)
        elif turned(told, into / f"{name}.json"):
            good = False
    return good


def show(told: dict[str, Any], seconds: float) -> None:
    """The changes of a case, those whose prediction was wrong marked."""
    print(f"\n{told['case']}  ({seconds:.0f} s)", flush=True)
    off = [c["label"] for c in wrong(told)]
    for c in told["comparisons"]:
        mark = "  WRONG PREDICTION" if c["label"] in off else ""
        print(f"  {c['label']}: predicted {c['predicted']:.3f}, measured {c['measured']:.3f} "
              f"[{c['ci'][0]:.3f}, {c['ci'][1]:.3f}], {c['verdict']}{mark}", flush=True)  # fmt: skip


def turned(told: dict[str, Any], path: Path) -> bool:
    """Whether a recorded verdict has turned round: wins became loses, or the reverse, or a gate says otherwise."""
    before = judged(recording(recordings.read(str(path), told["case"], "arms"), told["case"]))
    known = {c["label"]: c["verdict"] for c in before["comparisons"]}
    found = False
    for c in told["comparisons"]:
        was, now = known.get(c["label"], c["verdict"]), c["verdict"]
        if {was, now} == {"wins", "loses"} or (was != now and "refused" in (was, now)):
            print(f"  TURNED: {c['label']}: {was} is recorded, now it {now}")
            found = True
    return found


if __name__ == "__main__":
    main()
