"""Looking after records: list them, and check again those made with another compiler or package version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .. import backends, registry
from ..backends import Compiled
from ..device import Device
from ..errors import CompilerError, KernsearchError, Rejected
from . import fingerprint, lookup
from . import record as records
from .record import Record


def list_records() -> list[dict[str, Any]]:
    """One row a file, the user's first: place (user, shipped), name, path, problem, device, variant, config, median_s,
    created, and status on this device: exact, compatible, conflict or skipped, with the reason.
    """
    device = backends.resolve("auto")[1]
    return [_row(place, path, device) for place, path in _files()]


def _files() -> Iterator[tuple[str, Path]]:
    for place, folder in lookup.store().places():
        for path in sorted(folder.glob("*/*.json")):
            yield place, path


def _row(place: str, path: Path, device: Device) -> dict[str, Any]:
    row = {"place": place, "name": f"{path.parent.name}/{path.stem}", "path": str(path)}
    record = records.try_read(path)
    if isinstance(record, str):
        empty = dict.fromkeys(("variant", "config", "median_s", "created"))
        return row | empty | {"problem": "?", "variant": "?", "device": path.parent.name, "status": "skipped",
                              "reason": record}  # fmt: skip
    status, reason = _status(record, device)
    return row | {
        "problem": record.problem.key,
        "device": record.fingerprint.device,
        "variant": record.variant,
        "config": record.config,
        "median_s": record.measurement.median_s if record.measurement else None,
        "created": record.created,
        "status": status,
        "reason": reason,
    }


def _status(record: Record, device: Device) -> tuple[str, str]:
    if clash := fingerprint.conflicts(record.fingerprint, device):
        return "conflict", "; ".join(clash)
    changes = fingerprint.differences(record.fingerprint, device)
    return ("compatible", "; ".join(changes)) if changes else ("exact", "")


def verify_records() -> list[dict[str, Any]]:
    """Put every compatible record of the user on this device through the gates again, as before it was recorded.

    One that passes gets the fingerprint of here and now, and is exact from then on; its measurement stays, with the
    policy it was made under. One that is rejected is set aside, so that nothing loads it any more. One row each: name,
    path, problem, status (verified, rejected, failed), reason. Raises CompilerError when nothing can compile.
    """
    device = backends.resolve("auto")[1]
    rows = []
    for place, path in _files():
        record = records.try_read(path)
        if place != "user" or isinstance(record, str) or _status(record, device)[0] != "compatible":
            continue
        row = {"name": f"{path.parent.name}/{path.stem}", "path": str(path), "problem": record.problem.key}
        try:
            evidence = examine(record, device)
            fresh = fingerprint.here(record.plan, device)
            records.write(msgspec.structs.replace(record, fingerprint=fresh, evidence=evidence), path.parent.parent)
        except Rejected as refusal:
            aside = str(records.set_aside(path))
            rows.append(row | {"path": aside, "status": "rejected", "reason": f"{refusal.gate}: {refusal.reason}"})
        except CompilerError:
            raise
        except KernsearchError as error:
            rows.append(row | {"status": "failed", "reason": str(error)})
        else:
            rows.append(row | {"status": "verified", "reason": _status(record, device)[1]})
    return rows


def examine(record: Record, device: Device) -> dict[str, Any]:
    """What the gates find for a record's plan on this device. Raises Rejected, or CompilerError."""
    from ..gates import open_bench

    op, backend = registry.op(record.problem.op), backends.get(device.backend)
    compiled: list[Compiled] = [backend.compile(kernel, device) for kernel in record.plan.kernels]
    with open_bench(op, record.problem, device, backend) as bench:
        return dict(bench.examine(record.plan, compiled, record.config, thorough=True))
