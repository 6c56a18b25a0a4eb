"""What can go wrong, and who is told.

`Rejected` is news for the search: one candidate is no good. `KernsearchError` is for the caller: one line that says
what was given and what is wanted. Anything else is a bug and flies.
"""

from __future__ import annotations

from collections.abc import Mapping

GATES = ("space", "compile", "execution", "correctness")


class KernsearchError(Exception):
    """The caller can act on this. `exit_code` is what the command line exits with."""

    exit_code = 2


class ProblemError(KernsearchError):
    """The problem cannot be understood: op, shape, dtype, layout, epilogue or an array that does not fit it."""


class ArrayError(ProblemError, ValueError):
    """Arrays that do not fit each other or the problem; a ValueError too, as in NumPy."""


class DtypeError(ProblemError, TypeError):
    """Arrays of a dtype that the op does not take, or of mixed dtypes; a TypeError too, as in NumPy."""


class DeviceError(KernsearchError):
    """The device is unknown, absent, or too small for the problem."""


class CompilerError(KernsearchError):
    """No usable compiler was found."""


class RefusedError(CompilerError):
    """The compiler, or the gate behind it, refuses a kernel of a plan."""


class CacheError(KernsearchError):
    """The record store cannot be used."""


class StorageError(KernsearchError):
    """The study storage cannot be used."""


class SpaceError(KernsearchError):
    """A space, variant, parameter or filter is wrong, or leaves nothing to search."""


class RecordingError(KernsearchError):
    """A recorded space or its restrictions cannot be read."""


class PeerError(KernsearchError):
    """A library to compare with is unknown or not installed."""


class DashboardError(KernsearchError):
    """The dashboard is not installed, or its port cannot be had."""


class FigureError(KernsearchError):
    """A picture cannot be drawn."""


class OutputError(KernsearchError):
    """A file that was asked for cannot be written."""


class NothingSurvived(KernsearchError):
    """No candidate passed all gates; `reasons` counts why, by 'gate: reason'."""

    exit_code = 1

    def __init__(self, message: str, reasons: Mapping[str, int]):
        super().__init__(message)
        self.reasons = dict(reasons)


class Rejected(Exception):
    """A gate refuses a candidate. `gate` is one of GATES, `reason` is what a person reads.

    limit_s   the time limit that it overran: with a longer one it may pass
    doubtful  it may have been the machine's doing, so another try is worth its time
    """

    def __init__(self, reason: str, gate: str | None = None, *, limit_s: float | None = None, doubtful: bool = False):
        super().__init__(reason)
        self.reason = reason
        self.gate = gate
        self.limit_s = limit_s
        self.doubtful = doubtful
