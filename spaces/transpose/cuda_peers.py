"""What transpose is compared with on a GPU: PyTorch, and a copy of as many bytes, which none can beat by much."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernsearch.peers import Copy, OnDevice, Peer
from kernsearch.peers.tensors import fetched, on_device
from kernsearch.problem import Problem

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]
Call = Callable[[Any, Any], Callable[[], Any]]


def _prepared(inputs: Arrays, index: int, call: Call) -> OnDevice:
    """`call` makes of x and out, both on the device, what is timed."""
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)

    def copy() -> Copy:
        x = on_device(torch, inputs, index)["X"]
        out = x.new_empty(tuple(x.shape[::-1]))

        def fetch() -> np.ndarray:
            out.copy_(x.t())  # the comparison of results wants one, of whatever was timed
            return fetched(out)

        return Copy(call(x, out), fetch)

    return OnDevice(copy)


def _contiguous(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """x.t().contiguous(), into memory that is there."""
    return _prepared(inputs, index, lambda x, out: lambda: out.copy_(x.t()))


def _bytes(problem: Problem, inputs: Arrays, scalars: Scalars, index: int) -> OnDevice:
    """A copy of x as it lies."""
    return _prepared(inputs, index, lambda x, out: lambda: out.view(-1).copy_(x.view(-1)))


def _describe() -> str:
    torch = importlib.import_module("torch")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


PEERS = (
    Peer("torch", lambda problem: ("torch",), _contiguous, _describe),
    Peer("copy", lambda problem: ("torch",), _bytes, _describe),
)
