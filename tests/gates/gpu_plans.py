"""Plans for the hand-written CUDA kernels of this folder."""

from __future__ import annotations

from pathlib import Path

from kernsearch import sources
from kernsearch.plan import Buffer, KernelPlan, Launch, Operand, Plan

SOURCE = Path(__file__).parent / "broken.cu"
TUNED = (300, 200, 130)
PARTIAL = (Buffer("P", "float32", ("m", "n"), ("M", "N")),)


def make_plan(
    entry: str,
    *,
    workspace: tuple[Buffer, ...] = (),
    scratch: str = "0",
    shared: str = "0",
    block: str = "256",
    deterministic: bool = True,
    assumes: tuple[str, ...] = (),
) -> Plan:
    """D = alpha A B, nn, float32, by one kernel of blocks of 16x16."""
    extra = tuple(buffer.name for buffer in workspace) + (("scratch",) if scratch != "0" else ())
    kernel = KernelPlan(
        template=f"test_{entry}", source=str(SOURCE), tokens=sources.tokens(SOURCE), entry=entry, header="", defines={},
        buffers=("A", "B", "D", *extra), sizes=("M", "N", "K", "A.m", "A.k", "B.k", "B.n", "D.m"), scalars=("alpha",),
        scratch=scratch, launches=(Launch(entry, ("(N + 15) // 16", "(M + 15) // 16", "1"), block, shared),),
    )  # fmt: skip
    operands = (
        Operand("A", "float32", ("m", "k"), ("M", "K"), "input"),
        Operand("B", "float32", ("k", "n"), ("K", "N"), "input"),
        Operand("D", "float32", ("m", "n"), ("M", "N"), "output"),
    )
    return Plan("cuda", ("M", "N", "K"), operands, {"alpha": 1.0}, workspace, (kernel,), assumes, deterministic)
