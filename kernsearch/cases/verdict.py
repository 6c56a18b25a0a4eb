"""What raw samples say: whether each change wins, loses or makes no difference, and by how much.

`judged` takes the data of a case as it is kept in `data.json` and computes everything that is not raw anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..measure.stats import LEAST_PAIRS, shift_interval
from .recordings import Amount, Device, Seconds, refused, whole

SCHEMA = 1  # of data.json
CONFIDENCE = 0.99
TIE = 0.01  # ratios nearer to 1 than this are equal for every purpose


class _Refusal(Struct):
    gate: str
    reason: str


class _Compiled(Struct):
    registers: Amount = 0
    spill_stores: Amount = 0
    vector_spills: Amount = 0
    stack_bytes: Amount = 0
    shared_bytes: Amount = 0
    vector_bytes: Amount = 0
    hot_loop_instructions: Amount = 0
    hot_loop_stack_accesses: Amount = 0


class _Gates(Struct):
    error: float | None = None
    workspace_bytes: Amount = 0


class _Evidence(Struct):
    compile: list[_Compiled] = []
    gates: _Gates | UnsetType = UNSET
    shared_bytes: Amount = 0


class _Turns(Struct):
    accesses: Amount
    turns: Amount
    conflicts: Amount


class _Arm(Struct):
    label: str
    variant: str
    config: dict[str, int]
    flops: Amount
    predicted_s: Seconds
    samples_s: list[Seconds] = []
    problem: str = ""
    predicted_bound: str = ""
    how: list[str] = []
    waves: float | None = None
    evidence: _Evidence | UnsetType = UNSET
    turns: dict[str, _Turns] = {}
    useful_bytes: Amount = 0
    refused: _Refusal | UnsetType = UNSET


class _Comparison(Struct):
    label: str
    before: str
    after: str
    per: Literal["call", "flop"]
    note: str = ""
    slower: bool | None = None


class _Recording(Struct):
    """All that is read of data.json; what else it holds is kept as it is."""

    case: str
    claim: str
    mechanism: str
    device: Device
    date: str
    arms: Annotated[list[_Arm], Meta(min_length=1)]
    comparisons: Annotated[list[_Comparison], Meta(min_length=1)]  # the first one is the verdict
    means: dict[str, str] = {}  # see `Case`


def ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """(after / before, low, high) of seconds taken in the same rounds, with 99 % confidence; Hodges and Lehmann's
    estimate over log ratios, see `measure.stats`."""
    pairs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    centre, low, high = shift_interval(pairs, 1 - CONFIDENCE)
    return math.exp(centre), math.exp(max(low, -700.0)), math.exp(min(high, 700.0))


def word(value: float, low: float, high: float) -> str:
    """loses, wins or tie. `value` is time after by time before, with its interval."""
    if low > 1 and value > 1 + TIE:
        return "loses"
    if high < 1 and value < 1 - TIE:
        return "wins"
    return "tie"


def recording(data: Mapping[str, Any], name: str, where: str = "the recording") -> Mapping[str, Any]:
    """Recorded data if it is that of the case `name` and has samples of all that is compared. Raises CacheError in one
    line; `where`: the file that they are of, or the key of a device."""
    found = whole(data, _Recording, SCHEMA, name, where)
    if (why := _lacking(found, name)) is not None:
        raise refused(why, data, SCHEMA, name, where)
    return data


def _lacking(found: _Recording, name: str) -> str | None:
    """Why there is no verdict of data that have the right structure, or None."""
    if found.case != name:
        return f"want a recording of case {name!r}, this is one of {found.case!r}"
    arms = {arm.label: arm for arm in found.arms}
    if len(arms) < len(found.arms):
        return "two arms have one label: want a label for each"
    for arm in found.arms:
        if (rounds := len(arm.samples_s)) < LEAST_PAIRS:
            few = f"arm {arm.label!r}: {rounds} samples, want at least {LEAST_PAIRS}"
            return f"{few}: with fewer there is no interval, and a prediction without a measurement has no verdict"
        if rounds != len(found.arms[0].samples_s):
            return f"arm {arm.label!r}: want as many samples of each arm: they are compared round by round"
    for declared in found.comparisons:
        if not {declared.before, declared.after} <= set(arms):
            return f"comparison {declared.label!r} of {declared.before!r} and {declared.after!r}: want two of the arms"
        if declared.per == "flop" and min(arms[declared.before].flops, arms[declared.after].flops) < 1:
            return f"comparison {declared.label!r}: per operation, want arms with flops of 1 and more"
    return None


def judged(data: Mapping[str, Any], means: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The data with medians, comparisons and the verdict computed from its samples. Whatever its samples say, a change
    to or from an arm that a gate refused is `refused`. `means`: of the case, for data that are older than it."""
    means = data.get("means", means or {})
    arms = {arm["label"]: arm for arm in data["arms"]}
    comparisons = []
    for declared in data["comparisons"]:
        before, after = declared["before"], declared["after"]
        scale = {name: 1.0 if declared["per"] == "call" else 1 / arms[name]["flops"] for name in (before, after)}
        times = {name: [s * scale[name] for s in arms[name]["samples_s"]] for name in (before, after)}
        value, low, high = ratio(times[before], times[after])
        predicted = arms[after]["predicted_s"] * scale[after] / (arms[before]["predicted_s"] * scale[before])
        refused = any("refused" in arms[name] for name in (before, after))
        found = "refused" if refused else word(value, low, high)
        comparisons.append(
            {
                **{key: declared[key] for key in ("label", "before", "after", "per")},
                "note": declared.get("note", ""),
                "slower": declared.get("slower"),
                "predicted": predicted,
                "predicted_verdict": word(predicted, predicted, predicted),
                "measured": value,
                "ci": [low, high],
                "verdict": found,
                **({"says": means[found].replace("{times}", f"{max(value, 1 / value):.2f}")} if found in means else {}),
            }
        )
    first = comparisons[0]
    return {
        **data,
        "arms": [{**arm, "median_s": median(arm["samples_s"])} for arm in data["arms"]],
        "comparisons": comparisons,
        "verdict": {
            **{key: first[key] for key in ("verdict", "ci", "says") if key in first},
            "size": first["measured"],
            "of": first["label"],
        },
    }


def wrong(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of judged data that went another way than the model said: to another verdict, and so that its
    ratio is not in the interval. What was refused has no way to go. A note that explains the opposite is left out."""
    off = [c for c in data["comparisons"] if c["verdict"] not in (c["predicted_verdict"], "refused") and _outside(c)]
    return [c if c["slower"] in (None, c["measured"] > c["predicted"]) else {**c, "note": ""} for c in off]


def _outside(comparison: Mapping[str, Any]) -> bool:
    low, high = comparison["ci"]
    return not low <= comparison["predicted"] <= high
