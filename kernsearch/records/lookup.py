"""Lookup: user's records, shipped records, the nearest valid shape, the default; each miss says why."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .. import launch, settings
from ..device import Device
from ..errors import CacheError, SpaceError
from ..plan import Plan
from ..problem import Problem
from . import classes, fingerprint
from . import record as records
from .packing import Packed
from .record import Record

Arrays = Mapping[str, launch.ArrayView]  # those of a call, by the name of the operand
call_at = launch.call_at
NEAR = 4.0  # mean log2 ratio of sizes up to which a record serves another shape; policy `any` has no limit
WORKSPACE_SHARE = 0.25  # of the device's memory: a record that wants more at another shape does not serve it


@dataclass(frozen=True)
class Hit:
    """The record that serves a problem: `kind` is exact, compatible, nearest or default."""

    kind: str
    record: Record
    reasons: tuple[str, ...]  # what was looked at in order, why it was passed over, and what was taken
    path: Path | None = None  # None for a default

    @property
    def plan(self) -> Plan:
        return self.record.plan


@dataclass(frozen=True)
class Store:
    """Records of the user (written) and those shipped with the package (read only), and the shipped defaults."""

    user: Path
    shipped: Path

    def places(self) -> tuple[tuple[str, Path], ...]:
        return (("user", self.user), ("shipped", self.shipped))

    def write(self, record: Record) -> Path:
        """Keep a record among the user's. See `records.write`."""
        return records.write(record, self.user)

    def check(self, device: Device) -> None:
        """Raise CacheError now rather than after a search when no record of the device could be written."""
        records.check(self.user, device.key)

    def files(self, place: Path, device: str, start: str = "") -> list[Path]:
        """The record files of a device whose names start so."""
        folder = place / device
        return [folder / name for name in _names(folder) if name.startswith(start) and name.endswith(".json")]

    def find(
        self,
        problem: Problem,
        device: Device,
        policy: str = "compatible",
        arrays: Arrays | None = None,
        refused: Collection[Plan] = (),
    ) -> Hit:
        """The record to use for a problem. Raises SpaceError for an unknown policy, CacheError when nothing serves.

        With `arrays`, only a record whose plan takes them as they are: all that it assumes of strides and addresses
        holds. Without, whoever calls the plan has to see to that. Plans in `refused` are passed over: the compiler did
        not take them.
        """
        if policy not in fingerprint.POLICIES:
            raise SpaceError(f"policy {policy!r}: want one of {', '.join(fingerprint.POLICIES)}")
        reasons: list[str] = []
        return (
            self._same_shape(problem, device, policy, reasons, arrays, refused)
            or self._nearest(problem, device, policy, reasons, arrays, refused)
            or self._default(problem, device, reasons, arrays, refused)
        )

    def default(self, problem: Problem, device: Device) -> Hit:
        """What serves a problem when there is no record. Raises CacheError when nothing does."""
        return self._default(problem, device, [])

    def same_shape(self, problem: Problem, device: Device) -> Hit | None:
        """The record of this very problem that would be used, or None."""
        return self._same_shape(problem, device, "compatible", [])

    def _same_shape(
        self,
        problem: Problem,
        device: Device,
        policy: str,
        reasons: list[str],
        arrays: Arrays | None = None,
        refused: Collection[Plan] = (),
    ) -> Hit | None:
        """The user's record of this very problem, else a shipped one; of several the exact, then the newest."""
        for place, folder in self.places():
            usable: list[tuple[bool, str, Path, Record, list[str]]] = []
            seen = 0
            for path in self.files(folder, device.key, records.stem(problem)):
                record = records.try_read(path)
                if isinstance(record, Record) and record.problem != problem:
                    continue
                seen += 1
                trust = self._trust(record, device, policy)
                if isinstance(record, str) or isinstance(trust, str):
                    reasons.append(f"{place} record {path.name}: {trust}")
                else:
                    usable.append((not trust, record.created, path, record, trust))
            usable.sort(key=lambda found: (*found[:2], found[2].name), reverse=True)
            for exact, _, path, record, trust in usable:
                if assumed := _against(record.plan, arrays, device, refused):
                    reasons.append(f"{place} record {path.name}: passed over, {assumed}")
                    continue
                kind = "exact" if exact else "compatible"
                reasons.append(f"{place} record {path.name}: {kind}" + "".join(f"; {change}" for change in trust))
                return Hit(kind, record, tuple(reasons), path)
            if not seen:
                also = self._elsewhere(folder, problem)
                reasons.append(f"{place}: no record of {problem.key} for {device.key}{also}")
        return None

    def _trust(self, record: Record | str, device: Device, policy: str) -> list[str] | str:
        """Harmless differences of a record that may be used, or why it may not."""
        if isinstance(record, str):
            return f"skipped, {record}"
        if clash := fingerprint.conflicts(record.fingerprint, device):
            return f"conflict, {'; '.join(clash)}"
        if strange := sorted({kernel.source for kernel in record.plan.kernels} - set(record.fingerprint.sources)):
            return f"conflict, its fingerprint does not know its kernel source {strange[0]!r}"
        changes = fingerprint.differences(record.fingerprint, device)
        if changes and policy == "strict":
            return f"refused by policy strict, {'; '.join(changes)}"
        return changes

    def _elsewhere(self, folder: Path, problem: Problem) -> str:
        found = [device for device in _names(folder) if self.files(folder, device, records.stem(problem))]
        return f" (there is one for {', '.join(found)})" if found else ""

    def nearby(self, problem: Problem, device: Device, count: int) -> list[Record]:
        """Up to `count` records that may be trusted and differ from a problem in shape at most, the nearest first."""
        same = [(0.0, place, path) for place, folder in self.places()
                for path in self.files(folder, device.key, records.stem(problem))]  # fmt: skip
        found: list[Record] = []
        for _, _, path in sorted([*same, *self._others(problem, device)], key=lambda o: (o[0], o[1] != "user", o[2])):
            record = records.try_read(path)
            if isinstance(record, str) or record.problem.at(problem.shape) != problem:
                continue
            if not isinstance(self._trust(record, device, "any"), str):
                found.append(record)
            if len(found) == count:
                break
        return found

    def _nearest(
        self,
        problem: Problem,
        device: Device,
        policy: str,
        reasons: list[str],
        arrays: Arrays | None,
        refused: Collection[Plan],
    ) -> Hit | None:
        """The trusted record of the nearest shape whose plan holds at this one."""
        looked = 0
        for distance, place, path in sorted(self._others(problem, device), key=lambda o: (o[0], o[1] != "user", o[2])):
            record = records.try_read(path)
            if isinstance(record, Record) and record.problem.at(problem.shape) != problem:
                continue
            name = f"{place} record {path.name}"
            if distance > NEAR * len(problem.shape) and policy != "any":
                reasons.append(f"nearest: {name} is too far, sizes differ by a factor of "
                               f"{2 ** (distance / len(problem.shape)):.0f} on average")  # fmt: skip
                return None
            looked += 1
            trust = self._trust(record, device, policy)
            if isinstance(record, str) or isinstance(trust, str):
                reasons.append(f"nearest: {name}: {trust}")
            elif invalid := unfit(record.plan, problem, device) or _against(record.plan, arrays, device, refused):
                reasons.append(f"nearest: {name} is not valid here: {invalid}")
            else:
                reasons.append(f"nearest: {name}" + "".join(f"; {change}" for change in trust))
                return Hit("nearest", record, tuple(reasons), path)
        if not looked:
            reasons.append("nearest: no record of another shape with this dtype and these options")
        return None

    def _others(self, problem: Problem, device: Device) -> Iterator[tuple[float, str, Path]]:
        """(distance, place, path) of the records that differ in shape alone, as far as their names tell."""
        start, rest = f"{problem.op}_", records.rest(problem)
        for place, folder in self.places():
            for path in self.files(folder, device.key, start):
                shape, _, others = path.name[len(start) :].partition("_")
                sizes = tuple(int(n) for n in shape.split("x") if n.isascii() and n.isdigit())
                if (
                    others.startswith(rest)
                    and len(sizes) == len(problem.shape)
                    and sizes != problem.shape
                    and all(sizes)
                ):
                    yield distance(sizes, problem.shape), place, path

    def _default(
        self,
        problem: Problem,
        device: Device,
        reasons: list[str],
        arrays: Arrays | None = None,
        refused: Collection[Plan] = (),
    ) -> Hit:
        """The shipped default of the nearest shape for this architecture, else of a class that serves any."""
        looked = len(reasons)
        for arch in classes.serving(device):
            none = True
            for record in self._defaults(problem, arch):
                none = False
                name = f"default for {arch} near {'x'.join(map(str, record.problem.shape))}"
                stale = [s for s, t in record.fingerprint.sources.items() if fingerprint.changed(s, t)]
                if stale:
                    gone = (f"default for {arch}: conflict, its kernel source {stale[0]!r} has changed since "
                            "`python -m kernsearch.records.defaults` was run")  # fmt: skip
                    reasons += [] if gone in reasons else [gone]
                elif invalid := unfit(record.plan, problem, device) or _against(record.plan, arrays, device, refused):
                    reasons.append(f"{name} is not valid here: {invalid}")
                else:
                    reasons.append(f"{name}: {record.variant}")
                    return Hit("default", record, tuple(reasons))
            if none:
                reasons.append(f"no default of {problem.op} {problem.dtype} with these options for {arch}")
        raise CacheError(f"nothing can run {problem.key} on {device.key}: {'; '.join(dict.fromkeys(reasons[looked:]))}")

    def _defaults(self, problem: Problem, arch: str) -> Iterator[Record]:
        """Defaults of a class of devices that differ from a problem in shape at most, the nearest first, and of one
        shape in the order of the file: the best first."""
        path = self.shipped / "defaults" / arch / f"{problem.op}.json"
        if not path.is_file():
            return
        shapes = [(tuple(_packed(path).field(i, "problem")["shape"]), i) for i in _packed(path).of(problem)]
        for _, _, i in sorted((distance(s, problem.shape), s, i) for s, i in shapes):
            yield _packed_record(path, i)


