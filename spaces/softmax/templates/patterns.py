"""Reductions over a row that the kernels know: of softmax, and of its backward pass.

statistics   m = max x, l = sum exp(x - m)     one reduction by `merge_reductions`
product      total = sum x * w                 of DX = Y * (DY - total)
plain        total = sum x                     of DX = DY - exp(Y) * total
maximum      m = max x                         of softmax in three passes
"""

from __future__ import annotations

from dataclasses import dataclass

from kernsearch.program.body import Body, arg, own
from kernsearch.template import comb, hole, red
from kernsearch.template.pattern import Pattern


@dataclass(frozen=True)
class Reduction:
    """`suffix` of the names of templates, and what is reduced: fields over operands of these roles."""

    suffix: str
    fields: dict[str, tuple[str, Body]]
    operands: tuple[str, ...]

    def inside(self, *, slab: bool = False, name: str = "acc") -> Pattern:
        return red(self.fields, *self.operands, slab=slab, name=name)

    def fused(self) -> tuple[Pattern, ...]:
        """The reduction, and maps that have the row's axis above it."""
        return (hole("Y", self.inside(), groups="MK"),)

    def states(self, *, slab: bool) -> tuple[Pattern, ...]:
        """The fields alone, an output each."""
        return tuple(hole(f"{name}_", self.inside(slab=slab)) for name in self.fields)

    def clustered(self) -> tuple[Pattern, ...]:
        """Slabs, their combine and maps above it, all in one kernel."""
        inside = self.inside(slab=True, name="part")
        return (hole("Y", comb(self.fields, inside=inside), groups="MK"),)


STATISTICS = Reduction("", {"m": ("max", arg(0)), "l": ("sum", ("exp", ("shift", arg(0), own("m"))))}, ("X",))
PRODUCT = Reduction("_product", {"total": ("sum", ("mul", arg(0), arg(1)))}, ("X", "W"))
PLAIN = Reduction("_sum", {"total": ("sum", arg(0))}, ("X",))
MAXIMUM = Reduction("_max", {"m": ("max", arg(0))}, ("X",))
REDUCTIONS = (STATISTICS, PRODUCT, PLAIN)  # those that have maps above them
