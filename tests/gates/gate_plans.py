"""Plans for the hand-written kernels of this folder."""

from __future__ import annotations

from pathlib import Path

from kernsearch.plan import Buffer, KernelPlan, Operand, Plan

HERE = Path(__file__).parent
TUNED = (61, 45, 70)


def make_plan(
    entry: str,
    source: str = "broken.c",
    *,
    workspace: tuple[Buffer, ...] = (),
    scratch: str = "0",
    flags: tuple[str, ...] = (),
    deterministic: bool = True,
    assumes: tuple[str, ...] = (),
) -> Plan:
    """D = alpha A B, nn, float32, by one kernel."""
    extra = tuple(buffer.name for buffer in workspace) + (("scratch",) if scratch != "0" else ())
    kernel = KernelPlan(
        template=f"test_{Path(source).stem}", source=str(HERE / source), tokens="", entry=entry, header="", defines={},
        buffers=("A", "B", "D", *extra), sizes=("M", "N", "K", "A.m", "A.k", "B.k", "B.n", "D.m"), scalars=("alpha",),
        scratch=scratch, flags=flags,
    )  # fmt: skip
    operands = (
        Operand("A", "float32", ("m", "k"), ("M", "K"), "input"),
        Operand("B", "float32", ("k", "n"), ("K", "N"), "input"),
        Operand("D", "float32", ("m", "n"), ("M", "N"), "output"),
    )
    return Plan("cpu", ("M", "N", "K"), operands, {"alpha": 1.0}, workspace, (kernel,), assumes, deterministic)
