"""Arrays as PyTorch's tensors and back, for the peers of every op. `torch` is the module, which they load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def tensor(torch: Any, array: np.ndarray) -> Any:
    """The same memory as a tensor; NumPy's bfloat16 is unknown to PyTorch, its bits are not."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def on_device(torch: Any, inputs: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    """Copies of arrays on a GPU, by name."""
    device = torch.device("cuda", index)
    return {name: tensor(torch, array).to(device) for name, array in inputs.items()}


def fetched(result: Any) -> np.ndarray:
    """A tensor as an array in host memory: float64 as it is, everything else as float32."""
    return np.asarray((result if result.element_size() == 8 else result.float()).cpu().numpy())
