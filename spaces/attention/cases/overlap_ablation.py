"""What is left of a warp-specialized attention kernel when its ways of doing two things at once are taken away."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHAPE = (4, 16, 4096, 4096, 128, 128)
KERNEL = ("attention_specialized",)
ALL = {"BM": 128, "BK": 128, "STAGES": 2, "OVERLAP": 1, "PINGPONG": 1}
FEWER_KEYS = {**ALL, "BK": 112}  # of which three tiles fit into a block's shared memory
FULL, LATER, TOGETHER, NEITHER = "everything", "exponentials after", "consumers at once", "neither"
TWO, THREE, ALIKE = "112 keys, two stages", "112 keys, three stages", "warps all alike"
STEPS = (
    ("exponentials beside products instead of after them", LATER, FULL),
    ("consumers in turns instead of at once", TOGETHER, FULL),
    ("turns and exponentials beside products instead of neither", NEITHER, FULL),
    ("a producer and consumers instead of warps all alike", ALIKE, FULL),
    ("three stages of 112 keys instead of two", TWO, THREE),
)
HIDDEN = (
    "the model lets turns hide a fixed share of the exponentials; here each consumer's own exponentials run beside its "
    "products, and waiting for a turn costs more than it adds"
)


def arms(device: Device) -> tuple[Arm, ...]:
    if int(device.cc_major) != 9:
        return ()
    changes = {
        FULL: ALL,
        LATER: {**ALL, "OVERLAP": 0},
        TOGETHER: {**ALL, "PINGPONG": 0},
        NEITHER: {**ALL, "OVERLAP": 0, "PINGPONG": 0},
        TWO: FEWER_KEYS,
        THREE: {**FEWER_KEYS, "STAGES": 3},
    }
    found = [
        Arm(label, SHAPE, KERNEL, fix, like="" if label == FULL else FULL, dtype="bfloat16")
        for label, fix in changes.items()
    ]
    return (*found, Arm(ALIKE, SHAPE, ("attention_async",), dtype="bfloat16"))


def comparisons(device: Device) -> tuple[Comparison, ...]:
    return tuple(Comparison(label, before, after, note=HIDDEN, slower=True) for label, before, after in STEPS)


CASE = Case(
    name="overlap-ablation",
    op="attention",
    claim="a warp-specialized attention kernel owes its speed to what it does at once: copies by a producer, "
    "exponentials beside products, consumers in turns, and one more stage in flight would be better still",
    mechanism="products of a tile wait for its exponentials and these for the products, so one unit idles unless tiles "
    "or consumers are kept half a step apart; registers for two tiles at once, and the keys that a third stage takes "
    "from each, may cost more than that gives",
    backends=("cuda",),
    arms=arms,
    comparisons=comparisons,
)
