"""Tune one product, keep the winner, and call it: `python examples/tune_and_use.py [TRIALS]`."""

from __future__ import annotations

import sys

import numpy as np

import kernsearch as ks

M, N, K = 160, 96, 200


def main(trials: int = 24) -> None:
    record = ks.tune("gemm", shape=(M, N, K), epilogue="bias,relu", trials=trials, timeout=60)
    print(
        f"{record.problem.key}\n  {record.variant} {record.config}, {record.measurement.median_s * 1e6:.0f} µs a call"
    )
    print("  derived by", ", ".join(step["rule"] for step in record.derivation))

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    bias = rng.standard_normal(N, np.float32)
    wanted = np.maximum(a.astype(float) @ b + bias, 0)

    # A plan serves one problem: shapes and dtypes are checked, then the kernels run.
    plan = ks.load("gemm", shape=(M, N, K), epilogue="bias,relu")
    out = np.empty((M, N), np.float32)
    plan(a, b, bias, out=out)
    print(f"  plan: {plan.hit}, largest error {abs(out - wanted).max():.1e}")

    # matmul looks a plan up for the arrays it is given; here it finds the same record.
    same = ks.matmul(a, b, bias=bias, activation="relu")
    print("  matmul gives the same bits:", np.array_equal(out, same))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
