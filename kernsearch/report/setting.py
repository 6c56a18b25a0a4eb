"""A problem on a device as `explain` needs it: its derivation, its sizes, and what the model says there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import backends, launch, model, registry
from ..backends import Backend
from ..candidate import array_bytes, check_memory
from ..derive import Derivation, Variant, derive
from ..device import Device
from ..errors import DeviceError, KernsearchError
from ..feasible import FeasibleSpace
from ..model import Prediction, ceilings
from ..model.ceilings import Ceilings
from ..problem import Problem
from ..records import Record
from ..space import Op

MANY, FEW = 64, 12  # variants: of more than so many, so many are ranked


@dataclass(frozen=True)
class Setting:
    """Where a problem is explained.

    key     of the device that is spoken of
    device  whose facts are used: that one, a typical model of its architecture, or None where nobody knows any
    roof    its rates; None without facts
    rates   "measured", "shipped", "guessed", or "unknown" without facts
    """

    op: Op
    problem: Problem
    key: str
    device: Device | None
    roof: Ceilings | None
    derivation: Derivation
    sizes: Mapping[str, int]

    @property
    def rates(self) -> str:
        if self.roof is None:
            return "unknown"
        return "shipped" if self.roof.shipped else "measured" if self.roof.measured else "guessed"

    @property
    def flops(self) -> float:
        return self.op.flops(self.problem)

    @property
    def moved(self) -> int:
        """Bytes of all arrays, once each."""
        return array_bytes(self.op.root(self.problem), self.sizes)

    def peaks(self) -> tuple[float, float] | None:
        """FLOP/s of the problem's dtype, and bytes/s of a copy."""
        if self.device is None or self.roof is None:
            return None
        return self.roof.peak(self.problem.dtype, int(self.device.threads)), self.roof.copy

    def predict(self, variant: Variant, config: dict[str, int]) -> Prediction | None:
        if self.device is None or self.roof is None:
            return None
        return model.predict(variant, config, self.device, self.sizes, self.roof)

    def pick(self, variant: Variant) -> tuple[Prediction, dict[str, int]] | None:
        """The model's best config of a variant; None where none is feasible or nothing is known of the device."""
        if self.device is None or self.roof is None:
            return None
        space = FeasibleSpace(variant.params, variant.constraints, self.device, self.sizes)
        return next(iter(model.rank(variant, space, self.device, self.sizes, self.roof)), None)

    def foremost(self) -> tuple[Variant, ...]:
        """All variants; where they are many, the few of which the model expects most."""
        variants = self.derivation.variants
        if len(variants) <= MANY or self.device is None or self.roof is None:
            return variants
        return model.foremost(variants, self.device, self.sizes, self.roof, FEW)


def here(problem: Problem, backend: Backend, device: Device, *, measure: bool) -> Setting:
    """On a device of this machine; its rates are measured if they never were and `measure` says so. Raises DeviceError
    for a problem that does not fit its memory."""
    check_memory(problem, device)
    roof = ceilings.of(backend, device) if measure else ceilings.kept(device.key) or ceilings.guess(device)
    return _setting(problem, backend, device.key, device, roof, int(device.threads))


def of_record(record: Record) -> Setting:
    """On the device of a record: this machine's, else a typical one of its architecture with the rates that are kept or
    shipped of that device, else unknown. Nothing is measured. Raises KernsearchError for an op or a backend that is not
    there."""
    backend, key = backends.get(record.plan.backend), record.fingerprint.device
    device = _present(record.plan.backend, key)
    if device is None and (nominal := getattr(backend, "compile_only", None)) is not None:
        with suppress(DeviceError):
            device = nominal(record.fingerprint.arch)
    roof = None if device is None else ceilings.kept(key) or ceilings.guess(device)
    return _setting(record.problem, backend, key, device, roof, int(device.threads) if device is not None else 1)


def _present(backend: str, key: str) -> Device | None:
    try:
        device = backends.resolve(backend)[1]
    except KernsearchError:
        return None
    return device if device.key == key else None


def _setting(problem: Problem, backend: Any, key: str, device: Device | None, roof: Ceilings | None,
             threads: int) -> Setting:  # fmt: skip
    op = registry.op(problem.op)
    sizes = {**op.sizes(problem), "THREADS": threads, "ITEMSIZE": launch.itemsize(problem.dtype)}
    return Setting(op, problem, key, device, roof, derive(problem, op, registry.templates(backend.name)), sizes)
