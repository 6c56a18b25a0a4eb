"""The process that owns a device's context and does there what the gates and clocks ask for; see `device_bench`.

It answers one request at a time. What a kernel does wrong comes back as a refusal; after a fault that the context does
not survive, or when a candidate may have written where it should not, the answer says that this process ends.
"""

from __future__ import annotations

import importlib
import mmap
import os
import resource
import struct
import traceback
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from .. import registry
from ..backends import Compiled
from ..device import Device
from ..errors import KernsearchError, Rejected
from ..plan import Plan
from ..problem import Problem
from ..space import zeroed
from ..worker.child import LOST_PIPE, die_with_parent, read_frame, write_frame
from .device_gates import DeviceGates
from .machine import Machine

PAGE = struct.Struct("<qdq")  # how far it has come, seconds until it must come farther, is a candidate running
OWN_S = 300.0  # for work of its own: references, compiling what the array module needs
LOST_BYTES = 1 << 30  # of device memory that may have gone since the start before another process takes over
MOST_TIMERS = 16  # graphs that are kept, of the candidates timed last


class Page:
    """What the host reads while a request runs."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE)

    def beat(self, limit_s: float) -> None:
        """It has come farther; what comes next may take `limit_s` of a candidate's time, or for 0 OWN_S of ours."""
        count = PAGE.unpack_from(self._map)[0] + 1
        struct.pack_into("<dq", self._map, 8, limit_s or OWN_S, int(limit_s > 0))
        struct.pack_into("<q", self._map, 0, count)


class Server:
    """The state between requests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.page = Page(settings["page"])  # another process may be at work: nothing is written before a request
        self.device = Device(**settings["device"])
        module, _, name = settings["machine"].rpartition(":")
        self.machine: Machine = getattr(importlib.import_module(module), name)(self.device)
        self.gates: DeviceGates | None = None
        self.free = 0  # bytes of device memory, once everything is in place
        self.samplers: OrderedDict[int, tuple[Callable[[int], list[float]], Any]] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.page.beat(0)
        return {
            "open": self.open,
            "examine": self.examine,
            "time": self.time,
            "ceilings": self.ceilings,
            "memory": lambda request: {"memory": self.machine.memory_bytes()},
        }[request["do"]](request)

    @property
    def spoiled(self) -> bool:
        return self.gates is not None and self.gates.runner.spoiled

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        for path in request["space"]:
            registry.use_file(path)
        op = registry.op(request["op"])
        self.gates = DeviceGates(
            zeroed(op) if request["zeros"] else op,
            Problem.from_json(request["problem"]),
            self.device,
            self.machine,
            self.page.beat,
            seed=request["seed"],
            run_timeout_s=request["run_timeout_s"],
        )
        self.gates.ready()
        self.free = self.machine.memory_bytes()[0]
        return {"memory": self.machine.memory_bytes()}

    def examine(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.gates is not None
        evidence = self.gates.examine(
            *_candidate(request), request["config"], thorough=request["thorough"], timeout_s=request["timeout_s"]
        )
        found: dict[str, Any] = {"evidence": {name: _plain(value) for name, value in evidence.items()}}
        if self.free - self.machine.memory_bytes()[0] > LOST_BYTES:
            self.machine.tidy()
            found["end"] = self.free - self.machine.memory_bytes()[0] > LOST_BYTES
        return found

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.gates is not None
        key = request["key"]
        if key not in self.samplers:
            if "plan" not in request:
                return {"unknown": True}
            while len(self.samplers) >= MOST_TIMERS:
                self._forget()
            self.samplers[key] = self.gates.sampler(*_candidate(request), cold=request["cold"])
        self.samplers.move_to_end(key)
        return {"seconds": self.samplers[key][0](request["repeat"])}

    def _forget(self) -> None:
        _, (_, loaded) = self.samplers.popitem(last=False)
        loaded.close()

    def ceilings(self, request: dict[str, Any]) -> dict[str, Any]:
        own = importlib.import_module(request["module"])
        return {"ceilings": own.measure_here(self.device)}


def _candidate(request: dict[str, Any]) -> tuple[Plan, list[Compiled]]:
    plan = msgspec.convert(request["plan"], Plan)
    return plan, [Compiled(Path(path), entry) for path, entry in request["compiled"]]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _failure(error: BaseException) -> dict[str, Any]:
    where = traceback.extract_tb(error.__traceback__)[-1]
    told = str(error) if isinstance(error, KernsearchError) else f"{type(error).__name__}: {error}"
    at = "" if isinstance(error, KernsearchError) else f" ({Path(where.filename).name}:{where.lineno})"
    return {"failed": told + at, "trace": traceback.format_exc(), "end": True}


def main(settings: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    die_with_parent(settings)
    server: Server | None = None
    try:
        server, unable = Server(settings), None
    except Exception as error:  # noqa: BLE001  whatever keeps the device from being used is news for the host
        unable = _failure(error)
    while (request := read_frame(settings["requests"])) is not None:
        try:
            reply = unable or (server.answer(request) if server else {})
        except Rejected as refusal:
            reply = {"refused": refusal.reason, "gate": refusal.gate, "doubtful": refusal.doubtful}
        except Exception as error:  # noqa: BLE001  as in the CPU's worker: what broke here is news for the host
            cause = server.machine.cause(error) if server else None
            if cause is None:
                reply = _failure(error)
            else:
                reply = {"refused": cause[0], "gate": "execution", "doubtful": True, "end": True}
        if server is not None and server.spoiled:
            reply["end"] = True
        reply["id"] = request["id"]
        try:
            write_frame(settings["replies"], reply)
        except OSError:
            os._exit(LOST_PIPE)
        if reply.get("end"):
            os._exit(0)
    os._exit(0)