def store() -> Store:
    """The store of the settings in force. Raises CacheError when KERNSEARCH_CACHE is unusable."""
    return Store(settings.data_dir() / "records", shipped_folder())


def shipped_folder() -> Path:
    import kernsearch.cache

    return Path(kernsearch.cache.__path__[0])


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Sum over the sizes of |log2 ratio|."""
    return sum(abs(math.log2(x / y)) for x, y in zip(a, b, strict=True))


@cache
def _packed(path: Path) -> Packed:
    return Packed(path.read_bytes())


@cache
def _packed_record(path: Path, index: int) -> Record:
    return Record.from_json(_packed(path)[index])


def _names(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing when it is not there or is no folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


# What a plan wants at a shape ---------------------------------------------------------------------------------------


def _against(plan: Plan, arrays: Arrays | None, device: Device, refused: Collection[Plan]) -> str | None:
    """As `unmet`, and that the compiler refuses the plan."""
    return "the compiler refuses it" if plan in refused else unmet(plan, arrays, device)


def unmet(plan: Plan, arrays: Arrays | None, device: Device) -> str | None:
    """What a plan assumes and these arrays do not give, as a person reads it, or None."""
    if arrays is None or not plan.assumes:
        return None
    assumed = launch.unmet(plan, launch.names(plan, arrays, device.facts.get("threads", 1)))
    return f"it assumes {assumed}, which these arrays do not give" if assumed else None


def unfit(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why a plan made for another shape must not serve this one, or None."""
    call, names = call_at(plan, problem.shape, device.facts.get("threads", 1))
    if assumed := launch.unmet(plan, names):
        return f"it assumes {assumed}"
    memory, wanted = device.facts.get("memory_bytes", 0), call.workspace_bytes
    if memory and wanted > WORKSPACE_SHARE * memory:
        return f"it wants {wanted} bytes of workspace, more than a quarter of the memory"
    return None
