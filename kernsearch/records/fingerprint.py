"""What decides whether a record may be trusted here.

Two lists of differences. A *conflict* (device, architecture, kernel sources) means the record is about something else:
it is never used and never overwritten. The others (compiler, driver, measurement policy, package version) leave it
usable until it is verified again, unless the caller asks for `strict`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from ..device import Device
from ..errors import CompilerError
from ..plan import Plan

POLICIES = ("strict", "compatible", "any")


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Where and from what a record was made."""

    device: str  # the device's key
    name: str  # the maker's name of the model
    arch: str
    sources: dict[str, str]  # kernel source to the hash of its tokens
    compiler: str | None  # the toolchain's id; None when there was no compiler to ask
    driver: str | None = None  # None on the CPU
    package: str = ""
    policy: str = ""  # id of the measurement policy

    @property
    def hash(self) -> str:
        """Eight hex digits over what makes a conflict, for the names of files."""
        said = (self.device, self.name, self.arch, sorted(self.sources.items()))
        return hashlib.sha256(repr(said).encode()).hexdigest()[:8]

    def supersedes(self, older: Fingerprint) -> bool:
        """A record of this fingerprint, made now, may take the place of an older one: same device, and none of the
        older one's sources has changed since."""
        same = (self.device, self.name, self.arch) == (older.device, older.name, older.arch)
        return same and not any(changed(source, tokens) for source, tokens in older.sources.items())


def here(plan: Plan, device: Device) -> Fingerprint:
    """The fingerprint of a record of this plan made here, now. Raises OSError for a missing source."""
    from .. import __version__
    from ..measure.samples import policy

    return Fingerprint(
        device=device.key,
        name=device.name,
        arch=device.arch,
        sources={kernel.source: source_tokens(kernel.source) for kernel in plan.kernels},
        compiler=compiler_id(device),
        driver=driver(device),
        package=__version__,
        policy=policy(device),
    )


def compiler_id(device: Device) -> str | None:
    """The id of the compiler that would be used, or None when there is none."""
    from .. import backends

    try:
        return backends.get(device.backend).toolchain(device).id
    except CompilerError:
        return None


def driver(device: Device) -> str | None:
    """The version of the device's driver, None on the CPU."""
    from .. import backends

    return backends.get(device.backend).driver(device)


@lru_cache(maxsize=1024)
def source_tokens(source: str) -> str:
    """The hash of a kernel source as it is now; read once a process. Raises OSError when it is gone."""
    from .. import sources

    return sources.tokens(sources.path_of(source))


def changed(source: str, tokens: str) -> str | None:
    """What happened to a kernel source that had these tokens, or None."""
    try:
        return None if source_tokens(source) == tokens else "has changed"
    except OSError:
        return "is gone"


def conflicts(theirs: Fingerprint, device: Device) -> list[str]:
    """Why a record must not be used on this device with these sources; empty when it may."""
    found = []
    if theirs.name != device.name:
        found.append(f"it was made on {theirs.name}, this is {device.name}")
    if theirs.arch != device.arch:
        found.append(f"it was made for {theirs.arch}, this is {device.arch}")
    if theirs.device != device.key and not found:
        found.append(f"it was made on {theirs.device}, this is {device.key}")
    return found + [
        f"its kernel source {source!r} {change}"
        for source, tokens in sorted(theirs.sources.items())
        if (change := changed(source, tokens))
    ]


def differences(theirs: Fingerprint, device: Device) -> list[str]:
    """What has changed since a record was made without making it wrong; empty means that it is exact."""
    from .. import __version__
    from ..measure.samples import policy

    now = {"compiler": compiler_id(device), "driver": driver(device), "policy": policy(device), "package": __version__}
    what = {"compiler": "compiler", "driver": "driver", "policy": "measurement policy", "package": "package version"}
    return [
        f"{what[field]} was {getattr(theirs, field) or 'unknown'}, is {value or 'unknown'}"
        for field, value in now.items()
        if getattr(theirs, field) != value
    ]
