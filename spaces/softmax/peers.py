"""What softmax is compared with: NumPy, PyTorch writing into an output, and our own functions beside the plan.

They serve the backward pass too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernsearch.errors import PeerError
from kernsearch.peers import Peer, Ready
from kernsearch.problem import Problem

from .numerics import row_axis

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def is_log(problem: Problem) -> bool:
    """Is it log_softmax, or its gradient?"""
    return problem.op.startswith("log_") or (problem.op == "softmax" and problem.option("result") == "log")


def _output(inputs: Arrays) -> np.ndarray:
    from kernsearch.peers.child import aligned

    return aligned(np.zeros_like(next(iter(inputs.values()))))


def plain(problem: Problem) -> None:
    """Raise PeerError unless the problem is what libraries have a function for."""
    if problem.op == "softmax" and problem.option("prologue") != "none":
        raise PeerError(f"prologue {problem.option('prologue')}: libraries compute softmax without one")


def _numpy(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """Textbook softmax in place, a pass a step."""
    np.seterr(all="ignore")
    axis, out = row_axis(problem), _output(inputs)
    log = is_log(problem)

    def forward() -> None:
        x = inputs["X"]
        np.subtract(x, x.max(axis=axis, keepdims=True), out=out)
        if log:
            np.subtract(out, np.log(np.exp(out).sum(axis=axis, keepdims=True)), out=out)
        else:
            np.exp(out, out=out)
            np.divide(out, out.sum(axis=axis, keepdims=True), out=out)

    def backward() -> None:
        dy, y = inputs["DY"], inputs["Y"]
        if log:
            np.exp(y, out=out)
            np.multiply(out, dy.sum(axis=axis, keepdims=True), out=out)
            np.subtract(dy, out, out=out)
        else:
            np.multiply(dy, y, out=out)
            total = out.sum(axis=axis, keepdims=True)
            np.subtract(dy, total, out=out)
            np.multiply(out, y, out=out)

    return Ready(forward if problem.op == "softmax" else backward, out)


def _numpy_needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    return ("numpy",)


def _torch(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """torch.softmax(out=), or what autograd calls for the gradient."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    result = _output(inputs)
    call = torch_call(torch, problem, {n: torch.from_numpy(a) for n, a in inputs.items()}, torch.from_numpy(result))
    return Ready(call, result)


def torch_call(torch: Any, problem: Problem, tensors: Mapping[str, Any], out: Any) -> Callable[[], Any]:
    """A call of PyTorch that writes into `out`."""
    axis, log = row_axis(problem), is_log(problem)
    if problem.op == "softmax":
        x = tensors["X"]
        function = torch.log_softmax if log else torch.softmax
        return lambda: function(x, axis, out=out)
    dy, y = tensors["DY"], tensors["Y"]
    name = "_log_softmax_backward_data" if log else "_softmax_backward_data"
    backward = getattr(torch.ops.aten, name).out
    into = {"out": out} if log else {"grad_input": out}
    return lambda: backward(dy, y, axis, y.dtype, **into)


def _torch_needs(problem: Problem) -> tuple[str, ...]:
    plain(problem)
    return ("torch",)


def _own(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """kernsearch's own function as a user calls it, with its look-up and checks at every call."""
    from kernsearch import backends, runtime

    from . import public

    runtime.set_threads(threads)
    plan = runtime.load_problem(problem, backends.get("cpu").device())
    axis, out, log = row_axis(problem), _output(inputs), is_log(problem)
    details = {"hit": plan.hit, "variant": plan.record.variant}
    if problem.op == "softmax":
        function = public.log_softmax if log else public.softmax
        return Ready(lambda: function(inputs["X"], axis, out=out), out, details)
    return Ready(lambda: public.softmax_backward(inputs["DY"], inputs["Y"], axis, log=log, out=out), out, details)


PEERS = (
    Peer("numpy", _numpy_needs, _numpy, lambda: f"numpy {np.__version__}"),
    Peer("torch", _torch_needs, _torch, lambda: f"torch {importlib.import_module('torch').__version__}"),
    Peer("function", _numpy_needs, _own, own=True),
)
