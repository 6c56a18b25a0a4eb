"""Ctrl-C during a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """While entered, the first Ctrl-C calls a function and the second raises KeyboardInterrupt.

    Only the main thread can arrange that; in another one nothing changes.
    """

    def __init__(self, first: Callable[[], None]):
        self._first = first
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._first()
