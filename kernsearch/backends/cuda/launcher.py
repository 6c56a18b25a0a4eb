"""Launching a plan's kernels, with as little Python as possible each time.

A `Launcher` belongs to one thread and one set of shapes and strides: launch configurations, sizes and tensor maps are
made once, and a call writes addresses and goes. Nothing here allocates, waits or looks at memory, so a call can be
captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...device import Device
from ...errors import DeviceError, Rejected
from ...launch import Call
from ...plan import Launch, Plan
from ...sizes import evaluate
from ...workspace import ALIGNMENT
from . import driver
from .arguments import Arguments
from .modules import Module, in_context

MOST_GRID = (2**31 - 1, 65535, 65535)  # blocks
MOST_THREADS = 1024
HAS_OVERLAP = 9  # compute capability from which a launch may begin before the one before it has ended


def workspace_bytes(call: Call) -> int:
    """Bytes of workspace that a call needs, wherever they begin; 0 when it needs none."""
    size = call.layout.size
    return size + ALIGNMENT if size else 0


class Launcher:
    """Runs a plan for fixed shapes and strides. Not to be shared between threads.

    modules  one for each kernel of the plan, loaded on the device; they must stay loaded
    Raises Rejected for a launch that no device of this kind takes, and DriverError.
    """

    def __init__(self, plan: Plan, call: Call, modules: Sequence[Module], device: Device):
        self.workspace_bytes = workspace_bytes(call)
        self._context = modules[0].context
        operands = {operand.name: i for i, operand in enumerate(plan.operands)}
        scalars = {name: i for i, name in enumerate(plan.scalars)}
        offsets = call.layout.offsets
        self._launch = driver.library().cuLaunchKernelEx
        self._alive: list[Any] = []  # what launches point into
        self._launches: list[tuple[int, int, int]] = []  # configuration, function, parameters
        self._configs: list[driver.LaunchConfig] = []
        self._entries: list[str] = []
        self._bound: list[tuple[Arguments, tuple[tuple[bool, int], ...], tuple[int, ...]]] = []
        for resolved, module in zip(call.kernels, modules, strict=True):
            arguments = Arguments(resolved, call.names)
            where = tuple((name in operands, operands.get(name, offsets.get(name, 0))) for name in resolved.buffers)
            self._bound.append((arguments, where, tuple(scalars[name] for name in resolved.kernel.scalars)))
            parameters = (ctypes.c_void_p * 1)(arguments.address)
            self._alive += [arguments, parameters, module]
            for launch in resolved.kernel.launches:
                self._add(launch, call.names, module, ctypes.addressof(parameters), device)
        self._several = driver.device_count() > 1
        self._last: tuple[Any, ...] = ()
        self._scalars: tuple[float, ...] = ()
        self._stream = 0

    def _add(self, launch: Launch, names: dict[str, int], module: Module, parameters: int, device: Device) -> None:
        grid = tuple(evaluate(text, names) for text in launch.grid)
        block, shared = evaluate(launch.block, names), evaluate(launch.shared, names)
        if refusal := geometry_refusal(grid, block, shared, launch.cluster, device):
            raise Rejected(f"{launch.entry}: {refusal}", gate="execution")
        if min(grid) == 0:
            return
        blocks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        function = module.function(launch.entry, shared=shared, cluster=blocks)
        attributes = (driver.LaunchAttribute * 2)()
        count = 0
        if blocks > 1:
            attributes[count].id = driver.CLUSTER_DIMENSION
            attributes[count].words[0:3] = launch.cluster
            count += 1
        if launch.overlap and device.cc_major >= HAS_OVERLAP:
            attributes[count].id = driver.PROGRAMMATIC_SERIALIZATION
            attributes[count].words[0] = 1
            count += 1
        config = driver.LaunchConfig(
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(block, 1, 1),
            shared=shared,
            attributes=ctypes.addressof(attributes) if count else None,
            count=count,
        )
        self._alive += [attributes, config]
        self._configs.append(config)
        self._entries.append(launch.entry)
        self._launches.append((ctypes.addressof(config), function, parameters))

    def run(self, addresses: Sequence[int], scalars: tuple[float, ...], stream: int = 0, workspace: int = 0) -> None:
        """Launch on a stream, on arrays at these device addresses, in the order of the plan's operands; scalars in that
        of `plan.scalars`; `workspace` is the address of `workspace_bytes` bytes that this call alone uses.

        Returns before the kernels have run. Raises DriverError when the driver refuses.
        """
        key = (workspace, *addresses)
        if key != self._last:
            self._last = ()
            self._place(addresses, workspace)
            self._last = key
        self._go(scalars, stream)

    def run_at(self, buffers: Sequence[Sequence[int]], scalars: tuple[float, ...], stream: int = 0) -> None:
        """As `run`, with an address for each buffer of each kernel, in the kernels' order: for the gates, which lay
        every one apart from the others."""
        self._last = ()
        for (arguments, _, _), addresses in zip(self._bound, buffers, strict=True):
            arguments.set_addresses(addresses)
        self._go(scalars, stream)

    def _go(self, scalars: tuple[float, ...], stream: int) -> None:
        if scalars != self._scalars or 0.0 in scalars:  # -0.0 equals 0.0 and is another number
            self._scalars = ()
            for arguments, _, which in self._bound:
                arguments.set_scalars([scalars[i] for i in which])
            self._scalars = scalars
        if stream != self._stream:
            for config in self._configs:
                config.stream = stream
            self._stream = stream
        if self._several and driver.current_context() != self._context:
            self._run_elsewhere()
            return
        launch = self._launch
        for config_at, function, parameters in self._launches:
            if code := launch(config_at, function, parameters, None):
                if code == driver.INVALID_CONTEXT and function == self._launches[0][1]:
                    self._run_elsewhere()  # this thread has no context yet
                    return
                self._fail(function, code)

    def _place(self, addresses: Sequence[int], workspace: int) -> None:
        if self.workspace_bytes and not workspace:
            raise DeviceError(f"workspace: want the address of {self.workspace_bytes} bytes")
        start = -(-workspace // ALIGNMENT) * ALIGNMENT
        for arguments, where, _ in self._bound:
            arguments.set_addresses([addresses[i] if given else start + i for given, i in where])

    def _run_elsewhere(self) -> None:
        """The calling thread has another device's context, or none."""
        with in_context(self._context):
            for config_at, function, parameters in self._launches:
                if code := self._launch(config_at, function, parameters, None):
                    self._fail(function, code)

    def _fail(self, function: int, code: int) -> None:
        entry = next(e for e, launch in zip(self._entries, self._launches, strict=True) if launch[1] == function)
        driver.check(f"launch of {entry}", code)


def geometry_refusal(
    grid: Sequence[int], block: int, shared: int, cluster: Sequence[int], device: Device
) -> str | None:
    """Why a device takes no such launch, or None. A grid of no blocks is taken: nothing is launched."""
    for axis, count, most, across in zip("xyz", grid, MOST_GRID, cluster, strict=True):
        if not 0 <= count <= most:
            return f"a grid of {count} blocks along {axis}, want at most {most}"
        if count % across:
            return f"a grid of {count} blocks along {axis} is not a whole number of clusters of {across}"
    if not 1 <= block <= MOST_THREADS:
        return f"a block of {block} threads, want at most {MOST_THREADS}"
    if shared > device.shared_block_bytes:
        return f"a block takes {shared} bytes of shared memory, want at most {device.shared_block_bytes}"
    return None
