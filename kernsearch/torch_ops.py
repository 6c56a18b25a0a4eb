"""PyTorch operators, for models that torch.compile takes apart: import this module, PyTorch is not loaded otherwise.

    from kernsearch.torch_ops import attention
    o = attention(q, k, v, causal=True)

Tensors on a CPU or a GPU; no gradients are recorded. Errors are those of the functions of `kernsearch`, also for
tensors of several devices or that are not strided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import kernsearch
from kernsearch.errors import ArrayError, DtypeError

_FARTHEST = 1 << 62


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    query_offset: int | None = None,
) -> torch.Tensor:
    """`kernsearch.attention` as the operator kernsearch::attention: tensors (batch, heads, length, dim)."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise DtypeError(f"{name} is {type(x).__name__}: want a torch.Tensor")
        if x.device != q.device:
            raise ArrayError(f"q is on {q.device}, {name} on {x.device}: want one device")
        if x.layout != torch.strided:
            raise ArrayError(f"{name} is {x.layout}: want a strided tensor")
    mask = causal if isinstance(causal, str) else "bottom-right" if causal else "none"
    if isinstance(query_offset, int):  # beyond so many keys it makes no difference
        query_offset = max(-_FARTHEST, min(_FARTHEST, query_offset))
    result: torch.Tensor = torch.ops.kernsearch.attention(q, k, v, mask, scale, query_offset)
    return result


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: str,
    scale: float | None,
    query_offset: int | None,
) -> torch.Tensor:
    out = _shape(q, k, v, causal, scale, query_offset)
    given = [x.detach() for x in (q, k, v)]
    how: dict[str, Any] = {"causal": causal, "scale": scale, "query_offset": query_offset}
    if q.is_cuda:
        kernsearch.attention(*given, out=out, **how)
    else:
        kernsearch.attention(*map(_array, given), out=_array(out), **how)
    return out


def _shape(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: str,
    scale: float | None,
    query_offset: int | None,
) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor on a CPU as a NumPy array."""
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


# Annotations are text here, which torch.library does not read: the schema is written out.
_SCHEMA = "(Tensor q, Tensor k, Tensor v, str causal, float? scale, int? query_offset) -> Tensor"
_operator = torch.library.custom_op("kernsearch::attention", _run, mutates_args=(), schema=_SCHEMA)
_operator.register_fake(_shape)
