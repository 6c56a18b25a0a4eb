"""A template of your own, from outside the package, with its own C source beside this file.

    kernsearch tune gemm --shape 64x96x128 --space examples/shared_rows.py --variant shared_rows
    python examples/shared_rows.py [TRIALS]

The rules find out where it fits: with the epilogue in the same kernel (`shared_rows`) and apart (`shared_rows+map`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernsearch.space import Constraint, Param
from kernsearch.template import Template, dot, hole

_RM = Param("RM", (1, 2, 4, 8, 16, 24), "rows of D that share a row of B")

SHARED_ROWS = Template(
    name="shared_rows",
    backend="cpu",
    what="a few rows of the output share each piece of a row of B",
    roots=(hole("D", dot("A", "B")),),
    source=str(Path(__file__).with_suffix(".c").resolve()),
    entry="shared_rows",
    groups="M1 N1 K1",
    dtypes=("float32", "float64"),
    ann=(("tile", ("M",), "register", "RM"), ("keep", "acc", "registers")),
    params=(_RM,),
    constraints=(
        Constraint(
            "more sums than vector registers", lambda config, device, sizes: config["RM"] < device.vector_registers
        ),
    ),
)


def templates() -> tuple[Template, ...]:
    """What a space file offers; it may also define OP."""
    return (SHARED_ROWS,)


def main(trials: int = 6) -> None:
    import kernsearch as ks
    from kernsearch import registry

    registry.use_file(__file__)  # what --space does
    record = ks.tune(
        "gemm", shape=(64, 96, 128), epilogue="bias,relu", variant="shared_rows", trials=trials, timeout=60
    )
    print(f"{record.variant} {record.config}: {record.measurement.median_s * 1e6:.0f} µs")
    print("error, as a share of what is allowed:", f"{record.evidence['gates']['error']:.2f}")

    # The record names the source, so the runtime needs no space file to use it.
    plan = ks.load("gemm", shape=(64, 96, 128), epilogue="bias,relu")
    print(f"{plan.hit}: {Path(plan.plan.kernels[0].source).name}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
