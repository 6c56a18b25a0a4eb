"""Arrays on a GPU, whoever made them: CuPy's, PyTorch's, or anything that speaks DLPack or the CUDA array interface.

The only place that imports CuPy, and not before it is needed. Nothing here copies between host and device but
`from_host` and `to_host`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...errors import ArrayError, DeviceError

DLPACK_CUDA = (2, 13)  # DLDeviceType: CUDA memory, managed memory


class View(NamedTuple):
    """Where an array's elements are: `pointer` on GPU number `device`, `strides` in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "float32", "bfloat16"
    device: int


@cache
def xp() -> Any:
    """CuPy. Raises DeviceError in one line when it is missing."""
    try:
        import cupy
    except ImportError as error:
        from .device import extra

        raise DeviceError(f'arrays on a GPU need CuPy ({error}): pip install "kernsearch[{extra()}]"') from None
    return cupy


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of that name as CuPy and NumPy know it; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def is_on_device(array: Any) -> bool:
    """Is this an array in the memory of a GPU?"""
    if is_tensor(array):
        return bool(array.is_cuda)
    if isinstance(array, np.ndarray):
        return False
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in DLPACK_CUDA
    return hasattr(array, "__cuda_array_interface__")


def is_tensor(array: Any) -> bool:
    """Is this a tensor of PyTorch? Does not import it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def view(array: Any) -> View:
    """Where a GPU array is. Raises ArrayError for anything else."""
    if is_tensor(array):
        if not array.is_cuda:
            raise ArrayError("a tensor on the CPU: want arrays on the GPU, tensor.cuda() moves one there")
        name, index = str(array.dtype).rpartition(".")[2], array.device.index
        return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), name, index)
    if not isinstance(array, xp().ndarray):
        array = from_any(array)
    size = array.itemsize
    return View(array.data.ptr, array.shape, tuple(s // size for s in array.strides), array.dtype.name, array.device.id)


def from_any(array: Any) -> Any:
    """A CuPy array over the same memory. Raises ArrayError for an array that is not on a GPU."""
    cupy = xp()
    if isinstance(array, cupy.ndarray):
        return array
    if not is_on_device(array):
        raise ArrayError(f"a {type(array).__name__} on the host: want arrays on the GPU, cupy.asarray copies one there")
    if is_tensor(array):
        torch, tensor = sys.modules["torch"], array.detach()
        if tensor.dtype == torch.bfloat16:
            return cupy.from_dlpack(tensor.view(torch.int16)).view(dtype_of("bfloat16"))
        return cupy.from_dlpack(tensor)
    return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)


def common_device(arrays: Mapping[str, Any]) -> int:
    """The GPU on which all arrays are, by the names under which they are known.

    Raises ArrayError when some are on the host and others are not, or when they are on different GPUs.
    """
    where: dict[str, int] = {}
    for name, array in arrays.items():
        if not is_on_device(array):
            there = next((other for other in arrays if is_on_device(arrays[other])), None)
            also = f", array {there} on a GPU" if there else ""
            raise ArrayError(f"array {name} is on the host{also}: want all on one GPU")
        where[name] = device_index(array)
    (first, index), *rest = where.items()
    for name, other in rest:
        if other != index:
            raise ArrayError(f"array {first} is on cuda:{index}, array {name} on cuda:{other}: want all on one GPU")
    return index


def device_index(array: Any) -> int:
    """The number of the GPU that holds an array."""
    if is_tensor(array):
        return int(array.device.index)
    if isinstance(array, xp().ndarray):
        return int(array.device.id)
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[1])
    return int(from_any(array).device.id)


def empty(shape: Sequence[int], dtype: str, device: int | None = None) -> Any:
    """A C-contiguous CuPy array whose contents are anything, from CuPy's memory pool (or the caller's allocator)."""
    cupy = xp()
    if device is None or device == cupy.cuda.runtime.getDevice():
        return cupy.empty(tuple(shape), dtype_of(dtype))
    with cupy.cuda.Device(device):
        return cupy.empty(tuple(shape), dtype_of(dtype))


def empty_bytes(size: int, device: int | None = None) -> Any:
    """Memory of the same pool: `.ptr` is its address, a multiple of 256; it is given back when it is dropped, for use
    by later work on the stream that is current now."""
    cupy = xp()
    if device is None or device == cupy.cuda.runtime.getDevice():
        return cupy.cuda.alloc(size)
    with cupy.cuda.Device(device):
        return cupy.cuda.alloc(size)


def from_host(array: np.ndarray, device: int | None = None) -> Any:
    """A copy on a GPU, of the same dtype."""
    out = empty(array.shape, array.dtype.name, device)
    if array.size:
        bits = np.dtype(f"u{array.itemsize}")  # so that CuPy need not know the dtype
        out.view(bits).set(np.ascontiguousarray(array).view(bits))
    return out


def to_host(array: Any) -> np.ndarray:
    """A copy as a NumPy array, when all work on the current stream is done."""
    array = xp().ascontiguousarray(from_any(array))
    return array.view(np.dtype(f"u{array.itemsize}")).get().view(array.dtype)


def current_stream(array: Any = None) -> int:
    """The current stream as an address: PyTorch's for a tensor of it, on the tensor's GPU, else CuPy's."""
    if array is not None and is_tensor(array):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return int(xp().cuda.get_current_stream().ptr)


@contextlib.contextmanager
def on(stream: Any) -> Iterator[None]:
    """CuPy's current stream inside is this one; afterwards it is the one before, which CuPy itself forgets where `use`
    and not `with` had made it current."""
    now = xp().cuda.get_current_stream
    before = now()
    try:
        with stream:
            yield
    finally:
        if now().ptr != before.ptr:
            before.use()


def is_capturing(stream: int) -> bool:
    """Is this stream being captured into a CUDA graph?"""
    return bool(xp().cuda.runtime.streamIsCapturing(stream))


def synchronize(stream: int | None = None) -> None:
    """Wait for a stream, or for all work on the current GPU. Raises CuPy's error when a kernel has failed."""
    runtime = xp().cuda.runtime
    if stream is None:
        runtime.deviceSynchronize()
    else:
        runtime.streamSynchronize(stream)
