"""How well the device model ranks kernels that were measured: `results/h200/kernels.json.gz`, no GPU needed.

For each problem: rank correlation of predicted and measured times over all its kernels, how much slower the model's
pick is than the fastest of them (regret), the same for the best of its first ten, and both beside cuBLAS.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from kernsearch import backends, launch, model, registry
from kernsearch.derive import derive
from kernsearch.model import ceilings

DATA = Path(__file__).with_name("results") / "h200" / "kernels.json.gz"


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def usable(row: dict) -> bool:
    """Does the row tell of today's kernels? Clusters were mended after the first measurements."""
    config = row["config"]
    clustered = config.get("CM", 1) * config.get("CN", 1) > 1 or row["variant"].startswith("cluster")
    return row["kernels"] != "first" or not clustered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    rows = [row for row in json.loads(gzip.decompress(parser.parse_args().data.read_bytes()))["rows"] if usable(row)]
    device = backends.get("cuda").compile_only("sm_90a")
    roof, op, templates = ceilings.guess(device), registry.op("gemm"), registry.templates("cuda")
    problems = defaultdict(list)
    for row in rows:
        problems[row["dtype"], tuple(row["shape"])].append(row)
    print(f"{'problem':28s} kernels  rank corr.  regret  of ten  pick/cuBLAS  best/cuBLAS")
    for (dtype, shape), found in problems.items():
        problem = op.problem(shape, dtype, backend="cuda")
        variants = {variant.name: variant for variant in derive(problem, op, templates).variants}
        sizes = {**op.sizes(problem), "THREADS": int(device.threads), "ITEMSIZE": launch.itemsize(dtype)}
        grouped = defaultdict(list)
        for row in found:
            letters = {p.name for p in variants[row["variant"]].params} if row["variant"] in variants else None
            if letters == set(row["config"]):
                grouped[row["variant"]].append(row)
        predicted, measured, cublas = [], [], []
        for name, mine in grouped.items():
            told = model.predict_all(variants[name], [row["config"] for row in mine], device, sizes, roof)
            predicted += [p.seconds for p in told]
            measured += [row["us"] for row in mine]
            cublas += [row["cublas_us"] for row in mine]
        p, m, c = np.array(predicted), np.array(measured), np.array(cublas)
        rho = np.corrcoef(ranks(p), ranks(m))[0, 1]
        pick, ten, best = int(p.argmin()), m[np.argsort(p)[:10]].min(), int(m.argmin())
        name = f"{dtype} {'x'.join(map(str, shape))}"
        print(f"{name:28s} {len(m):7d}  {rho:10.2f}  {m[pick] / m[best]:6.2f}  {ten / m[best]:6.2f}"
              f"  {c[pick] / m[pick]:11.3f}  {c[best] / m[best]:11.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
