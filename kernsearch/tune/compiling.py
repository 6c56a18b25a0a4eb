"""Compiling a run's candidates: now, or beside what the present ones do on a device, whose clock is not disturbed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from ..backends import Backend, Compiled
from ..candidate import Candidate
from ..device import Device
from ..errors import Rejected
from ..plan import KernelPlan, Plan

LOOK_S = 0.05  # between two looks whether it is late
Outcome = tuple[Compiled, ...] | Rejected  # of a candidate: an object for each kernel


def compiled(plans: list[Plan], backend: Backend, device: Device, *, jobs: int, timeout_s: float) -> list[Outcome]:
    """One outcome a plan; each distinct kernel is compiled once."""
    kernels = _distinct(plans)
    return _outcomes(plans, kernels, dict(_many(kernels, backend, device, jobs, timeout_s)))


class Compiling:
    """Compiles candidates, `jobs` kernels at a time; `plan` gives a candidate's."""

    def __init__(
        self, plan: Callable[[Candidate], Plan], backend: Backend, device: Device, jobs: int, timeout_s: float
    ):
        self._plan, self.backend, self.device, self.jobs, self.timeout_s = plan, backend, device, jobs, timeout_s
        self._ahead: _Ahead | None = None

    def all(self, candidates: list[Candidate]) -> list[Outcome]:
        """One outcome a candidate; each distinct kernel is compiled once."""
        return compiled(self._plans(candidates), self.backend, self.device, jobs=self.jobs, timeout_s=self.timeout_s)

    def begin(self, candidates: list[Candidate], late: Callable[[], bool]) -> Callable[[], list[Outcome] | None]:
        """The same in the background: returns a function that waits for the outcomes, or gives them up once it is
        `late` and says None. One at a time."""
        plans = self._plans(candidates)
        kernels = _distinct(plans)
        self._ahead = ahead = _Ahead(lambda: _many(kernels, self.backend, self.device, self.jobs, self.timeout_s))

        def wait() -> list[Outcome] | None:
            found = ahead.take(late)
            return None if found is None else _outcomes(plans, kernels, found)

        return wait

    def stop(self) -> None:
        """What is compiled in the background is not wanted: it ends with the next kernel that is done."""
        if self._ahead is not None:
            self._ahead.stop()

    def _plans(self, candidates: list[Candidate]) -> list[Plan]:
        return [self._plan(candidate) for candidate in candidates]


class _Ahead:
    """Runs an iterator to its end in a thread."""

    def __init__(self, start: Callable[[], Iterator[tuple[int, Any]]]):
        self._start = start
        self._stopped = False
        self._found: dict[int, Any] = {}
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="kernsearch-compile", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with closing(_steps(self._start())) as steps:  # closing it kills the compilers that still run
                for index, outcome in steps:
                    self._found[index] = outcome
                    if self._stopped:
                        return
        except Exception as error:  # noqa: BLE001  raised where the outcomes are wanted
            self._error = error

    def take(self, late: Callable[[], bool]) -> dict[int, Any] | None:
        while self._thread.is_alive():
            self._thread.join(LOOK_S)
            if self._thread.is_alive() and late():
                self.stop()
                return None
        if self._error is not None:
            raise self._error
        return self._found

    def stop(self) -> None:
        self._stopped = True


def _distinct(plans: list[Plan]) -> dict[tuple[Any, ...], KernelPlan]:
    """The kernels of plans by what makes them the same object."""
    return {_identity(kernel): kernel for plan in plans for kernel in plan.kernels}


def _many(
    kernels: dict[tuple[Any, ...], KernelPlan], backend: Backend, device: Device, jobs: int, timeout_s: float
) -> Iterator[tuple[int, Compiled | Rejected]]:
    if not kernels:
        return iter(())
    return backend.compile_many(list(kernels.values()), device, jobs=jobs, timeout_s=timeout_s)


def _steps(steps: Iterator[tuple[int, Any]]) -> Any:
    yield from steps


def _outcomes(
    plans: list[Plan], kernels: dict[tuple[Any, ...], KernelPlan], results: dict[int, Compiled | Rejected]
) -> list[Outcome]:
    at = {identity: results[index] for index, identity in enumerate(kernels)}
    outcomes: list[Outcome] = []
    for plan in plans:
        parts = [at[_identity(kernel)] for kernel in plan.kernels]
        refused = next((part for part in parts if isinstance(part, Rejected)), None)
        outcomes.append(refused or tuple(part for part in parts if isinstance(part, Compiled)))
    return outcomes


def _identity(kernel: KernelPlan) -> tuple[Any, ...]:
    """What makes two kernels the same object."""
    return kernel.source, kernel.entry, kernel.header, tuple(sorted(kernel.defines.items())), kernel.flags
