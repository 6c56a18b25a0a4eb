"""What raw samples say: whether each change wins, loses or makes no difference, and by how much.

`judged` takes the data of a case as it is kept in `data.json` and computes everything that is not raw anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..errors import CacheError
from ..measure.stats import shift_interval

SCHEMA = 1  # of data.json
CONFIDENCE = 0.99
TIE = 0.01  # ratios nearer to 1 than this are equal for every purpose
_OF_AN_ARM = ("label", "variant", "config", "flops", "predicted_s")


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


def recording(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Recorded data if it is that of the case `name` and has samples of all that is compared. Raises CacheError."""
    if data.get("case") != name:
        raise CacheError(f"want a recording of case {name!r}, this is one of {data.get('case')!r}")
    lacking = [key for key in ("schema", "claim", "mechanism", "device", "date", "comparisons") if key not in data]
    if lacking or data["schema"] != SCHEMA:
        raise CacheError(f"want a recording of schema {SCHEMA}" + (f", {lacking[0]!r} is missing" if lacking else ""))
    for arm in data["arms"]:
        samples = arm.get("samples_s", ()) if isinstance(arm, dict) else ()
        if not samples:
            raise CacheError("want samples of each arm: a prediction without a measurement has no verdict")
        if not all(isinstance(s, int | float) and s > 0 for s in samples):
            raise CacheError(f"arm {arm.get('label')!r}: want samples in seconds, above 0")
        if (refused := arm.get("refused")) is not None and not ("gate" in refused and "reason" in refused):
            raise CacheError(f"arm {arm.get('label')!r}: want the gate and the reason of its refusal")
        if absent := [key for key in _OF_AN_ARM if key not in arm]:
            raise CacheError(f"arm {arm.get('label')!r}: {absent[0]!r} is missing")
    if len({len(arm["samples_s"]) for arm in data["arms"]}) != 1:
        raise CacheError("want as many samples of each arm: they are compared round by round")
    labels = {arm["label"] for arm in data["arms"]}
    for declared in data["comparisons"]:
        if not {declared.get("before"), declared.get("after")} <= labels or declared.get("per") not in ("call", "flop"):
            raise CacheError(f"comparison {declared.get('label')!r}: want two of the arms, per call or flop")
    if not data["comparisons"]:
        raise CacheError("want a comparison: the first one is the verdict")
    return data


def judged(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with medians, comparisons and the verdict computed from its samples. Whatever its samples say, a change
    to or from an arm that a gate refused is `refused`."""
    arms = {arm["label"]: arm for arm in data["arms"]}
    comparisons = []
    for declared in data["comparisons"]:
        scale = {name: 1.0 if declared["per"] == "call" else 1 / arms[name]["flops"] for name in arms}
        before, after = declared["before"], declared["after"]
        times = {name: [s * scale[name] for s in arms[name]["samples_s"]] for name in (before, after)}
        value, low, high = ratio(times[before], times[after])
        predicted = arms[after]["predicted_s"] * scale[after] / (arms[before]["predicted_s"] * scale[before])
        refused = any("refused" in arms[name] for name in (before, after))
        comparisons.append(
            {
                **{key: declared[key] for key in ("label", "before", "after", "per")},
                "note": declared.get("note", ""),
                "slower": declared.get("slower"),
                "predicted": predicted,
                "predicted_verdict": word(predicted, predicted, predicted),
                "measured": value,
                "ci": [low, high],
                "verdict": "refused" if refused else word(value, low, high),
            }
        )
    first = comparisons[0]
    return {
        **data,
        "arms": [{**arm, "median_s": median(arm["samples_s"])} for arm in data["arms"]],
        "comparisons": comparisons,
        "verdict": {"verdict": first["verdict"], "size": first["measured"], "ci": first["ci"], "of": first["label"]},
    }


def wrong(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of judged data that went another way than the model said: to another verdict, and so that its
    ratio is not in the interval. What was refused has no way to go. A note that explains the opposite is left out."""
    off = [c for c in data["comparisons"] if c["verdict"] not in (c["predicted_verdict"], "refused") and _outside(c)]
    return [c if c["slower"] in (None, c["measured"] > c["predicted"]) else {**c, "note": ""} for c in off]


def _outside(comparison: Mapping[str, Any]) -> bool:
    low, high = comparison["ci"]
    return not low <= comparison["predicted"] <= high
