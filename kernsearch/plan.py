"""The launch plan: all that the runtime needs to run a winner, and nothing of how it was found.

A plan holds no shape. Sizes, strides and workspace are small integer expressions (see `sizes`) over names that the
runtime knows once it has the arrays:

* the op's size letters (`M`, `N`, `K`);
* `A.m`: the stride, in elements, of axis `m` of array `A` (an operand or a workspace buffer);
* `THREADS`: how many threads the call may use; `ITEMSIZE`: bytes of the problem's dtype.

Config values do not appear: they are folded in when the plan is made.
"""

from __future__ import annotations

import msgspec


class Operand(msgspec.Struct, frozen=True):
    """An array of the caller. `axes` names its dimensions in the order the caller's array has them."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    extents: tuple[str, ...]  # one expression an axis: "M"
    role: str  # "input" | "output"


class Buffer(msgspec.Struct, frozen=True):
    """A value that one kernel leaves in memory for a later one; C-contiguous in the order of `axes`."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    extents: tuple[str, ...]


class KernelPlan(msgspec.Struct, frozen=True):
    """One kernel launch."""

    template: str  # name of the template
    source: str  # path below the kernels folder, or an absolute path for a space from outside
    tokens: str  # sha256 of the source and the project headers it includes, comments and white space stripped
    entry: str  # the extern function
    header: str  # text of the generated header "ks_generated.h"
    defines: dict[str, int]  # parameter letters, passed as -DKS_<letter>=value
    buffers: tuple[str, ...]  # names, in the order of ks_call.buffers; "scratch" is this kernel's own scratch
    sizes: tuple[str, ...]  # expressions, in the order of ks_call.sizes
    scalars: tuple[str, ...]  # names, in the order of ks_call.scalars
    scratch: str = "0"  # bytes of scratch, an expression
    flags: tuple[str, ...] = ()  # compiler flags beyond the backend's own
    geometry: dict[str, str] = {}  # CUDA: grid, block, cluster, shared bytes as expressions; empty on the CPU


class Plan(msgspec.Struct, frozen=True):
    """Kernels in order, and what they read and write."""

    backend: str
    sizes: tuple[str, ...]  # the op's size letters, in shape order
    operands: tuple[Operand, ...]
    scalars: dict[str, float]  # run-time scalars with their defaults
    workspace: tuple[Buffer, ...]
    kernels: tuple[KernelPlan, ...]
    assumes: tuple[
        str, ...
    ] = ()  # expressions that must be true of a call, else the plan is not valid for it: "B.n == 1"
    deterministic: bool = True
