"""The few functions of NVIDIA's driver that loading and launching take, called directly: a launch costs a microsecond.

Everything happens in the primary context of a device, which CuPy and PyTorch use too, so that their arrays and streams
are ours.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import cache

from ...errors import DeviceError

CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID
SHARED_BYTES, LOCAL_BYTES, REGISTERS, BINARY_VERSION = 1, 3, 4, 6  # CUfunction_attribute
INVALID_CONTEXT = 201  # CUresult: no context, or one that was destroyed, is current
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14


class DriverError(DeviceError):
    """The driver refuses. `code` and `name` are the driver's: 700, "CUDA_ERROR_ILLEGAL_ADDRESS"."""

    def __init__(self, what: str, code: int):
        self.code, self.name = code, _error_name(code)
        super().__init__(f"{what}: the NVIDIA driver answers {self.name}")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; `words` is the head of its union."""

    _fields_ = (("id", c_int), ("pad", c_char * 4), ("words", c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared", c_uint32),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint32),
    )


_PARAMETERS: dict[str, tuple[type, ...]] = {
    "cuInit": (c_uint32,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint32, c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint32),
        POINTER(c_uint32), c_int, c_int, c_int, c_int,
    ),
}  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """The driver, with the parameters of what is used declared. Raises DeviceError where it is absent or too old."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
        for name, parameters in _PARAMETERS.items():
            function = getattr(found, name)
            function.argtypes, function.restype = parameters, c_int
    except (OSError, AttributeError) as error:
        raise DeviceError(f"no usable NVIDIA driver: {error}") from None
    if code := found.cuInit(0):
        raise DeviceError(f"the NVIDIA driver does not start ({code})")
    return found


def check(what: str, code: int) -> None:
    """Raises DriverError, which begins with `what`, for any answer but success."""
    if code:
        raise DriverError(what, code)


@cache
def primary_context(index: int) -> int:
    """The primary context of a device, kept for as long as the process lives. Does not make it current."""
    context, device = c_void_p(), c_int()
    check(f"cuda:{index}", library().cuDeviceGet(ctypes.byref(device), index))
    check(f"cuda:{index}", library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    assert context.value is not None
    return context.value


@cache
def device_count() -> int:
    """How many GPUs this process may use."""
    count = c_int()
    check("count devices", library().cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def current_context() -> int:
    """The context of the calling thread; 0 when it has none."""
    context = c_void_p()
    check("current context", library().cuCtxGetCurrent(ctypes.byref(context)))
    return context.value or 0


def use(context: int) -> None:
    """Make a context the calling thread's."""
    check("set context", library().cuCtxSetCurrent(context))


def _error_name(code: int) -> str:
    text = c_char_p()
    if library().cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
        return f"error {code}"
    return text.value.decode()
