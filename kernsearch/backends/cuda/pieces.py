"""Pieces of "ks_generated.h" that kernels of several kinds have: addresses and steps of arrays, the range of K."""

from __future__ import annotations

from collections.abc import Iterator

from ..views import View, c_name

TYPES = {"float64": "double", "float32": "float", "float16": "ks_f16", "bfloat16": "ks_bf16", "uint8": "uint8_t"}
SLAB_STEP = 64  # slabs of a reduction are whole multiples of this
X, AT = "const ks_args &x", "const ks_at &i"


def function(signature: str, parameters: str, value: str) -> str:
    """A function of one expression."""
    return f"KS_DEVICE {signature}({parameters}) {{ return {value}; }}"


def places(view: View, name: str, array: str, axes: tuple[str, ...], const: str) -> Iterator[str]:
    kind = TYPES[view.array(array).dtype]
    yield function(f"{const}{kind} *ks_at_{name}", f"{X}, {AT}", view.address(array, axes))
    for group in view.groups:
        if len(view.groups[group]) <= 1:
            yield function(f"int64_t ks_step_{name}_{group}", X, view.step(array, axes, view.group_axis(group)))
        yield f"#define KS_CONTIGUOUS_{name}_{group} {int(bool(axes) and axes[-1] in view.groups[group])}"


def depth(view: View, suffix: str = "") -> Iterator[str]:
    """The range of K: all of it, or that of the slab."""
    first, last = "0", view.extent("K")
    if cut := view.slab():
        axis, slab = cut
        extent = f"x.e_{c_name(axis)}"
        length = f"ks_up<int64_t>(ks_ceil({extent}, x.e_{c_name(slab)}), {SLAB_STEP})"
        first = f"ks_min({view.index(slab)} * {length}, {extent})"
        last = f"ks_min(({view.index(slab)} + 1) * {length}, {extent})"
    for name, value in (("first", first), ("last", last)):
        yield function(f"int64_t ks_{name}_K{suffix}", f"{X}, {AT}", value)
