"""One CUDA kernel as a whole plan, run on NumPy arrays: on the host, threads as fibers, or on a GPU.

Both ways fill in `ks_args` as a call does, so that what the host packs and what the header declares are held against
each other.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import host_cuda
import numpy as np

from kernsearch import backends, launch
from kernsearch.backends.cuda import emit
from kernsearch.backends.cuda.arguments import Arguments
from kernsearch.binding import Binding
from kernsearch.device import Device
from kernsearch.launch import ArrayView
from kernsearch.plan import KernelPlan, Operand, Plan
from kernsearch.sizes import evaluate

ZONE = 256  # bytes on both sides of scratch that nothing may write to


def nominal(arch="sm_90a") -> Device:
    return backends.get("cuda").compile_only(arch)


def plan_of(binding: Binding, template, config, device: Device) -> Plan:
    """A plan of one kernel whose arrays are all the caller's."""
    used = {axis for array in binding.arrays for axis in array.axes}
    binding = replace(binding, extents={axis: e for axis, e in binding.extents.items() if axis in used})
    kernel = emit.kernel_plan(binding, template, config, device)
    return plan_around(binding, kernel, config)


def plan_around(binding: Binding, kernel: KernelPlan, config) -> Plan:
    written = {root.array for root in binding.roots}
    sizes = {e for e in binding.extents.values() if e not in config}
    operands = tuple(
        Operand(
            array.name,
            array.dtype,
            array.axes,
            tuple(str(config.get(binding.extents[a], binding.extents[a])) for a in array.axes),
            "output" if array.name in written else "input",
        )
        for array in binding.arrays
    )
    return Plan("cuda", tuple(sorted(sizes)), operands, dict.fromkeys(binding.scalars, 1.0), (), (kernel,))


def dtype_of(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class OnHost:
    """Runs threads one after the other; `backwards`, the last one first."""

    device: Device
    backwards: bool = False

    def run(self, plan: Plan, binding: Binding, arrays, scalars=None, *, missing=()):
        """Run on arrays by name; those in `missing` are at an address that cannot be read."""
        addresses = {name: 0 if name in missing else array.ctypes.data for name, array in arrays.items()}
        call = launch.resolve(plan, _views(arrays, addresses), scalars, threads=1)
        (resolved,) = call.kernels
        scratch = np.full(resolved.scratch_bytes + 2 * ZONE + launch.BASE_BYTES, 0xFF, np.uint8)
        inside = ZONE + -(scratch.ctypes.data + ZONE) % launch.BASE_BYTES
        arguments = Arguments(resolved, call.names)
        arguments.set_addresses([addresses.get(name, scratch.ctypes.data + inside) for name in resolved.buffers])
        for one in resolved.kernel.launches:
            library = host_cuda.build(_launching(resolved.kernel, one))
            library.host_size.restype = ctypes.c_ulong
            assert library.host_size() == arguments.size
            grid = (ctypes.c_uint * 3)(*(evaluate(text, call.names) for text in one.grid))
            threads = evaluate(one.block, call.names)
            assert not library.host_run(arguments.tobytes(), grid, threads, int(self.backwards))
        end = inside + resolved.scratch_bytes
        assert (scratch[:inside] == 0xFF).all() and (scratch[end:] == 0xFF).all(), "wrote past its scratch"
        return scratch[inside:end]


@dataclass(frozen=True)
class OnGpu:
    """Compiles for a GPU and runs there, through the launcher."""

    device: Device

    def run(self, plan: Plan, binding: Binding, arrays, scalars=None, *, missing=()):
        from kernsearch.backends.cuda import arrays as on_device
        from kernsearch.backends.cuda.launcher import Launcher
        from kernsearch.backends.cuda.modules import Module

        compiled = backends.get("cuda").compile(plan.kernels[0], self.device, timeout_s=120)
        memory = {name: _Memory(array) for name, array in arrays.items()}
        addresses = {name: 0 if name in missing else block.address for name, block in memory.items()}
        call = launch.resolve(plan, _views(arrays, addresses), scalars, threads=self.device.sms)
        with Module(compiled.path, self.device.index) as module:
            launcher = Launcher(plan, call, [module], self.device)
            room = on_device.empty((launcher.workspace_bytes + 2 * ZONE,), "uint8", self.device.index)
            room.fill(0xFF)
            values = tuple((scalars or {}).get(name, 1.0) for name in plan.scalars)
            where = [addresses[operand.name] for operand in plan.operands]
            launcher.run(where, values, on_device.current_stream(), room.data.ptr + ZONE)
            on_device.synchronize()
        for block in memory.values():
            block.back()
        bits = on_device.to_host(room)
        assert (bits[:ZONE] == 0xFF).all() and (bits[-ZONE:] == 0xFF).all(), "wrote past its scratch"
        return bits[ZONE : len(bits) - ZONE]


class _Memory:
    """The memory of a NumPy array on a GPU: the same strides, and the same alignment."""

    def __init__(self, array: np.ndarray):
        from kernsearch.backends.cuda import arrays as on_device

        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (array.ctypes.data, array.ctypes.data)
        self.host = np.frombuffer((ctypes.c_char * max(high - low, 1)).from_address(low), np.uint8)
        self.skip = low % launch.BASE_BYTES
        self.room = on_device.empty((self.skip + len(self.host),), "uint8")
        self.room[self.skip :].set(self.host)
        self.address = self.room.data.ptr + self.skip + array.ctypes.data - low

    def back(self) -> None:
        self.host[:] = self.room[self.skip :].get()


def _views(arrays, addresses) -> dict[str, ArrayView]:
    return {
        name: ArrayView(addresses[name], array.shape, tuple(s // array.itemsize for s in array.strides), array.itemsize)
        for name, array in arrays.items()
    }


def _launching(kernel: KernelPlan, one) -> KernelPlan:
    import msgspec

    return msgspec.structs.replace(kernel, launches=(one,))
