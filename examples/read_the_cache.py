"""Ask at run time what would run, and why: `python examples/read_the_cache.py`. Tunes nothing and compiles nothing."""

from __future__ import annotations

import kernsearch as ks
from kernsearch.records import upkeep

SHAPES = ((64, 64, 64), (1000, 1000, 1000), (1, 4096, 4096))


def main() -> None:
    for row in upkeep.list_records():
        print(f"{row['place']}: {row['problem']}, {row['variant']}, {row['status']}")

    for shape in SHAPES:
        plan = ks.load("gemm", shape=shape, policy="compatible")
        record = plan.record
        print(f"\n{plan.problem.key}: {plan.hit}")
        for reason in plan.reasons:
            print(f"  {reason}")
        print(f"  runs {record.variant} {record.config}")
        print(f"  made for {record.problem.key}, needs {plan.workspace_bytes} bytes of workspace")
        if record.measurement is None:
            print("  never measured: `kernsearch tune` would")
        else:
            low, high = record.measurement.ci_s
            print(f"  measured {low * 1e6:.0f} to {high * 1e6:.0f} µs a call on {record.fingerprint.device}")


if __name__ == "__main__":
    main()
