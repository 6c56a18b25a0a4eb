"""A program that uses what was tuned: `python examples/use_the_cache.py`. It tunes nothing.

The largest eigenvalues of a symmetric matrix by orthogonal iteration: a product of the same shape again and again.

    kernsearch tune gemm --shape 384x8x384      # before it, once: then the plan is exact
    kernsearch cache import colleague.json      # or take the records of a machine like this one
"""

from __future__ import annotations

import numpy as np

import kernsearch as ks

SIZE, VECTORS, TURNS = 384, 8, 60


def main() -> None:
    plan = ks.load("gemm", shape=(SIZE, VECTORS, SIZE))  # M, N, K; looked up once, before the loop
    print(f"plan: {plan.hit}, {plan.record.variant}")
    if plan.hit != "exact":
        print(f"  {plan.reasons[-1]}")
        print(f"  `kernsearch tune gemm --shape {SIZE}x{VECTORS}x{SIZE}` would make it exact")

    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))
    known = 0.8 ** np.arange(SIZE)
    matrix = ((turn * known) @ turn.T).astype(np.float32)

    vectors = rng.standard_normal((SIZE, VECTORS), np.float32)
    product = np.empty_like(vectors)
    for _ in range(TURNS):
        plan(matrix, vectors, out=product)
        vectors, triangle = np.linalg.qr(product)
    found = np.abs(np.diag(triangle))
    print("eigenvalues", " ".join(f"{value:.4f}" for value in found[:4]))
    print(f"largest error {np.abs(found - known[:VECTORS]).max():.0e}")


if __name__ == "__main__":
    main()
