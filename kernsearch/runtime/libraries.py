"""Libraries whose arrays may lie on a device: what the runtime asks of them, which is little and must be quick.

CuPy and PyTorch are known by name, neither is imported before an array of it is given. Arrays of any other library
come in by DLPack or `__cuda_array_interface__`, as CuPy arrays of the same memory, and results go back by DLPack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..errors import ArrayError, DeviceError, DtypeError
from ..launch import BASE_BYTES, ITEMSIZES, ArrayView

ON_DEVICE = (2, 13)  # DLPack's kinds of memory that kernels reach: CUDA, CUDA managed

# What is asked at every call are plain functions, made once, that look at each attribute once:
# address array -> that of its first element
# form   array -> (address, what of it decides how kernels take it)
# empty  (array like it, shape) -> a new C-contiguous array on the same device
# stream device index -> the current stream's handle
# memory (bytes, device index) -> (what keeps it alive, address), from the caller's pool
Form = Callable[[Any], tuple[int, tuple[Any, ...]]]


class Library:
    """An array library. `name` is what a person calls its arrays."""

    name: str
    address: Callable[[Any], int]
    form: Form
    empty: Callable[[Any, tuple[int, ...]], Any]
    stream: Callable[[int], int]
    memory: Callable[[int, int], tuple[Any, int]]

    def holds(self, array: Any) -> bool:
        """Does the array, which is of this library, lie on a device?"""
        raise NotImplementedError

    def view(self, name: str, array: Any) -> tuple[ArrayView, str, int]:
        """(where it lies, dtype, device index). Raises ArrayError or DtypeError, naming the argument."""
        raise NotImplementedError

    def taken(self, array: Any) -> Any:
        """An array that this library takes as one of its own, of the same memory."""
        return array

    def given(self, array: Any, like: Any) -> Any:
        """A result as an array of the library that `like` came from, if that takes DLPack."""
        return array


class _CuPy(Library):
    name = "CuPy"

    def __init__(self) -> None:
        from ..backends.cuda import arrays

        self._arrays, self._xp = arrays, arrays.xp()
        cuda, ndarray, mask = self._xp.cuda, self._xp.ndarray, BASE_BYTES - 1
        current, alloc = cuda.get_current_stream, cuda.alloc

        def form(array: Any) -> tuple[int, tuple[Any, ...]]:
            data = array.data
            address = data.ptr
            return address, (array.shape, array.strides, array.dtype, address & mask, data.device_id)

        def memory(size: int, device: int) -> tuple[Any, int]:
            block = alloc(size)
            return block, block.ptr

        def memory_there(size: int, device: int) -> tuple[Any, int]:
            block = arrays.empty_bytes(size, device)
            return block, block.ptr

        def empty_there(like: Any, shape: tuple[int, ...]) -> Any:
            with cuda.Device(like.data.device_id):
                return ndarray(shape, like.dtype)

        self.address = lambda array: array.data.ptr
        several = cuda.runtime.getDeviceCount() > 1
        self.form = form
        self.empty = empty_there if several else lambda like, shape: ndarray(shape, like.dtype)
        self.stream = lambda device: current(device).ptr
        self.memory = memory_there if several else memory

    def holds(self, array: Any) -> bool:
        return True

    def view(self, name: str, array: Any) -> tuple[ArrayView, str, int]:
        dtype, size = _known(name, array.dtype.name if array.dtype.isnative else str(array.dtype)), array.itemsize
        if any(s % size for n, s in zip(array.shape, array.strides, strict=True) if n > 1) or array.data.ptr % size:
            raise ArrayError(f"{name} has elements that are not aligned to their {size} bytes: want a copy of it")
        strides = tuple(s // size for s in array.strides)
        return ArrayView(array.data.ptr, array.shape, strides, size), dtype, array.data.device_id

    def taken(self, array: Any) -> Any:
        return self._arrays.from_any(array)

    def given(self, array: Any, like: Any) -> Any:
        space = getattr(like, "__array_namespace__", None)
        if isinstance(like, self._xp.ndarray) or space is None:
            return array
        return space().from_dlpack(array)


class _Torch(Library):
    name = "PyTorch"

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        mask = BASE_BYTES - 1
        kinds = {getattr(torch, name): name for name in ITEMSIZES if hasattr(torch, name)}
        self._kinds = kinds
        new, byte, recording = torch.empty, torch.uint8, torch.is_grad_enabled
        places = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

        def form(tensor: Any) -> tuple[int, tuple[Any, ...]]:
            address = tensor.data_ptr()
            return address, (
                tensor.shape, tensor.stride(), tensor.dtype, address & mask, tensor.get_device(),
                tensor.requires_grad and recording(),
            )  # fmt: skip

        def memory(size: int, device: int) -> tuple[Any, int]:
            block = new(size, dtype=byte, device=places[device])
            return block, block.data_ptr()

        self.address = lambda tensor: tensor.data_ptr()
        self.form = form
        self.empty = lambda like, shape: like.new_empty(shape)
        self.stream = torch._C._cuda_getCurrentRawStream if hasattr(torch._C, "_cuda_getCurrentRawStream") else (
            lambda device: torch.cuda.current_stream(device).cuda_stream
        )  # fmt: skip
        self.memory = memory

    def holds(self, tensor: Any) -> bool:
        return tensor.is_cuda

    def view(self, name: str, tensor: Any) -> tuple[ArrayView, str, int]:
        torch = self._torch
        dtype = _known(name, self._kinds.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")))
        if tensor.layout is not torch.strided or tensor.is_neg():
            raise ArrayError(f"{name} is a tensor of layout {tensor.layout}: want a strided one")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ArrayError(f"{name} requires a gradient, which is not computed here: detach it, or use torch.no_grad")
        shape, size = tuple(tensor.shape), tensor.element_size()
        return ArrayView(tensor.data_ptr(), shape, tuple(tensor.stride()), size), dtype, tensor.get_device()


_BY_NAME: dict[str, Library] = {}
BY_TYPE: dict[type, Library] = {}  # types of arrays that were given before, and who makes them


def of(array: Any) -> Library | None:
    """The library that takes an array on a device; None for anything that is not on one, as NumPy's arrays."""
    kind = type(array)
    library = BY_TYPE.get(kind)
    if library is None:
        library = _made_by(kind)
        if library is None:
            return _library("cupy") if _elsewhere(array) else None
        BY_TYPE[kind] = library
    return library if library.holds(array) else None


