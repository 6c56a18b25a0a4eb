"""What bounds a kernel: its place under the roofline, the model's parts, and what compiler and launch tell."""

from __future__ import annotations

import math
from typing import Any

from ..model import Prediction, shown
from ..records import Record
from .setting import Setting

AT_THE_ROOF = 1.25  # within this of the least time, the roof itself is what bounds
LOST = 0.1  # share of places for blocks that stay empty from which it is worth a word


def predicted(setting: Setting, prediction: Prediction | None) -> dict[str, Any]:
    """Of a candidate that nobody measured."""
    told = _roofline(setting, None)
    if prediction is not None:
        told |= {"parts_s": _parts(prediction), "says": [f"the model expects {prediction.bound} to take longest"]}
    return told


def of_record(setting: Setting, record: Record, prediction: Prediction | None) -> dict[str, Any]:
    """Of a winner: `says` is a list of sentences, the main one first."""
    seconds = record.measurement.median_s if record.measurement is not None else None
    told = _roofline(setting, seconds)
    evidence = record.evidence.get("compile", [])
    resources: dict[str, Any] = {}
    if setting.device is not None and evidence:
        resources = shown.seen(record.plan, evidence, record.problem, setting.device)
        blocks = shown.resident(record.plan, resources, record.problem, setting.device)
        resources |= {} if blocks is None else {"resident_blocks": blocks}
    told["evidence"] = resources or {key: value for part in evidence for key, value in part.items()}
    if prediction is not None:
        told["parts_s"] = _parts(prediction)
    told["says"] = [*_main(told, prediction, seconds), *_hints(told["evidence"], prediction)]
    return told


def _roofline(setting: Setting, seconds: float | None) -> dict[str, Any]:
    """Operations by bytes that must move, against the device's; with a time, the shares of both rates."""
    told: dict[str, Any] = {"intensity": setting.flops / setting.moved, "moved_bytes": setting.moved}
    if (peaks := setting.peaks()) is None:
        return told
    flops, copy = peaks
    least = {"compute": setting.flops / flops, "memory": setting.moved / copy}
    roof = max(least, key=lambda name: least[name])
    told |= {"ridge": flops / copy, "peak_flops": flops, "copy_bytes_s": copy, "least_s": least[roof], "roof": roof}
    if seconds is not None:
        told |= {"of_least": seconds / least[roof], "of_peak": least["compute"] / seconds,
                 "of_copy": least["memory"] / seconds}  # fmt: skip
    return told


def _parts(prediction: Prediction) -> dict[str, float]:
    """Seconds by resource, the most first; those that take no time left out."""
    found = sorted(prediction.parts.items(), key=lambda part: -part[1])
    return {name: seconds for name, seconds in found if seconds > 0}


def _main(told: dict[str, Any], prediction: Prediction | None, seconds: float | None) -> list[str]:
    said = []
    if (ratio := told.get("of_least")) is not None and ratio <= AT_THE_ROOF:
        said.append(f"{told['roof']}: {ratio:.2f} of the least time that the device's rates allow")
    elif prediction is not None:
        said.append(f"{prediction.bound}: the model expects it to take longest")
    if prediction is not None and seconds is not None and not 0.5 <= prediction.seconds / seconds <= 2:
        said.append(f"the model is off by {max(prediction.seconds / seconds, seconds / prediction.seconds):.1f} times, "
                    "so something that it does not know may bound")  # fmt: skip
    return said


def _hints(found: dict[str, Any], prediction: Prediction | None) -> list[str]:
    said = []
    if (waves := found.get("waves")) is not None and (blocks := found.get("resident_blocks")):
        turns = waves / max(1, blocks)
        idle = 1 - turns / math.ceil(turns) if turns > 0 else 0.0
        if idle > LOST:
            said.append(f"waves: {turns:.2f} turns of blocks take as long as {math.ceil(turns)}, "
                        f"{idle:.0%} of the places stay empty")  # fmt: skip
    if found.get("spills"):
        said.append(f"registers: a thread writes {found['spills']} bytes that did not fit")
    if found.get("hot_loop_stack_accesses"):
        said.append(f"registers: the inner loop goes to the stack {found['hot_loop_stack_accesses']} times")
    if found.get("resident_blocks") == 1 and prediction is not None and prediction.bound == "waiting":
        said.append("occupancy: one block a multiprocessor, so nothing hides what its threads wait for")
    return said
