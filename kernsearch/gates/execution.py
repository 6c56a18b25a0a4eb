"""The execution gate: a run must end, and write nothing but outputs, workspace and scratch."""

from __future__ import annotations

from itertools import chain
from typing import Any, Protocol

from ..errors import Rejected
from ..worker import Memory, Timing
from .stage import Stage


class Runner(Protocol):
    """What runs stages: a worker on the CPU, or the process that owns a device.

    arena   where operands lie
    mends   the memory serves the next candidate as well, whatever this one did, so it is put right after a refusal
    """

    @property
    def arena(self) -> Memory: ...
    @property
    def mends(self) -> bool: ...

    def run(self, launches: Any, *, timeout_s: float | None = None) -> Timing:
        """Run `Stage.launches` once. Raises Rejected."""

    def stop(self) -> None:
        """Nothing may be inherited by the next candidate."""


def execution(worker: Runner, stage: Stage, *, timeout_s: float | None = None) -> Timing:
    """Run a stage once on poisoned outputs, then look at every byte that it must not have touched.

    Raises Rejected for a crash, hang or loss of memory in the worker; for a write outside the buffers; for a changed
    input. Fences and inputs are whole again afterwards, and the worker is replaced after a refusal.
    """
    stage.poison()
    try:
        timing = worker.run(stage.launches, timeout_s=timeout_s)
        unharmed(stage)
    except Rejected:
        worker.stop()
        if worker.mends:
            mend(stage)
        raise
    return timing


def unharmed(stage: Stage) -> None:
    """Red zones, gaps between rows and inputs are as they were, bit for bit."""
    if (damage := next(chain(stage.operands.layout.damage(), stage.layout.damage()), None)) is not None:
        raise Rejected(damage, gate="execution")
    for name, kept in stage.operands.inputs.items():
        if (at := kept.first_change(stage.operands.views[name])) is not None:
            raise Rejected(f"changed its input {name}, first at {list(at)}", gate="execution")


def mend(stage: Stage) -> None:
    """Draw the fences anew and restore the inputs."""
    stage.operands.layout.commit()
    stage.layout.commit()
    for name in stage.operands.inputs:
        stage.operands.restore(name)
