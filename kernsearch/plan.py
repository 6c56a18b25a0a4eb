"""The launch plan: all that the runtime needs to run a winner, and nothing of how it was found.

A plan holds no shape. Sizes, strides and workspace are small integer expressions (see `sizes`) over names that the
runtime knows once it has the arrays:

* the op's size letters (`M`, `N`, `K`);
* `A.m`: the stride, in elements, of axis `m` of array `A` (an operand or a workspace buffer);
* `A.base`: the address of the first element of `A`, modulo 256 bytes;
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


class Launch(msgspec.Struct, frozen=True):
    """One entry of a device kernel: all are expressions, evaluated at a call like sizes are."""

    entry: str  # the extern "C" __global__ function
    grid: tuple[str, str, str]  # blocks
    block: str  # threads of a block
    shared: str = "0"  # bytes of dynamic shared memory
    cluster: tuple[int, int, int] = (1, 1, 1)  # blocks
    # Programmatic dependent launch: may begin before what the stream holds before it has ended, of this call or not.
    # The kernel waits (ks_wait_for_earlier_launch) before it reads or writes memory, and does not end without.
    overlap: bool = False


class TensorMap(msgspec.Struct, frozen=True):
    """A bulk-tensor map (CUtensorMap, tiled) over a buffer: innermost dimension first, three to five of them."""

    name: str  # of the member of ks_args: map_<name>
    buffer: str  # an array of the plan, or "scratch"
    dtype: str
    extents: tuple[str, ...]  # elements
    pitches: tuple[str, ...]  # elements between neighbours along the second dimension and those after it
    box: tuple[int, ...]  # elements
    swizzle: int = 128  # bytes: 0, 32, 64 or 128
    offset: str = "0"  # bytes from the buffer's first element


class KernelPlan(msgspec.Struct, frozen=True):
    """One kernel of a program: a single call on the CPU, one or more launches in order on a device."""

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
    launches: tuple[Launch, ...] = ()  # empty on the CPU; all launches of a kernel get the same arguments
    maps: tuple[TensorMap, ...] = ()  # empty on the CPU
    assumes: tuple[str, ...] = ()  # as Plan.assumes, which holds these too


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
