"""Comparing on a device: one process a library for all problems, each timed by replays of a graph of its calls.

All libraries get the same numbers of operand sets and of calls a graph; see `backends.cuda.timing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..backends.cuda import nvml, timing
from ..errors import PeerError
from .bench import US, How, Turns, row_of
from .host import Child
from .peer import agree

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Problem

LOAD_S = 120.0
PREPARE_S = 240.0  # autotuners of other libraries take their time
# Variables that change how precise or how fast a library is; taken away, so that peers are at their best.
HANDICAPS = (
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUPY_TF32", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING", "TRITON_INTERPRET",
)  # fmt: skip


def bench_device(
    problems: Sequence[Problem], against: Sequence[str], ours: str, device: Device, how: How, *,
    warm: bool, cold: bool, keep_going: bool,
) -> dict[str, Any]:  # fmt: skip
    """Rows as those of `bench_problems`, and the policy. Raises PeerError unless told to keep going."""
    rows: list[dict[str, Any]] = []
    with _Field({US: ours, **{name: name for name in against}}, device, how.seed) as field:
        for problem in problems:
            try:
                rows.append(_one(field, problem, ours, against, device, how, warm, cold))
            except PeerError as error:
                if not keep_going:
                    raise
                rows.append({"problem": problem.key, "error": str(error)})
                field.close()  # whoever waits for an answer that nobody wants any more is no use
            failed = {name: why for name, why in field.errors.items() if name in against}
            if failed and not keep_going:
                raise PeerError(next(iter(failed.values())))
            rows[-1].setdefault("peers", {}).update({name: {"error": why} for name, why in failed.items()})
            field.release()
    return {"results": rows, "policy": timing.POLICY}


def _one(
    field: _Field, problem: Problem, ours: str, against: Sequence[str], device: Device, how: How,
    warm: bool, cold: bool,
) -> dict[str, Any]:  # fmt: skip
    loaded = field.load(problem)
    told = field.each(loaded, {"do": "prepare", "cold": cold})
    if US not in told:
        raise PeerError(field.errors[US])
    for name in [name for name in told if name != US]:
        try:
            agree(problem, ours, told[US]["check"], name, told[name]["check"])
        except PeerError as error:
            field.errors[name] = str(error)
            del told[name]
    copies, launches = _numbers(told, device, warm, min(said["seconds"] for said in told.values()))
    for _ in range(2):
        recorded = field.each(told, {"do": "capture", "copies": copies, "launches": launches})
        if US not in recorded:
            raise PeerError(field.errors[US])
        # The first look saw calls one by one, which for short ones is the host's time: look again at what was recorded.
        better = _numbers(told, device, warm, min(said["seconds"] for said in recorded.values()))[1]
        if better <= 1.5 * launches:
            break
        launches = better
    there = [name for name in against if name in recorded]
    turns = Turns({name: field.children[name] for name in (US, *there)}, how._replace(launches=launches))
    turns.play()
    row = row_of(problem, ours, there, told, turns)
    row |= {"copies": copies, "launches": launches}
    if (state := nvml.state(device)) is not None and state.throttled:
        row["throttled"] = list(state.throttled)
    for name in (US, *there) if cold else ():
        first = {**loaded[name]["first"], **told[name]["first"]}
        (row["ours"] if name == US else row["peers"][name])["first"] = first
    return row


def _numbers(told: dict[str, dict[str, Any]], device: Device, warm: bool, seconds: float) -> tuple[int, int]:
    """(sets of operands, calls of a graph) for all libraries."""
    copies = 1 if warm else timing.copies_for(told[US]["bytes"], int(device.l2_bytes))
    return copies, timing.launches_for(seconds, copies)


class _Field:
    """The processes of all libraries. One that fails is replaced before the next problem; `errors` says why."""

    def __init__(self, libraries: dict[str, str], device: Device, seed: int):
        self._libraries, self._index, self._seed = libraries, device.index, seed
        self.children: dict[str, Child] = {}
        self.errors: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; the next problem starts new ones."""
        for child in self.children.values():
            child.__exit__(None, None, None)
        self.children = {}

    def load(self, problem: Problem) -> dict[str, dict[str, Any]]:
        """Start what is not running, and let all make their inputs at the same time."""
        self.errors = {}
        for key, name in self._libraries.items():
            if key not in self.children:
                child = Child(name, None, dict.fromkeys(HANDICAPS), 1, self._seed, self._index)
                self.children[key] = child.__enter__()
        started = []
        for key in list(self.children):
            try:
                self.children[key].tell({"do": "load", "problem": problem.to_json()})
                started.append(key)
            except PeerError as error:
                self._fell(key, error)
        return self._answers((key, None) for key in started)

    def each(self, keys: Iterable[str], message: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Ask one after the other, as only one may use the device at a time; the answers of those that could."""
        return self._answers((key, message) for key in list(keys))

    def _answers(self, asked: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, dict[str, Any]]:
        found = {}
        for key, message in asked:
            try:
                child = self.children[key]
                found[key] = child.answer(LOAD_S) if message is None else child.ask(message, PREPARE_S)
            except PeerError as error:
                self._fell(key, error)
        return found

    def _fell(self, key: str, error: PeerError) -> None:
        self.errors[key] = str(error)
        self.children.pop(key).__exit__(type(error), error, None)

    def release(self) -> None:
        """Let every process give its memory back before the next problem."""
        self.each(self.children, {"do": "release"})
