"""Element types that kernels read and write beside the accumulation's: how they are declared, loaded and stored.

The accumulation's own type is `ks_t`; others are converted by functions of `vector.h` that end in the type's suffix.
"""

from __future__ import annotations

from dataclasses import replace
from math import isinf

from ..expressions import Spelling
from ..views import View, c_name

SUFFIXES = {"bfloat16": "_bf16", "uint8": "_u8"}
NAMES = {"bfloat16": "ks_bf16", "uint8": "uint8_t"}


def known(dtype: str, acc: str) -> bool:
    """Can kernels with sums in `acc` read an array of this dtype?"""
    return dtype == acc or dtype == "uint8" or (dtype == "bfloat16" and acc == "float32")


def type_name(dtype: str, acc: str) -> str:
    return "ks_t" if dtype == acc else NAMES[dtype]


def type_suffix(dtype: str, acc: str) -> str:
    """Of `ks_load`, `ks_splat` and `ks_store`."""
    return "" if dtype == acc else SUFFIXES[dtype]


def element(view: View) -> Spelling:
    """One element, for packing: scalars of C; functions work on a vector of which lane 0 counts."""

    def load(array: str, axes: tuple[str, ...]) -> str:
        kind = type_suffix(view.array(array).dtype, view.binding.acc)
        return f"ks_splat{kind}(*({view.address(array, axes)}))"

    return Spelling(
        load=load,
        acc=lambda name: f"f->{c_name(name)}",
        scalar=lambda name: f"ks_splat(x->c_{c_name(name)})",
        const=_constant,
        mask=lambda text, q, k, off: f"ks_mask({text}, {view.slack(q, k, off)}, 0)",
        weigh=lambda name, text: f"(x->c_{c_name(name)} == 0 ? (ks_v){{0}} : ks_splat(x->c_{c_name(name)}) * ({text}))",
    )


def vector(view: View, *, contiguous: str = "") -> Spelling:
    """A vector along the columns, of which `count` lanes count. `contiguous` names a variable that is true when
    neighbours along the columns are neighbours in memory."""

    def load(array: str, axes: tuple[str, ...]) -> str:
        if view.vector_axis not in axes:
            return element(view).load(array, axes)
        step = view.step(array, axes, view.vector_axis)
        step = f"{contiguous} ? 1 : {step}" if contiguous else step
        kind = type_suffix(view.array(array).dtype, view.binding.acc)
        return f"ks_load{kind}({view.address(array, axes)}, {step}, count)"

    def mask(text: str, q: str, k: str, off: str) -> str:
        step = {q: 1, k: -1}.get(view.vector_axis or "", 0)
        return f"ks_mask({text}, {view.slack(q, k, off)}, {step})"

    return replace(element(view), load=load, mask=mask)


def _constant(value: float) -> str:
    if isinf(value):
        return f"ks_splat({'-' if value < 0 else ''}KS_INFINITY)"
    return f"ks_splat((ks_t){value!r})"
