"""What gemm is compared with on a GPU: PyTorch eager and compiled, CuPy, and a plain Triton kernel of our own.

All compute the same precision class: float32 is float32 (no TF32), 16-bit types accumulate in float32 and reduce in it.
They serve bmm too: leading dimensions go through as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.peers import Copy, OnDevice, Peer
from kernsearch.peers.peer import as_float
from kernsearch.peers.tensors import fetched, on_device
from kernsearch.problem import Problem

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def _activation(problem: Problem) -> str | None:
    words = set(str(problem.option("epilogue")).split(",")) - {"none", "bias", "residual"}
    return next(iter(words), None)


def _turned(problem: Problem, a: Any, b: Any, turn: Callable[[Any], Any]) -> tuple[Any, Any]:
    """op(A) and op(B) as views; `turn` swaps the last two dimensions."""
    layout = str(problem.option("layout"))
    return (a if layout[0] == "n" else turn(a)), (b if layout[1] == "n" else turn(b))


def _result_shape(problem: Problem) -> tuple[int, ...]:
    return problem.shape[:-1]


# -- PyTorch


def _torch() -> Any:
    """PyTorch in the precision class of the problem: no TF32, and partial sums stay float32."""
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    return torch


class _Tensors:
    """One set of operands as tensors on a device."""

    def __init__(self, torch: Any, problem: Problem, inputs: Arrays, index: int):
        self.torch = torch
        device = torch.device("cuda", index)
        given = on_device(torch, inputs, index)
        self.a, self.b = _turned(problem, given["A"], given["B"], lambda x: x.mT)
        self.bias, self.c = given.get("bias"), given.get("C")
        self.out = torch.empty(_result_shape(problem), dtype=given["A"].dtype, device=device)

    def fetch(self) -> np.ndarray:
        return fetched(self.out)


def _torch_activation(torch: Any, name: str) -> Callable[[Any], Any]:
    functional = torch.nn.functional
    return {
        "relu": functional.relu,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }[name]


def _expression(torch: Any, problem: Problem, scalars: Scalars) -> Callable[[Any, Any, Any, Any], Any]:
    """(a, b, bias, c) -> the result, as a user of PyTorch writes it: F.linear for a bias with a transposed weight."""
    alpha, beta = scalars.get("alpha", 1.0), scalars.get("beta", 1.0)
    activation = _activation(problem)
    act = None if activation is None else _torch_activation(torch, activation)
    linear = str(problem.option("layout"))[1] == "t" and alpha == 1 and len(problem.shape) == 3

    def compute(a: Any, b: Any, bias: Any, c: Any) -> Any:
        if bias is not None and linear:
            x = torch.nn.functional.linear(a, b.mT, bias)
        elif bias is not None and a.ndim == 2:
            x = torch.addmm(bias, a, b, alpha=alpha)
        else:
            x = torch.matmul(a, b)
            x = x if alpha == 1 else x * alpha
            x = x if bias is None else x + bias
        if c is not None and beta != 0:
            x = torch.add(x, c, alpha=beta)
        return x if act is None else act(x)

    return compute


def _eager(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """torch.matmul(out=) for a bare product, else the expression as written."""
    torch = _torch()
    bare = str(problem.option("epilogue")) == "none" and scalars.get("alpha", 1.0) == 1
    compute = _expression(torch, problem, scalars)

    def copy() -> Copy:
        x = _Tensors(torch, problem, inputs, index)
        if bare:
            return Copy(lambda: torch.matmul(x.a, x.b, out=x.out), x.fetch)

        def call() -> None:
            x.out = compute(x.a, x.b, x.bias, x.c)  # kept, so that each copy has a result of its own

        return Copy(call, x.fetch)

    return OnDevice(copy)


def _compiled(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """The same expression through torch.compile at its most eager to tune."""
    torch = _torch()
    torch._dynamo.reset()
    compute = torch.compile(
        _expression(torch, problem, scalars), mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True
    )

    def copy() -> Copy:
        x = _Tensors(torch, problem, inputs, index)

        def call() -> None:
            x.out = compute(x.a, x.b, x.bias, x.c)

        return Copy(call, x.fetch)

    return OnDevice(copy)


def _describe_torch() -> str:
    torch = importlib.import_module("torch")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


def _describe_compiled() -> str:
    return f"{_describe_torch()}, max-autotune-no-cudagraphs"


# -- CuPy

_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F = 68  # cublasComputeType_t
_DEFAULT_ALGORITHM, _NO_REDUCED_PRECISION_REDUCTION = -1, 16


def _cupy(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """cupy.matmul(out=), then the epilogue as one fused elementwise kernel.

    CuPy refuses every call of cuBLAS while a stream is captured, so what cupy.matmul calls is called beside it: the
    same library through the same handle, with the default algorithm.
    """
    from kernsearch.backends.cuda import arrays

    xp = arrays.xp()
    alpha, beta = scalars.get("alpha", 1.0), scalars.get("beta", 1.0)
    finish = _cupy_epilogue(xp, problem, alpha, beta)

    def copy() -> Copy:
        given = {name: arrays.from_host(array) for name, array in inputs.items()}
        out = arrays.empty(_result_shape(problem), problem.dtype)
        product = _cublas(xp, problem, given["A"], given["B"], out)
        more = [given[name] for name in ("bias", "C") if name in given]

        def call() -> None:
            product()
            if finish is not None:
                finish(*more, out)

        return Copy(call, lambda: as_float(arrays.to_host(out)))

    return OnDevice(copy)


def _cublas(xp: Any, problem: Problem, a: Any, b: Any, out: Any) -> Callable[[], None]:
    """op(A) op(B) into `out`, all C-contiguous: to cuBLAS, which goes by columns, this is out^T = op(B)^T op(A)^T."""
    import ctypes

    *batch, m, n, k = problem.shape
    layout = str(problem.option("layout"))
    handle = xp.cuda.device.get_cublas_handle()
    xp.matmul(xp.ones((2, 2), "float32"), xp.ones((2, 2), "float32"))  # loads the library, if it is not yet
    library = ctypes.CDLL(_loaded("libcublas.so"))
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    kind = _TYPES[problem.dtype]
    operations = [0 if letter == "n" else 1 for letter in (layout[1], layout[0])]
    widths = [n if layout[1] == "n" else k, k if layout[0] == "n" else m]

    def operand(array: Any, width: int, matrix: int) -> list[Any]:
        step = [whole(matrix)] if batch else []
        return [pointer(array.data.ptr), ctypes.c_int(kind), ctypes.c_int(width), *step]

    arguments = [
        pointer(handle), *map(ctypes.c_int, (*operations, n, m, k)), ctypes.byref(one),
        *operand(b, widths[0], k * n), *operand(a, widths[1], m * k), ctypes.byref(zero), *operand(out, n, m * n),
        *([ctypes.c_int(batch[0])] if batch else []), ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_DEFAULT_ALGORITHM),
    ]  # fmt: skip
    function = library.cublasGemmStridedBatchedEx if batch else library.cublasGemmEx

    def call() -> None:
        stream = pointer(xp.cuda.get_current_stream().ptr)
        _succeed(library.cublasSetStream_v2(pointer(handle), stream))
        _succeed(library.cublasSetMathMode(pointer(handle), ctypes.c_int(_NO_REDUCED_PRECISION_REDUCTION)))
        _succeed(function(*arguments))

    return call


def _succeed(status: int) -> None:
    if status != 0:
        raise PeerError(f"cuBLAS answers with status {status}")


def _loaded(start: str) -> str:
    """The path of a library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if start in line}
    if not found:
        raise PeerError(f"CuPy has loaded no {start}")
    return min(found)


