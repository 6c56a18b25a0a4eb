"""What a device can do at most: arithmetic and bandwidth, measured once and kept.

Those measured on a device that few have are shipped among its recordings: they serve where nothing can be measured.

A backend that can measure has a module `ceilings`: with `worker_options(device)` and `measure(device, runner)` where
kernels work on host memory, with `measure_here(device)` where a process of its own owns the device; both give the
fields of Ceilings. For the others, and where nothing can be measured, `guess` makes careful numbers from the facts.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import backends, files, json_text
from ..backends.ceilings import Call
from ..device import Device
from ..errors import CompilerError, DeviceError, Rejected
from ..records import lookup
from ..settings import get as get_settings
from ..worker import Launch, Worker

SCHEMA = 1
UNIT_RATES = {"avx512_bf16": 128.0, "amx_bf16": 1024.0}  # FLOP a cycle of one core, for a guess


@dataclass(frozen=True)
class Ceilings:
    """Rates of a whole device with all its threads, and of one thread.

    flops      dtype, or unit of a CPU that has one for a dtype, -> FLOP/s of all threads (one multiply-add is 2)
    flops_one  the same for one thread
    read       memory level ("l1", "l2", "l3", "memory", ...) -> bytes/s that all threads read from it
    read_one   the same for one thread
    copy       bytes/s read plus bytes/s written by a copy in memory
    launch_s   starting one kernel; parallel_s: one section on all threads that does nothing
    measured   False for a guess
    busy       threads had to wait for cores while measuring, so some rates may be too low; such are not kept
    how        what was run to find some of the fields, in words; on a device "one thread" is one multiprocessor
    shipped    they came with the package: they were measured on another device of the same key
    """

    flops: Mapping[str, float]
    flops_one: Mapping[str, float]
    read: Mapping[str, float]
    read_one: Mapping[str, float]
    copy: float
    launch_s: float
    parallel_s: float
    measured: bool = True
    busy: bool = False
    how: Mapping[str, str] = field(default_factory=dict)
    shipped: bool = False
    schema: int = field(default=SCHEMA)

    def peak(self, dtype: str, threads: int) -> float:
        """FLOP/s that are never passed, of a dtype or of the fastest where that has no rate of its own. The rate of one
        unit alone times the units: for a short while a device draws more power than it can for long."""
        name = dtype if dtype in self.flops else max(self.flops, key=lambda found: self.flops[found])
        return max(self.flops[name], self.flops_one.get(name, 0.0) * threads)


def of(backend: backends.Backend, device: Device, *, again: bool = False) -> Ceilings:
    """The ceilings of a device: kept ones, else measured and kept, else shipped ones, else guessed. `again` measures in
    any case.

    Raises CacheError when KERNSEARCH_CACHE cannot be used.
    """
    path = _path(device.key)
    if not again and (known := _read(path)) is not None:
        return known
    module = f"{backends.__name__}.{backend.name}.ceilings"
    instead = shipped(device.key) or guess(device)
    if importlib.util.find_spec(module) is None:
        return instead
    try:
        found = Ceilings(**_measured(backend, device, module))
    except (Rejected, CompilerError, DeviceError):  # what keeps a device from being used is told when it is used
        return instead
    if not found.busy:
        _write(path, found)
    return found


def kept(key: str) -> Ceilings | None:
    """What is known of the device of that key without measuring: what was measured of it here, else what is shipped;
    None when neither is there. Raises as `of`."""
    return _read(_path(key)) or shipped(key)


def shipped(key: str) -> Ceilings | None:
    """The rates that came with the package, from a device of that key; None where there are none."""
    found = _read(lookup.shipped_folder() / "recordings" / key / "ceilings.json")
    return None if found is None else replace(found, shipped=True)


def _path(key: str) -> Path:
    return get_settings().data_dir() / "ceilings" / f"{key}.json"


def _measured(backend: backends.Backend, device: Device, module: str) -> dict[str, Any]:
    if not backend.host_memory:
        from ..gates.device_bench import ceilings

        return ceilings(device, module)
    own = importlib.import_module(module)
    with Worker(device, **own.worker_options(device)) as worker:
        return dict(own.measure(device, OnWorker(worker)))


class OnWorker:
    """`backends.ceilings.Runner` over a worker."""

    def __init__(self, worker: Worker):
        self.worker = worker

    def reserve(self, size: int) -> None:
        self.worker.arena.reserve(size)

    def fill(self, offset: int, count: int, dtype: str, value: float) -> None:
        nbytes = count * np.dtype(dtype).itemsize
        self.worker.arena.bytes(offset, nbytes).view(dtype)[:] = value

    def run(self, call: Call, repeat: int) -> list[tuple[float, float]]:
        launch = Launch(call.object_path, call.entry, call.buffers, call.sizes, (), call.threads)
        timing = self.worker.run([launch], repeat=repeat)
        return list(zip(timing.seconds, timing.wait_seconds, strict=True))


def guess(device: Device) -> Ceilings:
    """From facts alone: what the backend's module `rates` makes of them; where it has none, as on the CPU, 3 GHz, two
    multiply-adds a cycle, and ordinary memory."""
    own = f"{backends.__name__}.{device.backend}.rates"
    if device.backend in backends.names() and importlib.util.find_spec(own) is not None:
        return Ceilings(**importlib.import_module(own).nominal(device.facts))
    facts = {"threads": 1, "vector_bytes": 16, **device.facts}
    threads = facts["threads"]
    one = {name: 3e9 * 4 * facts["vector_bytes"] / size for name, size in (("float32", 4), ("float64", 8))}
    one |= {unit: 3e9 * rate for unit, rate in UNIT_RATES.items() if facts.get(unit)}
    read_one = {"l1": 2e11, "l2": 1e11, "l3": 5e10, "memory": 1.5e10}
    return Ceilings(
        flops={name: threads * rate for name, rate in one.items()},
        flops_one=one,
        read={"l1": threads * 2e11, "l2": threads * 1e11, "l3": threads * 5e10, "memory": 3e10},
        read_one=read_one,
        copy=2.5e10,
        launch_s=2e-6,
        parallel_s=1e-5 if threads > 1 else 0.0,
        measured=False,
    )


def _read(path: Path) -> Ceilings | None:
    """What a file holds; None when it is missing, damaged or of another schema."""
    try:
        return json_text.read(path, _checked, "measured rates")
    except (OSError, ValueError):
        return None


def _checked(data: Any) -> Ceilings | None:
    found = Ceilings(**data)
    rates = [*found.flops.values(), *found.flops_one.values(), *found.read.values(), *found.read_one.values()]
    good = found.schema == SCHEMA and min([*rates, found.copy]) > 0 and min(found.launch_s, found.parallel_s) >= 0
    return found if good else None


def _write(path: Path, found: Ceilings) -> None:
    """Whole or not at all; a store that cannot be written only costs another measurement."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.put(path, json.dumps(asdict(found), indent=1))
