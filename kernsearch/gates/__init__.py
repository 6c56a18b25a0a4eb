"""Gates: each accepts by returning and refuses by raising Rejected.

In order: space, compile (the backend's), execution, correctness.
"""

from .bench import Bench
from .correctness import agrees, repeats
from .execution import execution
from .opened import OpenBench, open_bench
from .space import space

__all__ = ["Bench", "OpenBench", "agrees", "execution", "open_bench", "repeats", "space"]
