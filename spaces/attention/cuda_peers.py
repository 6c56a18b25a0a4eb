"""What attention is compared with on a GPU: PyTorch's scaled_dot_product_attention with the backend forced."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.peers import Copy, OnDevice, Peer
from kernsearch.peers.tensors import fetched, on_device
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


def _sdpa(backend: str, problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    attention = importlib.import_module("torch.nn.attention")
    forced = getattr(attention.SDPBackend, backend)

    def copy() -> Copy:
        tensors, kept = on_device(torch, inputs, index), {}
        function = torch_call(torch, problem, tensors, scalars["scale"])

        def call() -> None:
            with attention.sdpa_kernel(forced):
                kept["out"] = function()  # kept, so that each copy has a result of its own

        def fetch() -> np.ndarray:
            q = logical(problem, tensors)[0]
            result = fetched(kept["out"])
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
