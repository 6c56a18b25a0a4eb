"""The command line. Heavy modules are imported inside the commands, so that `--help` stays quick.

Exit codes: 0 done, 1 no candidate survived or something got slower, 2 a request that cannot be met, 130 interrupted.
"""

from .app import cli, main

__all__ = ["cli", "main"]
