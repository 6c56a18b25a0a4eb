"""What attention is compared with on a GPU: PyTorch's scaled_dot_product_attention with the backend forced."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.peers import Copy, OnDevice, Peer
from kernsearch.problem import Problem

from .numerics import grouped, laid, logical
from .peers import plain, torch_call

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]
BACKENDS = {
    "torch-cudnn": "CUDNN_ATTENTION",
    "torch-flash": "FLASH_ATTENTION",
    "torch-efficient": "EFFICIENT_ATTENTION",
}


def _tensors(torch: Any, inputs: Arrays, index: int) -> dict[str, Any]:
    device = torch.device("cuda", index)

    def tensor(array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return {name: tensor(array).to(device) for name, array in inputs.items()}


def _sdpa(backend: str, problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    attention = importlib.import_module("torch.nn.attention")
    forced = getattr(attention.SDPBackend, backend)

    def copy() -> Copy:
        tensors, kept = _tensors(torch, inputs, index), {}
        function = torch_call(torch, problem, tensors, scalars["scale"])

        def call() -> None:
            with attention.sdpa_kernel(forced):
                kept["out"] = function()  # kept, so that each copy has a result of its own

        def fetch() -> np.ndarray:
            q = logical(problem, tensors)[0]
            result = kept["out"].float().cpu().numpy()
            return np.asarray(laid(problem, result.reshape(*q.shape[:-1], -1)))

        return Copy(call, fetch)

    return OnDevice(copy)


def _needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    if grouped(problem) and problem.dtype == "float32":
        raise PeerError("float32 with shared heads: PyTorch has no kernel of it")
    return ("torch",)


def _describe() -> str:
    torch = importlib.import_module("torch")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


PEERS = tuple(Peer(name, _needs, partial(_sdpa, backend), _describe) for name, backend in BACKENDS.items())