_CUPY_ACTIVATIONS = {
    None: "x",
    "relu": "x > 0 ? x : 0.0f",
    "silu": "x / (1.0f + expf(-x))",
    "gelu": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "gelu_tanh": "x / (1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)))",
}


def _cupy_epilogue(xp: Any, problem: Problem, alpha: float, beta: float) -> Any:
    """One elementwise kernel over the result, in place; None when there is nothing to do."""
    words = str(problem.option("epilogue")).split(",")
    if words == ["none"] and alpha == 1:
        return None
    names = [name for word, name in (("bias", "bias"), ("residual", "c")) if word in words]
    terms = {"bias": "(float)bias", "c": f"{beta!r}f * (float)c"}
    value = " + ".join([f"{alpha!r}f * (float)d", *(terms[name] for name in names)])
    return xp.ElementwiseKernel(
        ", ".join(f"T {name}" for name in names), "T d",
        f"const float x = {value}; d = (T)({_CUPY_ACTIVATIONS[_activation(problem)]});", "peer_epilogue",
    )  # fmt: skip


def _describe_cupy() -> str:
    from kernsearch.backends.cuda import arrays

    xp = arrays.xp()
    return f"cupy {xp.__version__}, cuBLAS {xp.cuda.cublas.getVersion(xp.cuda.device.get_cublas_handle())}"


# -- Triton


def _triton_file() -> Path:
    """benchmarks/triton_gemm.py of the repository that this package is imported from."""
    import kernsearch

    return Path(kernsearch.__file__).resolve().parent.parent / "benchmarks" / "triton_gemm.py"


def _triton_needs(problem: Problem) -> tuple[str, ...]:
    if not _triton_file().is_file():
        raise PeerError(
            "peer 'triton': its kernel is benchmarks/triton_gemm.py of the source tree, which an installed package "
            "does not hold; want kernsearch installed by `pip install -e .` from the repository"
        )
    return ("triton", "torch")


@cache
def _triton_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernsearch_triton_gemm", _triton_file())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton asks for the module of a kernel's helpers by name
    spec.loader.exec_module(module)
    return module


def _triton(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """Our plain kernel, tuned by triton.autotune at the first call."""
    torch, module, details = _torch(), _triton_module(), {}
    named = {"alpha": scalars.get("alpha", 1.0), "beta": scalars.get("beta", 1.0), "activation": _activation(problem)}

    def copy() -> Copy:
        x = _Tensors(torch, problem, inputs, index)

        def call() -> None:
            module.gemm(x.a, x.b, x.out, bias=x.bias, c=x.c, **named)

        def fetch() -> np.ndarray:
            details["config"] = module.chosen(x.out)
            return x.fetch()

        return Copy(call, fetch)

    return OnDevice(copy, details)


def _describe_triton() -> str:
    return f"triton {importlib.import_module('triton').__version__}, autotuned"


PEERS = (
    Peer("torch", lambda problem: ("torch",), _eager, _describe_torch),
    Peer("torch-compile", lambda problem: ("torch",), _compiled, _describe_compiled),
    Peer("cupy", lambda problem: ("cupy",), _cupy, _describe_cupy, graphs="cupy"),
    Peer("triton", _triton_needs, _triton, _describe_triton),
)
