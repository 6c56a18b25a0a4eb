"""What NVML says of a GPU at this moment: clocks, power, temperature, and whether something holds it back.

Everything is None where there is no NVML; nothing here makes a context or disturbs what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...device import Device
from ...errors import DeviceError

# Bits of NVML's clock event reasons that mean less speed than asked for; being idle or set to fixed clocks is neither.
_REASONS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "synchronized boost",
    0x020: "temperature (software)",
    0x040: "temperature (hardware)",
    0x080: "power brake",
}


@dataclass(frozen=True)
class State:
    """One moment of a GPU; None for what it does not tell.

    sm_mhz, memory_mhz          clocks now
    sm_max_mhz, memory_max_mhz  what they could be
    power_w, power_limit_w      drawn now, and allowed
    temperature_c               of the chip
    throttled                   words for what holds the clocks back, such as "power cap"; empty when nothing does
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()


def state(device: Device) -> State | None:
    """The state of a GPU now, None without NVML or for a device that is not here."""
    from . import device as devices

    if device.backend != "cuda" or devices.missing(device.index) or devices.this_device(device.index) != device:
        return None
    nvml, handle = _started(), _handle(device.index)
    if nvml is None or handle is None:
        return None

    def told(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(handle, *arguments)
        except nvml.NVMLError:
            return None

    def watts(milliwatts: int | None) -> float | None:
        return None if milliwatts is None else milliwatts / 1000

    return State(
        sm_mhz=told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_mhz=told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        sm_max_mhz=told(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        memory_max_mhz=told(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
        power_w=watts(told(nvml.nvmlDeviceGetPowerUsage)),
        power_limit_w=watts(told(nvml.nvmlDeviceGetEnforcedPowerLimit)),
        temperature_c=told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        throttled=words(told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0),
    )


def words(reasons: int) -> tuple[str, ...]:
    """NVML's bits of what holds clocks back, in words."""
    return tuple(word for bit, word in _REASONS.items() if reasons & bit)


@cache
def driver() -> str | None:
    """The driver's version, like "580.95.05"; None when there is no driver."""
    if nvml := _started():
        found = nvml.nvmlSystemGetDriverVersion()
        return found.decode() if isinstance(found, bytes) else found
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)


@cache
def _started() -> Any:
    """The NVML module, started for this process; None when it does not work here."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@cache
def _handle(index: int) -> Any:
    from .device import pci_bus

    if (nvml := _started()) is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(pci_bus(index).encode())
    except (nvml.NVMLError, DeviceError):
        return None
