"""What a kernel computes that goes over the keys once: the three fields that `merge_reductions` makes of softmax and
the product after it, over scores that the kernel computes too.

m = max s, l = sum exp(s - m), o = sum exp(s - m) * V          s = any maps above sum Q * K

Rows M may be several axes, the heads of a group beside the queries: nothing tells them apart.
"""

from __future__ import annotations

from kernsearch.program.body import arg, own
from kernsearch.template import comb, dot, hole, red
from kernsearch.template.pattern import Pattern

_WEIGHT = ("exp", ("shift", arg(0), own("m")))
FIELDS = {"m": ("max", arg(0)), "l": ("sum", _WEIGHT), "o": ("sum", ("mul", _WEIGHT, arg(1)))}
GROUPS = "M+ N1 K1 D1 B*"


def _state(*, slab: bool = False, name: str = "state") -> Pattern:
    scores = hole("S", dot("Q", "K", name="s", groups="MKDB"))
    return red(FIELDS, scores, "V", wide=("o",), slab=slab, name=name)


def _clustered() -> Pattern:
    """Slabs and their combine in one kernel."""
    return comb(FIELDS, inside=_state(slab=True, name="part"), wide=("o",), name="state")


OUTPUTS = (hole("O", _state()), hole("L", _state()))  # the second where it is wanted
SLABS = tuple(hole(f"{name}_", _state(slab=True)) for name in FIELDS)
CLUSTERED = (hole("O", _clustered()), hole("L", _clustered()))
COMBINED = hole("Y", comb(FIELDS, wide=("o",)))  # any number of outputs
