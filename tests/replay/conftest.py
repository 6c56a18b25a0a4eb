import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made import TINY, kernel_tuner


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Six points of two letters; one fails when it runs; the best takes 2 ms."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(kernel_tuner(TINY)))
    return path
