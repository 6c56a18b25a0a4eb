"""Gates: each accepts by returning and refuses by raising Rejected.

In order: space, compile (the backend's), execution, correctness.
"""

from .bench import Bench
from .correctness import agrees, repeats
from .execution import execution
from .space import space

__all__ = ["Bench", "agrees", "execution", "repeats", "space"]
