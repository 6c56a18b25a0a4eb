"""More threads do more work, if there is enough of it, and if it is shared out along the right axis."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

from .split_k import SETS

SMALL, SQUARE, VECTOR, DEEP = (64, 64, 64), (1024, 1024, 1024), (1, 4096, 4096), (64, 64, 16384)
WOKEN = (
    "the model charges a section on all threads as it was measured, right after another one; here the "
    "caches are emptied in between, so the other thread rests and is woken first"
)


def _label(shape: tuple[int, ...], threads: int, how: str = "") -> str:
    return f"{'x'.join(map(str, shape))}, {threads} thread{'s' * (threads > 1)}{how}"


def arms(device: Device) -> tuple[Arm, ...]:
    every = int(device.threads)
    if every < 2:
        return ()
    found = []
    for shape, kernel in ((SMALL, "unpacked"), (SQUARE, "register_tiled"), (VECTOR, "few_rows"), (DEEP, "unpacked")):
        alone = _label(shape, 1)
        found.append(Arm(alone, shape, (kernel,), dtype="float32", threads=1))
        found.append(Arm(_label(shape, every), shape, (kernel,), dtype="float32", like=alone))
    slabs = {"SPLIT": min((n for n in (2, 3, 4, 6, 8, 16) if n >= every), default=16)}
    for shape, kernel in ((DEEP, "unpacked_k+combine"), (SQUARE, "split_k+combine")):  # in the same tiles
        along = _label(shape, every, " along K")
        found.append(Arm(along, shape, (kernel,), slabs, dtype="float32", like=_label(shape, 1)))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    every = int(device.threads)
    more, other = f"{every} threads instead of one", "along K instead of rows or columns"
    found = [(more, shape, _label(shape, 1), _label(shape, every)) for shape in (SMALL, SQUARE, VECTOR, DEEP)]
    found += [(other, shape, _label(shape, every), _label(shape, every, " along K")) for shape in (DEEP, SQUARE)]
    notes = {(more, SMALL): WOKEN, (other, DEEP): SETS}
    return tuple(
        Comparison(f"{what}, {'x'.join(map(str, s))}", before, after, note=notes.get((what, s), ""), slower=True)
        for what, s, before, after in found
    )


CASE = Case(
    name="threads",
    op="gemm",
    claim="a product gets faster with every core that works on it",
    mechanism="a small product ends before another thread has begun, and a vector waits for memory, which cores share",
    backends=("cpu",),
    arms=arms,
    comparisons=comparisons,
)
