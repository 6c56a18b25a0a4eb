"""What softmax is compared with on a GPU: PyTorch eager and compiled, and a copy of as many bytes.

They serve the backward pass too.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernsearch.peers import Copy, OnDevice, Peer
from kernsearch.peers.tensors import fetched, on_device
from kernsearch.problem import Problem

from .numerics import row_axis
from .peers import is_log, plain, torch_call

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def _torch() -> Any:
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    return torch


def _eager(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """torch.softmax(out=), or what autograd calls for the gradient."""
    torch = _torch()

    def copy() -> Copy:
        tensors = on_device(torch, inputs, index)
        out = torch.empty_like(next(iter(tensors.values())))
        return Copy(torch_call(torch, problem, tensors, out), lambda: fetched(out))

    return OnDevice(copy)


def _compiled(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """The expression through torch.compile at its most eager to tune."""
    torch = _torch()
    torch._dynamo.reset()
    axis, log = row_axis(problem), is_log(problem)

    def compute(*given: Any) -> Any:
        if problem.op == "softmax":
            return torch.log_softmax(given[0], axis) if log else torch.softmax(given[0], axis)
        dy, y = (x.float() for x in given)
        value = dy - y.exp() * dy.sum(axis, keepdim=True) if log else y * (dy - (dy * y).sum(axis, keepdim=True))
        return value.to(given[0].dtype)

    function = torch.compile(compute, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True)

    def copy() -> Copy:
        tensors, kept = tuple(on_device(torch, inputs, index).values()), {}

        def call() -> None:
            kept["out"] = function(*tensors)  # kept, so that each copy has a result of its own

        return Copy(call, lambda: fetched(kept["out"]))

    return OnDevice(copy)


def _bytes(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """A copy that moves as many bytes as the problem reads and writes: no softmax, but what none can beat by much."""
    torch = _torch()

    def copy() -> Copy:
        tensors = on_device(torch, inputs, index)
        first = next(iter(tensors.values()))
        count = math.ceil(first.numel() * (len(tensors) + 1) / 2)
        source = torch.cat([x.reshape(-1) for x in tensors.values()])[:count].clone()
        target = torch.empty_like(source)
        result = torch.empty_like(first)
        right = torch_call(torch, problem, tensors, result)

        def fetch() -> np.ndarray:
            right()  # the comparison of results wants one
            return fetched(result)

        return Copy(lambda: target.copy_(source), fetch)

    return OnDevice(copy)


def _needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    return ("torch",)


def _describe() -> str:
    torch = importlib.import_module("torch")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


PEERS = (
    Peer("torch", _needs, _eager, _describe),
    Peer("torch-compile", _needs, _compiled, _describe),
    Peer("copy", _needs, _bytes, _describe),
)
