"""What tests of commands share: the exit code of one, and a home where nothing has to be measured first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from kernsearch import backends
from kernsearch.cli import main
from kernsearch.model import ceilings


def exit_code(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def know_rates(home: Path) -> None:
    """Keep guessed rates of the CPU in a home, as if they had been measured."""
    where = backends.resolve("cpu")[1]
    kept = home / "ceilings" / f"{where.key}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(ceilings.guess(where))))
