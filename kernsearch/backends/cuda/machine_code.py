"""The machine code of a cubin, as text: for whoever asks what the compiler has made of a kernel."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from ...errors import CompilerError


def disassembled(cubin: Path, *flags: str) -> str:
    """What nvdisasm says of a cubin. Raises CompilerError without the wheel that brings it."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (tool := Path(folder, "cu13", "bin", "nvdisasm")).is_file():
            return subprocess.run([tool, *flags, cubin], capture_output=True, text=True, check=True).stdout
    raise CompilerError("there is no nvdisasm: pip install 'kernsearch[nvrtc]'")