def _made_by(kind: type) -> Library | None:
    for base in kind.__mro__:
        root, name = base.__module__.partition(".")[0], base.__name__
        if (root, name) in (("cupy", "ndarray"), ("torch", "Tensor")):
            return _library(root)
    return None


def _library(name: str) -> Library:
    if name not in _BY_NAME:
        _BY_NAME[name] = _CuPy() if name == "cupy" else _Torch()
    return _BY_NAME[name]


def _elsewhere(array: Any) -> bool:
    """Is the array, of a library that is not known by name, on a device?"""
    where = getattr(array, "__dlpack_device__", None)
    if callable(where):
        return int(where()[0]) in ON_DEVICE
    return hasattr(array, "__cuda_array_interface__")


def whereabouts(array: Any) -> str:
    """'in host memory' or 'on cuda:1', for messages."""
    library = of(array)
    return "in host memory" if library is None else f"on cuda:{library.view('it', library.taken(array))[2]}"


def _known(name: str, dtype: str) -> str:
    if dtype not in ITEMSIZES:
        raise DtypeError(f"{name} is {dtype}: no kernel takes it; nothing is converted")
    return dtype


def room(make: Callable[..., Any], *arguments: Any, what: str, device: int) -> Any:
    """What `make` gives. Raises DeviceError in one line when the device has no memory left for it."""
    try:
        return make(*arguments)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "OutOfMemory" in str(type(error)):
            raise DeviceError(f"cuda:{device} has no memory left for {what}") from error
        raise
