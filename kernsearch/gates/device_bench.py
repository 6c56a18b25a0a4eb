"""The host's side of the gates on a device: the process that owns the context, deadlines, and words for what ended it.

This process never touches the device. A candidate that hangs is killed with the device's process and a fresh one takes
its place; so is one that a fault has ended, or that a candidate may have written into. After the first such change one
more process stands by, its context made, so that the next change takes no time.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from types import TracebackType
from typing import Any, Self

import msgspec

from .. import registry
from ..backends import Compiled
from ..device import Device
from ..errors import DeviceError, Rejected
from ..measure.samples import policy
from ..plan import Plan
from ..problem import Problem
from ..space import Config, Op
from ..worker import Timing
from ..worker.arena import apart
from ..worker.host import RUN_TIMEOUT_S
from ..worker.process import KILLED, ChildProcess, Died
from .device_child import OWN_S, PAGE

MACHINES = {"cuda": "kernsearch.gates.cuda_machine:machine"}
SEND_S = 60.0  # a child that still starts takes its request later
LOOK_S = 0.25  # between two looks at clocks and temperature
START = """
import json, sys
settings = json.loads(sys.argv[1])
sys.path[:] = settings["path"]
from kernsearch.gates.device_child import main
main(settings)
"""


class DeviceProcess:
    """Children that own a device, one at work at a time. Thread-safe. `opening` is what each is asked first."""

    def __init__(self, device: Device, opening: dict[str, Any] | None = None, *, machine: str | None = None) -> None:
        self.device, self.opening = device, opening
        self.machine = machine or MACHINES[device.backend]
        self.restarts = -1  # the first start is not one
        self.fresh = True  # has the child served no candidate yet?
        self._child: ChildProcess | None = None
        self._spare: ChildProcess | None = None
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._fd = apart(os.memfd_create("kernsearch-page", os.MFD_CLOEXEC))
        os.ftruncate(self._fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self._fd, mmap.PAGESIZE)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises Rejected for what a candidate did, DeviceError for a device of no use."""
        with self._lock:
            if os.getpid() != self._owner:
                raise RuntimeError("this process of a device belongs to the process that made it, not to a fork of it")
            if self._child is not None and self._child.gone():
                self.stop()
            if self._child is None:
                self._start()
            self.fresh = False
            return self._asked(request)

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child is not None
        try:
            self._child.send(request, SEND_S)
            reply = self._child.receive(self._limit)
        except Died as death:
            running = bool(PAGE.unpack_from(self._page)[2])
            self.stop()
            if not running:
                raise DeviceError(f"{self.device}: its process {_failed(death)}") from None
            raise Rejected(str(death), gate="execution", limit_s=death.limit_s, doubtful=str(death) == KILLED) from None
        except BaseException:
            self.stop()  # interrupted: the child may be in the middle of something
            raise
        if reply.get("end"):
            self.stop()
        if "failed" in reply:
            error = DeviceError(f"{self.device} cannot be used: {reply['failed']}")
            error.add_note(reply.get("trace", ""))
            raise error
        if "refused" in reply:
            raise Rejected(str(reply["refused"]), gate=reply["gate"], doubtful=bool(reply["doubtful"]))
        return reply

    def _limit(self) -> tuple[int, float]:
        done = PAGE.unpack_from(self._page)[0]  # before the rest, which the child writes first
        return done, PAGE.unpack_from(self._page)[1] or OWN_S

    def prepare(self) -> None:
        """Start a child and return; it makes ready in the background, and the next request waits until it has."""
        with self._lock:
            if self._child is not None:
                return
            self._take()  # here, as a child dies with the thread that started it
        held = threading.Event()

        def opened() -> None:
            with self._lock:
                held.set()
                with contextlib.suppress(DeviceError):  # the next request starts another, and tells
                    self._open()

        threading.Thread(target=opened, name="kernsearch-prepare", daemon=True).start()
        held.wait()

    def _start(self) -> None:
        self._take()
        self._open()
        if self.restarts:
            self._spare = self._new()

    def _take(self) -> None:
        self._child, self._spare = self._spare or self._new(), None
        self.restarts += 1
        self.fresh = True

    def _open(self) -> None:
        if self.opening is not None:
            try:
                self._asked(self.opening)
            except Rejected as refusal:  # no candidate has run yet
                raise DeviceError(f"{self.device} cannot be used: {refusal.reason}") from refusal

    def _new(self) -> ChildProcess:
        settings = {"path": sys.path, "page": self._fd, "device": asdict(self.device), "machine": self.machine}
        return ChildProcess([sys.executable, "-c", START], settings, keep=[self._fd])

    def stop(self) -> None:
        """Kill the child; the next request starts another."""
        with self._lock:
            if self._child is not None:
                self._child.end()
            self._child, self.fresh = None, True
            PAGE.pack_into(self._page, 0, PAGE.unpack_from(self._page)[0], OWN_S, 0)

    def close(self) -> None:
        if (child := self._child) is not None:
            child.process.kill()  # whoever waits for its answer gives up
        with self._lock:
            self.stop()
            if self._spare is not None:
                self._spare.end()
                self._spare = None
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class DeviceBench:
    """Gates and times the candidates of one problem on a device, as `Bench` does on the CPU. A context manager."""

    def __init__(
        self,
        op: Op,
        problem: Problem,
        device: Device,
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
        seed: int = 0,
        space_file: str | None = None,
        machine: str | None = None,
        zeros: bool = False,
    ) -> None:
        self.device, self.run_timeout_s, self.policy = device, run_timeout_s, policy(device)
        opening = {
            "do": "open",
            "op": op.name,
            "problem": problem.to_json(),
            "seed": seed,
            "space": list(dict.fromkeys([*registry.files(), *([space_file] if space_file else [])])),
            "run_timeout_s": run_timeout_s,
            "zeros": zeros,
        }
        self.process = DeviceProcess(device, opening, machine=machine)
        self._keys = itertools.count()
        self._seen: list[dict[str, Any]] = []
        self._looked = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.process.close()

    def prepare(self) -> None:
        """Start the process of the device; it makes inputs and references in the background."""
        self.process.prepare()

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
        request = {
            "do": "examine",
            "config": dict(config),
            "thorough": thorough,
            "timeout_s": timeout_s,
            **_told(plan, compiled),
        }
        used = not self.process.fresh
        try:
            return dict(self.process.ask(request)["evidence"])
        except Rejected as refusal:
            if not (refusal.doubtful and used):
                raise
        self.process.stop()  # an earlier candidate may be to blame: once more, where there was none
        return dict(self.process.ask(request)["evidence"])

    def timer(
        self, plan: Plan, compiled: Sequence[Compiled], *, cold: bool = True, timeout_s: float | None = None
    ) -> Callable[[int], Timing]:
        """A function that takes so many samples of a gated candidate's time on aligned arrays; all scalars are 1.

        A sample is the replay of a graph, divided by its launches (`backends.cuda.timing`); `cold` rotates operands.
        """
        key, told = next(self._keys), {**_told(plan, compiled), "cold": cold}
        served: list[int] = []  # the number of the child that knows this candidate

        def run(repeat: int = 1) -> Timing:
            request = {"do": "time", "key": key, "repeat": repeat}
            known = served == [self.process.restarts] and self.process.pid is not None
            reply = self.process.ask(request if known else {**request, **told})
            if "unknown" in reply:
                reply = self.process.ask({**request, **told})
            served[:] = [self.process.restarts]
            self._look()
            seconds = list(reply["seconds"])
            nothing = [0.0] * len(seconds)
            return Timing(seconds, nothing, nothing, nothing)

        return run

    def _look(self) -> None:
        """The state of the device, just after a timing."""
        if self.device.backend != "cuda" or time.monotonic() - self._looked < LOOK_S:
            return
        from ..backends.cuda import nvml

        state = nvml.state(self.device)
        self._looked = time.monotonic()
        if state is not None:
            self._seen.append(asdict(state))

    def conditions(self) -> dict[str, Any]:
        """Clocks, power, temperature and what held the device back while it was timed since the last call, in few
        words; empty when nothing is known."""
        seen, self._seen = self._seen, []
        found: dict[str, Any] = {}
        for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
            values = [state[name] for state in seen if state[name] is not None]
            if values:
                found[name] = {"min": min(values), "median": median(values), "max": max(values)}
        throttled = sorted({word for state in seen for word in state["throttled"]})
        if seen:
            found |= {"throttled": throttled, "looks": len(seen)}
        return found


def _told(plan: Plan, compiled: Sequence[Compiled]) -> dict[str, Any]:
    return {"plan": msgspec.to_builtins(plan), "compiled": [[str(built.path), built.entry] for built in compiled]}


def _failed(death: Died) -> str:
    return str(death) if death.limit_s is None else f"gave no sign of life for {death.limit_s:g} s"


def ceilings(device: Device, module: str, *, machine: str | None = None) -> dict[str, Any]:
    """What `measure_here` of a backend's module finds in a process of the device. Raises DeviceError or Rejected."""
    process = DeviceProcess(device, machine=machine)
    with contextlib.closing(process):
        return dict(process.ask({"do": "ceilings", "module": module})["ceilings"])
