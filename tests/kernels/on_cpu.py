"""Candidates of an op on the CPU: compiling them, and the bench that examines them."""

from __future__ import annotations

from kernsearch import backends, registry
from kernsearch.gates import Bench


def bench_of(of, device, worker):
    return Bench(registry.op(of.op), of, device, backends.get("cpu"), worker, threads=2)


def compiled(plan, device):
    return [backends.get("cpu").compile(kernel, device, timeout_s=60.0) for kernel in plan.kernels]
