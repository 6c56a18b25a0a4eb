"""What transpose is compared with: NumPy and PyTorch, and our own function beside the plan."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import numpy as np

from kernsearch.peers import Peer, Ready
from kernsearch.problem import Problem

Arrays = Mapping[str, np.ndarray]
Scalars = Mapping[str, float]


def _output(problem: Problem, inputs: Arrays) -> np.ndarray:
    from kernsearch.peers.child import aligned

    return aligned(np.zeros(problem.shape[::-1], inputs["X"].dtype))


def _numpy(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    out = _output(problem, inputs)
    return Ready(lambda: np.copyto(out, inputs["X"].T), out)


def _torch(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """tensor.copy_ of the turned view: what `contiguous` does, into memory that is there."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    result = _output(problem, inputs)
    x, out = torch.from_numpy(inputs["X"]).t(), torch.from_numpy(result)
    return Ready(lambda: out.copy_(x), result)


def _own(problem: Problem, inputs: Arrays, scalars: Scalars, threads: int) -> Ready:
    """kernsearch's own function as a user calls it, with its look-up and checks at every call."""
    from kernsearch import backends, runtime

    from . import public

    runtime.set_threads(threads)
    plan = runtime.load_problem(problem, backends.get("cpu").device())
    out = _output(problem, inputs)
    details = {"hit": plan.hit, "variant": plan.record.variant}
    return Ready(lambda: public.transpose(inputs["X"], out=out), out, details)


PEERS = (
    Peer("numpy", lambda problem: ("numpy",), _numpy, lambda: f"numpy {np.__version__}"),
    Peer("torch", lambda problem: ("torch",), _torch, lambda: f"torch {importlib.import_module('torch').__version__}"),
    Peer("function", lambda problem: ("numpy",), _own, own=True),
)
