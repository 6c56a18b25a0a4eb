"""The worker: candidates run in a process of their own, on shared memory."""

from .arena import Arena, Layout, Memory, Slot
from .host import Launch, Timing, Worker

__all__ = ["Arena", "Launch", "Layout", "Memory", "Slot", "Timing", "Worker"]
