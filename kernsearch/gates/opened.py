"""A bench for any device: on the CPU kernels run in a worker, elsewhere in the process that owns the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..backends import Backend, Compiled
from ..device import Device
from ..plan import Plan
from ..problem import Problem
from ..space import Config, Op, zeroed
from ..worker import Timing, Worker
from ..worker.host import RUN_TIMEOUT_S
from .bench import Bench


class OpenBench(Protocol):
    """Gates and times the candidates of one problem on one device; `policy` is the id of how it times."""

    @property
    def policy(self) -> str: ...

    def examine(
        self,
        plan: Plan,
        compiled: Sequence[Compiled],
        config: Config,
        *,
        thorough: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, int | float | bool]:
        """Pass the execution and correctness gates or raise Rejected; returns the evidence."""

    def timer(
        self, plan: Plan, compiled: Sequence[Compiled], *, cold: bool = True, timeout_s: float | None = None
    ) -> Callable[[int], Timing]:
        """A function that takes so many samples of a gated candidate's time."""

    def prepare(self) -> None:
        """Begin in the background with what the first `examine` needs; nothing to do on the CPU."""

    def conditions(self) -> dict[str, Any]:
        """What is known of clocks and temperature while it timed, since the last call; empty on the CPU."""


@contextmanager
def open_bench(
    op: Op,
    problem: Problem,
    device: Device,
    backend: Backend,
    *,
    run_timeout_s: float = RUN_TIMEOUT_S,
    seed: int = 0,
    space_file: str | None = None,
    zeros: bool = False,
) -> Iterator[OpenBench]:
    """A bench with what it runs in; leaving it ends that. `space_file` is where an op from a file is declared.
    With `zeros` the tuned shape has inputs of zeros.

    Raises SpaceError when the op's reference fails its own check, DeviceError when the device cannot be used.
    """
    if backend.host_memory:
        with Worker(device, run_timeout_s=run_timeout_s) as worker:
            yield Bench(zeroed(op) if zeros else op, problem, device, backend, worker, seed=seed)
        return
    from .device_bench import DeviceBench

    with DeviceBench(
        op, problem, device, run_timeout_s=run_timeout_s, seed=seed, space_file=space_file, zeros=zeros
    ) as bench:
        yield bench
