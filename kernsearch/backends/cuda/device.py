"""What a GPU is, asked of the driver without making a context: nothing stays on the device, and no memory is taken.

The order in which devices count is the driver's, so CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER hold.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...device import Device
from ...errors import DeviceError
from .architectures import arch_of

NEEDED = {"cuda.bindings": "cuda-bindings", "cupy": "cupy"}  # modules that running kernels takes, and who brings them

_FACTS = {
    "sms": "MULTIPROCESSOR_COUNT",
    "cc_major": "COMPUTE_CAPABILITY_MAJOR",
    "cc_minor": "COMPUTE_CAPABILITY_MINOR",
    "shared_block_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_sm_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_reserved_bytes": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "registers_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "max_threads_block": "MAX_THREADS_PER_BLOCK",
    "max_threads_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_blocks_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "l2_bytes": "L2_CACHE_SIZE",
    "memory_clock_khz": "MEMORY_CLOCK_RATE",
    "memory_bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "sm_clock_khz": "CLOCK_RATE",
    "warp": "WARP_SIZE",
    "ecc": "ECC_ENABLED",
}  # a fact, and the driver's attribute that it is


def this_device(index: int = 0) -> Device:
    """The GPU with an index. Raises DeviceError in one line, and soon, when it cannot be used."""
    if problem := missing(index):
        raise DeviceError(problem)
    return _described(index)


def missing(index: int = 0) -> str | None:
    """Why a GPU cannot be used here, in one line; None when it can."""
    told = f"cuda:{index}: "
    if not has_driver():
        return f"{told}no NVIDIA driver (libcuda.so.1 is not found)"
    for module, package in NEEDED.items():
        if not installed(module):
            return f'{told}the package {package} is missing: pip install "kernsearch[{extra()}]"'
    count = _count()
    if isinstance(count, str):
        return told + count
    wanted, supported = bindings_major(), driver_cuda()
    if supported // 1000 < wanted:
        return (
            f"{told}the driver supports CUDA {_number(supported)}, the installed packages are for CUDA {wanted}:"
            f" install a newer driver or kernsearch[cuda{supported // 1000}]"
        )
    if not index < count:
        return f"{told}this machine has {count or 'no GPU that this process may use'}"
    return None


def count() -> int:
    """How many GPUs this process may use; 0 where `missing` says why."""
    found = 0 if missing() else _count()
    return found if isinstance(found, int) else 0


def cuda_version() -> str:
    """The newest CUDA version that the driver supports, like "13.0"."""
    return _number(driver_cuda())


@cache
def has_driver() -> bool:
    """There is a driver library. Costs nothing where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def installed(module: str) -> bool:
    """A module can be imported, which is not tried."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def extra() -> str:
    """The extra of kernsearch that fits the driver: "cuda12" or "cuda13"."""
    return "cuda12" if has_driver() and 12000 <= driver_cuda() < 13000 else "cuda13"


def bindings_major() -> int:
    """The CUDA version that the installed packages are for: 12, 13."""
    try:
        return int(version("cuda-bindings").split(".")[0])
    except (PackageNotFoundError, ValueError):
        return 0


@cache
def driver_cuda() -> int:
    """The newest CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 when it does not say."""
    found = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    return found.value


@cache
def pci_bus(index: int) -> str:
    """The bus address of a GPU, by which NVML knows it: "0000:1b:00.0"."""
    from cuda.bindings import driver

    handle = _ask(driver.cuDeviceGet, index)
    return _ask(driver.cuDeviceGetPCIBusId, 32, handle).split(b"\0")[0].decode()


@cache
def _count() -> int | str:
    """How many GPUs the driver shows to this process, or what is wrong with it."""
    from cuda.bindings import driver

    (status,) = driver.cuInit(0)
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return 0
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"the NVIDIA driver does not start ({status.name})"
    return _ask(driver.cuDeviceGetCount)


@cache
def _described(index: int) -> Device:
    from cuda.bindings import driver

    from ..cpu.device import usable_cores

    handle = _ask(driver.cuDeviceGet, index)
    name = _ask(driver.cuDeviceGetName, 256, handle).split(b"\0")[0].decode("utf-8", "replace").strip()
    facts: dict[str, Any] = {}
    for fact, attribute in _FACTS.items():
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
        facts[fact] = int(_ask(driver.cuDeviceGetAttribute, which, handle))
    facts |= {
        "threads": facts["sms"],
        "cores": usable_cores(),
        "memory_bytes": int(_ask(driver.cuDeviceTotalMem, handle)),
        "line_bytes": 128,
    }
    arch = arch_of(facts["cc_major"], facts["cc_minor"])
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Device("cuda", index, name, arch, f"cuda-{slug}-{arch.replace('_', '')}", facts)


def _ask(function: Any, *arguments: Any) -> Any:
    """What a driver function returns. Raises DeviceError when it fails."""
    status, *found = function(*arguments)
    if int(status) != 0:
        raise DeviceError(f"the NVIDIA driver refuses {function.__name__} ({status.name})")
    return found[0] if found else None


def _number(packed: int) -> str:
    return f"{packed // 1000}.{packed % 1000 // 10}"
