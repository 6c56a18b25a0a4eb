"""How the text of a kernel finds elements: flattened group indices, strides and extents, for every C-like backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import sub

from ..binding import Array, Binding
from .expressions import fold

GROUPS = "SBMNK"  # slab, batch, rows, columns, reduced
VECTOR_GROUP = "N"


def c_name(name: str) -> str:
    """A name of a program as part of a C identifier."""
    return sub(r"\W", "_", name)


@dataclass(frozen=True)
class View:
    """How flattened group indices address arrays: the axes of each group, in order; `x` reaches the arguments, vectors
    go along the group `vector`."""

    binding: Binding
    groups: Mapping[str, tuple[str, ...]]
    x: str = "x->"
    vector: str = VECTOR_GROUP

    def array(self, name: str) -> Array:
        return next(array for array in self.binding.arrays if array.name == name)

    def extent(self, group: str) -> str:
        return " * ".join(f"{self.x}e_{c_name(axis)}" for axis in self.groups.get(group, ())) or "1"

    def index(self, axis: str) -> str:
        """The index along an axis, from that of its group."""
        group, axes = next((g, axes) for g, axes in self.groups.items() if axis in axes)
        if len(axes) == 1:
            return f"i.{group}"
        later = axes[axes.index(axis) + 1 :]
        text = f"(i.{group} / ({' * '.join(f'{self.x}e_{c_name(a)}' for a in later)}))" if later else f"i.{group}"
        return text if axis == axes[0] else f"({text} % {self.x}e_{c_name(axis)})"

    def address(self, name: str, axes: Sequence[str], along: Mapping[str, str] | None = None) -> str:
        """Where an array holds the element at the current indices of `axes`, given in the array's dimension order.
        `along`: program axis -> function of its stride that says how far apart neighbours lie."""
        own, along = self.array(name).axes, along or {}
        strides = [(axis, self.stride(name, own[place])) for place, axis in enumerate(axes)]
        told = [(axis, f"{along[axis]}({stride})" if axis in along else stride) for axis, stride in strides]
        terms = sorted(f"{self.index(axis)} * {stride}" for axis, stride in told)
        return " + ".join([f"{self.x}p_{c_name(name)}", *terms])

    def stride(self, name: str, dimension: str) -> str:
        return f"{self.x}s_{c_name(name)}_{c_name(dimension)}"

    def step(self, name: str, axes: Sequence[str], axis: str | None) -> str:
        """How far apart two neighbours along a program axis lie: 0 when the value has no such axis."""
        own = self.array(name).axes
        return " + ".join(self.stride(name, own[place]) for place, a in enumerate(axes) if a == axis) or "0"

    def slack(self, q: str, k: str, off: str) -> str:
        """How many more steps of k a mask leaves before it hides the element: negative where it does."""
        return f"{self.index(q)} + ({self.size(off)}) - {self.index(k)}"

    def size(self, text: str) -> str:
        """A size expression over the extents of the kernel's axes."""
        return fold(text, {size: f"{self.x}e_{c_name(axis)}" for axis, size in self.binding.extents.items()})

    def reach(self) -> tuple[str, str]:
        """The range [first, last) of K: all of it, or that of the slab."""
        if (cut := self.slab()) is None:
            return "0", self.extent("K")
        axis, slab = cut
        whole = f"{self.x}e_{c_name(axis)}"
        length = f"(({whole} + {self.x}e_{c_name(slab)} - 1) / {self.x}e_{c_name(slab)})"
        at = self.index(slab)
        return f"ks_least({at} * {length}, {whole})", f"ks_least(({at} + 1) * {length}, {whole})"

    def group_axis(self, group: str) -> str | None:
        """The only axis of a group; None when it has none or several."""
        axes = self.groups.get(group, ())
        return axes[0] if len(axes) == 1 else None

    def slab(self) -> tuple[str, str] | None:
        """The reduced axis that is cut, and its slab axis. Raises ValueError when K has more axes than that one."""
        cut = [pair for pair in self.binding.slabs.items() if pair[0] in self.groups.get("K", ())]
        if cut and len(self.groups["K"]) > 1:
            raise ValueError("a reduction over two axes cannot be cut into slabs")
        return cut[0] if cut else None

    @property
    def vector_axis(self) -> str | None:
        """The axis along which a vector's lanes follow each other."""
        return self.group_axis(self.vector)
