"""What gemm is compared with: NumPy (its BLAS) and PyTorch, and our own `matmul` beside the plan."""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.namespace import numpy_dtype
from kernsearch.peers import Peer, Ready
from kernsearch.peers.tensors import tensor
from kernsearch.problem import Problem

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def _steps(problem: Problem) -> set[str]:
    return set(str(problem.option("epilogue")).split(",")) - {"none"}


def _activation(problem: Problem) -> str | None:
    return next(iter(_steps(problem) - {"bias", "residual"}), None)


def _matrices(problem: Problem, inputs: Any) -> tuple[Any, Any]:
    """op(A) and op(B), as views; works for arrays and tensors."""
    layout = str(problem.option("layout"))
    return (inputs["A"] if layout[0] == "n" else inputs["A"].T), (inputs["B"] if layout[1] == "n" else inputs["B"].T)


def _output(problem: Problem) -> np.ndarray:
    from kernsearch.peers.child import aligned

    m, n, _ = problem.shape
    return aligned(np.zeros((m, n), numpy_dtype(problem.dtype)))


def _numpy(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """np.matmul into the output, then the epilogue in place, one pass a step."""
    np.seterr(all="ignore")
    a, b = _matrices(problem, inputs)
    out = _output(problem)
    alpha, beta = scalars.get("alpha", 1.0), scalars.get("beta", 1.0)
    dtype = out.dtype.type
    steps: list[Callable[[], Any]] = [lambda: np.matmul(a, b, out=out)]
    if alpha != 1:
        steps.append(lambda: np.multiply(out, dtype(alpha), out=out))
    if "bias" in inputs:
        steps.append(lambda: np.add(out, inputs["bias"], out=out))
    if "C" in inputs and beta != 0:
        scaled, c = np.empty_like(out), inputs["C"]
        if beta != 1:
            steps.append(lambda: np.multiply(c, dtype(beta), out=scaled))
        addend = c if beta == 1 else scaled
        steps.append(lambda: np.add(out, addend, out=out))
    if (name := _activation(problem)) is not None:
        steps.append(_numpy_activation(name, out))

    def call() -> None:
        for step in steps:
            step()

    return Ready(steps[0] if len(steps) == 1 else call, out)


def _numpy_activation(name: str, out: np.ndarray) -> Callable[[], Any]:
    dtype = out.dtype.type
    work = np.empty_like(out)

    def silu(factor: float, argument: np.ndarray) -> None:
        """out / (1 + exp(-factor * argument)); `work` may be the argument."""
        np.multiply(argument, dtype(-factor), out=work)
        np.exp(work, out=work)
        np.add(work, dtype(1), out=work)
        np.divide(out, work, out=out)

    def gelu_tanh() -> None:
        np.multiply(out, out, out=work)
        np.multiply(work, dtype(0.044715), out=work)
        np.add(work, dtype(1), out=work)
        np.multiply(work, out, out=work)
        silu(1.5957691216057308, work)

    def gelu() -> None:
        from scipy.special import erf  # type: ignore[import-untyped, unused-ignore]

        np.multiply(out, dtype(0.7071067811865476), out=work)
        erf(work, out=work)
        np.add(work, dtype(1), out=work)
        np.multiply(work, dtype(0.5), out=work)
        np.multiply(out, work, out=out)

    return {
        "relu": lambda: np.maximum(out, dtype(0), out=out),
        "silu": lambda: silu(1.0, out),
        "gelu_tanh": gelu_tanh,
        "gelu": gelu,
    }[name]


def _numpy_needs(problem: Problem) -> tuple[str, ...]:
    if problem.dtype not in ("float32", "float64"):
        raise PeerError(f"peer 'numpy': its BLAS has no {problem.dtype}; want torch")
    return ("numpy", "scipy") if _activation(problem) == "gelu" else ("numpy",)


def _describe_numpy() -> str:
    """'numpy 2.4.6, OpenBLAS 0.3.31 SkylakeX': asks the loaded library itself which kernels it chose."""
    blas = openblas()
    return f"numpy {np.__version__}" + (f", {blas}" if blas else "")


def openblas() -> str | None:
    """Version and kernel name of the OpenBLAS that this process has loaded, if it has one."""
    try:
        with open("/proc/self/maps") as maps:
            paths = sorted({match for line in maps for match in re.findall(r"/\S*openblas\S*", line)})
    except OSError:
        return None
    for path in paths:
        library = ctypes.CDLL(path)
        for suffix in ("64_", ""):
            for prefix in ("scipy_openblas", "openblas"):
                try:
                    name, config = (getattr(library, f"{prefix}_get_{what}{suffix}") for what in ("corename", "config"))
                except AttributeError:
                    continue
                name.restype = config.restype = ctypes.c_char_p
                version = " ".join(config().decode().split()[:2])
                return f"{version} {name().decode()}"
    return None


def _torch(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """torch.addmm or mm into the output, then the epilogue in place."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    tensors = {name: tensor(torch, array) for name, array in inputs.items()}
    a, b = _matrices(problem, tensors)
    result = _output(problem)
    out = tensor(torch, result)
    alpha, beta = scalars.get("alpha", 1.0), scalars.get("beta", 1.0)
    bias, c = tensors.get("bias"), tensors.get("C") if beta != 0 else None
    steps: list[Callable[[], Any]] = []
    if c is not None:
        steps.append(lambda: torch.addmm(c, a, b, beta=beta, alpha=alpha, out=out))
        if bias is not None:
            steps.append(lambda: out.add_(bias))
    elif bias is not None:
        steps.append(lambda: torch.addmm(bias, a, b, alpha=alpha, out=out))
    else:
        steps.append(lambda: torch.mm(a, b, out=out))
        if alpha != 1:
            steps.append(lambda: out.mul_(alpha))
    if (name := _activation(problem)) is not None:
        nn = torch._C._nn  # where the variants that write into `out` are
        steps.append({
            "relu": out.relu_,
            "silu": lambda: torch.nn.functional.silu(out, inplace=True),
            "gelu": lambda: nn.gelu(out, approximate="none", out=out),
            "gelu_tanh": lambda: nn.gelu(out, approximate="tanh", out=out),
        }[name])  # fmt: skip

    def call() -> None:
        for step in steps:
            step()

    return Ready(steps[0] if len(steps) == 1 else call, result)


def _describe_torch() -> str:
    torch = importlib.import_module("torch")
    library = re.search(r"(oneAPI Math Kernel Library|MKL|OpenBLAS|BLIS)[^\n]*", torch.__config__.show())
    return f"torch {torch.__version__}" + (f", {library.group(0)}" if library else "")


def _matmul(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """kernsearch.matmul as a user calls it, with its look-up and checks at every call."""
    from kernsearch import backends, runtime

    from .public import matmul

    runtime.set_threads(threads)
    plan = runtime.load_problem(problem, backends.get("cpu").device())
    a, b = _matrices(problem, inputs)
    out = _output(problem)
    named: dict[str, Any] = {}
    if "bias" in inputs:
        named["bias"] = inputs["bias"]
    if "C" in inputs:
        named |= {"c": inputs["C"], "beta": scalars.get("beta", 1.0)}
    if (name := _activation(problem)) is not None:
        named["activation"] = name
    if scalars.get("alpha", 1.0) != 1:
        named["alpha"] = scalars["alpha"]
    return Ready(lambda: matmul(a, b, out=out, **named), out, {"hit": plan.hit, "variant": plan.record.variant})


PEERS = (
    Peer("numpy", _numpy_needs, _numpy, _describe_numpy),
    Peer("torch", lambda problem: ("torch",), _torch, _describe_torch),
    Peer("matmul", lambda problem: ("numpy",), _matmul, own=True),
)
