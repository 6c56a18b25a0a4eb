"""Who works on a trial, and does that process still live?

A lease is one line: where the process runs (host, boot and pid namespace), its pid, when it started, and until when
the lease holds. On the same place the process itself is looked at; its start time tells a recycled pid from the
holder. From another place only the end of the lease can be seen, so holders renew it.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LEASE_S = 900.0


@dataclass(frozen=True)
class Lease:
    place: str
    pid: int
    started: str
    until: float  # seconds since the epoch

    def __str__(self) -> str:
        return f"{self.place} {self.pid} {self.started} {self.until:.0f}"

    @property
    def alive(self) -> bool:
        """The holder may still tell its trial."""
        if self.place != _place():
            return time.time() < self.until
        started = _started(self.pid)
        return started is not None and started == self.started


def grant(seconds: float = LEASE_S) -> Lease:
    """A lease for this process."""
    pid = os.getpid()
    return Lease(_place(), pid, _started(pid) or "-", time.time() + seconds)


def parse(text: object) -> Lease | None:
    """None for anything but a lease."""
    try:
        place, pid, started, until = str(text).split(" ")
        return Lease(place, int(pid), started, float(until))
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        boot, namespace = "-", "-"
    return "/".join(("".join(socket.gethostname().split()) or "-", boot, namespace))


def _started(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; '-' where /proc is absent; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _answers(pid) else "-"
    return None if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
