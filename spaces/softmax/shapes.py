"""From arrays of any dimensions and an axis to matrices whose rows run along that axis.

The other axes become one wherever the strides of all arrays allow it; what is left over are matrices one after another.
Strides may be in bytes or in elements; what is returned is in the same unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Shape = tuple[int, ...]
STRETCHED = ("bias", "mask")  # arrays that may broadcast to the others' shape
MOST_MATRICES = 64  # more than that are copied into one instead


@dataclass(frozen=True)
class Matrices:
    """`count` matrices of `rows` rows and `columns` columns, alike in all arrays.

    layout   "n": matrices are (rows, columns); "t": they are (columns, rows), as rows are closer to each other
    strides  of a matrix, by array;  outer: (extent, stride by array) of each axis that is left over
    """

    rows: int
    columns: int
    layout: str
    strides: Mapping[str, tuple[int, int]]
    outer: tuple[tuple[int, Mapping[str, int]], ...]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.rows, self.columns) if self.layout == "n" else (self.columns, self.rows)

    @property
    def count(self) -> int:
        return math.prod(extent for extent, _ in self.outer)

    def offsets(self, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Where each matrix starts, for each of the arrays named."""
        for index in product(*(range(extent) for extent, _ in self.outer)):
            yield tuple(sum(i * steps[name] for i, (_, steps) in zip(index, self.outer, strict=True)) for name in names)


def matrices(arrays: Mapping[str, tuple[Shape, Shape]], axis: int) -> Matrices:
    """Arrays by name, as (shape, strides), all of one shape with at least one dimension. The last array decides the
    layout."""
    shape = next(iter(arrays.values()))[0]
    groups: list[tuple[int, dict[str, int]]] = []
    for at, extent in enumerate(shape):
        if at == axis or extent == 1:
            continue
        steps = {name: strides[at] for name, (_, strides) in arrays.items()}
        if groups and all(groups[-1][1][name] == steps[name] * extent for name in arrays):
            groups[-1] = (groups[-1][0] * extent, steps)
        else:
            groups.append((extent, steps))
    groups.sort(key=lambda group: group[0])
    rows, down = groups.pop() if groups else (1, dict.fromkeys(arrays, 0))
    along = {name: strides[axis] for name, (_, strides) in arrays.items()}
    last = list(arrays)[-1]
    turned = rows > 1 and 0 < abs(down[last]) < abs(along[last]) and shape[axis] > 1
    pairs = {name: (along[name], down[name]) if turned else (down[name], along[name]) for name in arrays}
    return Matrices(rows, shape[axis], "t" if turned else "n", pairs, tuple(groups))
