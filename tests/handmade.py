"""A gemm plan written by hand, for tests of what records and the runtime do with a plan."""

from __future__ import annotations

from pathlib import Path

from kernsearch import records, sources
from kernsearch.device import Device
from kernsearch.plan import Buffer, KernelPlan, Operand, Plan
from kernsearch.problem import Problem
from kernsearch.records import fingerprint

MULTIPLY = """
#include "ks_generated.h"
#include "kernsearch.h"
#include <math.h>
typedef struct { const ks_call *call; } context;
static void row(void *raw, int64_t i) {
    const ks_call *call = ((context *)raw)->call;
    const int64_t n = call->sizes[1], depth = call->sizes[2], *stride = call->sizes + 3;
    const T *a = call->buffers[0], *b = call->buffers[1];
    T *p = call->buffers[2];
    for (int64_t j = 0; j < n; j++) {
        T sum = 0;
        for (int64_t k = 0; k < depth; k++) sum += a[i * stride[0] + k * stride[1]] * b[k * stride[2] + j * stride[3]];
        p[i * stride[4] + j * stride[5]] = (T)call->scalars[0] * sum;
    }
}
void handmade_multiply(const ks_call *call) {
    context x = {call};
    ks_parallel(call, call->sizes[0], row, &x);
}
"""
FINISH = """
#include "ks_generated.h"
#include "kernsearch.h"
void handmade_finish(const ks_call *call) {
    const int64_t m = call->sizes[0], n = call->sizes[1], *stride = call->sizes + 2;
    const T *p = call->buffers[0];
    T *d = call->buffers[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) d[i * stride[0] + j * stride[1]] = p[i * n + j];
}
"""
TYPES = {"float32": "float", "float64": "double"}


def plan(
    folder: Path, dtype: str = "float32", layout: str = "nn", *, two: bool = False, assumes: tuple[str, ...] = ()
) -> Plan:
    """alpha * op(A) @ op(B), in one kernel or, `two`, through a workspace and a scratch that nobody reads."""
    sources_ = {"multiply": MULTIPLY, "finish": FINISH}
    for name, text in sources_.items():
        path = folder / f"{name}.c"
        if not path.exists():
            path.write_text(text)
    first = "P" if two else "D"
    operands = (
        Operand("A", dtype, *(("mk", "MK") if layout[0] == "n" else ("km", "KM")), "input"),
        Operand("B", dtype, *(("kn", "KN") if layout[1] == "n" else ("nk", "NK")), "input"),
        Operand("D", dtype, ("m", "n"), ("M", "N"), "output"),
    )
    operands = tuple(Operand(o.name, o.dtype, tuple(o.axes), tuple(o.extents), o.role) for o in operands)

    def kernel(name: str, buffers: tuple[str, ...], sizes: tuple[str, ...], scratch: str) -> KernelPlan:
        path = folder / f"{name}.c"
        return KernelPlan(f"handmade_{name}", str(path), sources.tokens(path), f"handmade_{name}",
                          f"typedef {TYPES[dtype]} T;\n", {}, buffers, sizes, ("alpha",), scratch)  # fmt: skip

    multiply = kernel("multiply", ("A", "B", first),
                      ("M", "N", "K", "A.m", "A.k", "B.k", "B.n", f"{first}.m", f"{first}.n"), "0")  # fmt: skip
    finish = kernel("finish", ("P", "D", "scratch"), ("M", "N", "D.m", "D.n"), "M * 64")
    return Plan(
        backend="cpu",
        sizes=("M", "N", "K"),
        operands=operands,
        scalars={"alpha": 1.0},
        workspace=(Buffer("P", dtype, ("m", "n"), ("M", "N")),) if two else (),
        kernels=(multiply, finish) if two else (multiply,),
        assumes=assumes,
    )


def record(problem: Problem, plan_: Plan, device: Device, **more: object) -> records.Record:
    fields = {
        "problem": problem,
        "fingerprint": fingerprint.here(plan_, device),
        "plan": plan_,
        "variant": "handmade",
        "config": {},
        "derivation": ({"rule": "by_hand", "site": []},),
        "created": records.now(),
    }
    return records.Record(**{**fields, **more})  # type: ignore[arg-type]
