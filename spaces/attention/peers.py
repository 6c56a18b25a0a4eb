"""What attention is compared with on CPUs: NumPy, PyTorch, and our own function beside the plan.

PyTorch's is_causal is top-left, so a causal problem is compared where queries and keys are as many.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.peers import Peer, Ready
from kernsearch.peers.tensors import tensor
from kernsearch.problem import Problem

from .numerics import grouped, laid, logical, offset_of

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def _output(problem: Problem, inputs: Arrays) -> np.ndarray:
    from kernsearch.peers.child import aligned

    *rows, _ = logical(problem, inputs)[0].shape
    return aligned(np.zeros(laid(problem, np.empty((*rows, problem.shape[-1]), inputs["Q"].dtype)).shape))


def plain(problem: Problem) -> bool:
    """Is it causal? Raises PeerError unless the problem is what libraries have a function for."""
    if problem.option("lse") != "no":
        raise PeerError("lse=yes: libraries return the output alone")
    offset = offset_of(problem)
    if offset not in (None, 0):
        raise PeerError(f"causal with an offset of {offset}: libraries let the first query see the first key")
    return offset == 0


def _numpy(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """Product, softmax, product, each whole."""
    causal, scale = plain(problem), scalars["scale"]
    out = _output(problem, inputs)
    q, k, v = logical(problem, inputs)
    hidden = np.arange(k.shape[-2]) > np.arange(q.shape[-2])[:, None]

    def call() -> None:
        s = q @ k.swapaxes(-1, -2)
        s *= s.dtype.type(scale)
        if causal:
            s[..., hidden] = -np.inf
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        out[...] = laid(problem, s @ v)

    return Ready(call, out)


def _numpy_needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    if problem.dtype == "bfloat16":
        raise PeerError("bfloat16: NumPy has no product of it")
    return ("numpy",)


def torch_call(torch: Any, problem: Problem, tensors: Mapping[str, Any], scale: float) -> Callable[[], Any]:
    """A call of scaled_dot_product_attention on tensors (batch, heads, length, dim), laid out as the problem says."""
    q, k, v = logical(problem, tensors)
    if grouped(problem):
        q, k, v = q.flatten(1, 2), k[:, :, 0], v[:, :, 0]
    how = {"is_causal": plain(problem), "scale": scale, **({"enable_gqa": True} if grouped(problem) else {})}
    function = torch.nn.functional.scaled_dot_product_attention
    return lambda: function(q, k, v, **how)


def _torch(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    tensors = {name: tensor(torch, array) for name, array in inputs.items()}
    call, out = torch_call(torch, problem, tensors, scalars["scale"]), _output(problem, inputs)
    result = call().float().numpy()  # it writes into no output, so this one is filled once
    q = logical(problem, inputs)[0]
    out[...] = laid(problem, result.reshape(*q.shape[:-1], -1))
    return Ready(call, out)


def _torch_needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    return ("torch",)


def _own(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """kernsearch's own function as a user calls it, with its look-up and checks at every call."""
    from kernsearch import backends, runtime

    from .public import attention

    runtime.set_threads(threads)
    plan = runtime.load_problem(problem, backends.get("cpu").device())
    out, causal = _output(problem, inputs).astype(inputs["Q"].dtype), plain(problem)
    q, k, v = logical(problem, inputs)
    into = logical(problem, {"Q": out, "K": inputs["K"], "V": inputs["V"]})[0]
    if grouped(problem):
        q, k, v = q.reshape(q.shape[0], -1, *q.shape[3:]), k[:, :, 0], v[:, :, 0]
        into = into.reshape(q.shape[0], -1, *into.shape[3:])
    details = {"hit": plan.hit, "variant": plan.record.variant}
    scale = scalars["scale"]
    return Ready(lambda: attention(q, k, v, causal=causal, scale=scale, out=into), out, details)


PEERS = (
    Peer("numpy", _numpy_needs, _numpy, lambda: f"numpy {np.__version__}"),
    Peer("torch", _torch_needs, _torch, lambda: f"torch {importlib.import_module('torch').__version__}"),
    Peer("function", _numpy_needs, _own, own=True),
)
