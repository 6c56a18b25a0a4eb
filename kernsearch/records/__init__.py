"""Records: winners on disk, whether they may be trusted, and which of them serves a problem."""

from .record import Measured, Record, now, on_write, read, stem, try_read, write

__all__ = ["Measured", "Record", "now", "on_write", "read", "stem", "try_read", "write"]
