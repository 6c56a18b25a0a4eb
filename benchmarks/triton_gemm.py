"""gemm as a plain Triton kernel, tuned by Triton's own autotuner over ordinary configs: a peer to compare with.

    D = act(alpha * A B + bias + beta * C), batches along the third dimension of the grid

What a person writes in an afternoon: pointers and masks, one tile of D a program, programs in bands of tile rows so
that neighbours share operands in L2, the epilogue on the accumulator. No descriptors, no persistence, no warp roles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def _config(rows: int, columns: int, depth: int, warps: int, stages: int) -> triton.Config:
    tile = {"BM": rows, "BN": columns, "BK": depth, "BAND": 8}
    return triton.Config(tile, num_warps=warps, num_stages=stages)


CONFIGS = [
    _config(128, 256, 64, 8, 3),
    _config(256, 128, 64, 8, 3),
    _config(128, 128, 64, 4, 4),
    _config(128, 128, 64, 8, 4),
    _config(128, 64, 64, 4, 4),
    _config(64, 128, 64, 4, 4),
    _config(64, 64, 64, 4, 5),
    _config(64, 32, 128, 4, 4),
    _config(32, 64, 128, 4, 4),
    _config(16, 64, 128, 4, 4),
]
CONFIGS_FLOAT32 = [  # without tensor cores: twice the bytes, and registers are what is short
    _config(128, 128, 16, 8, 3),
    _config(128, 64, 16, 4, 3),
    _config(64, 128, 16, 4, 3),
    _config(64, 64, 32, 4, 3),
    _config(32, 64, 32, 4, 3),
    _config(16, 64, 32, 4, 3),
]


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == 1:
        x = tl.maximum(x, 0.0)
    elif KIND == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 3:
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == 4:
        x = x * tl.sigmoid(x)
    return x


def _gemm(
    A, B, D, BIAS, C, M, N, K,
    a_m, a_k, b_k, b_n, d_m, d_n, c_m, c_n, a_batch, b_batch, d_batch, c_batch, alpha, beta,
    HAS_BIAS: tl.constexpr, HAS_C: tl.constexpr, KIND: tl.constexpr, WHOLE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tile_rows, tile_columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    program, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    # A band is BAND rows of tiles; inside it programs go down first, so that those that run together read few columns.
    top = program // (BAND * tile_columns) * BAND
    height = tl.minimum(tile_rows - top, BAND)
    inside = program % (BAND * tile_columns)
    m = (top + inside % height) * BM + tl.arange(0, BM)
    n = (inside // height) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    row, column = m[:, None] < M, n[None, :] < N
    a = A + batch * a_batch + m[:, None].to(tl.int64) * a_m + k[None, :] * a_k
    b = B + batch * b_batch + k[:, None] * b_k + n[None, :].to(tl.int64) * b_n
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for done in range(0, K, BK):
        if WHOLE:
            left = tl.load(a, mask=row, other=0.0)
            right = tl.load(b, mask=column, other=0.0)
        else:
            left = tl.load(a, mask=row & (k[None, :] < K - done), other=0.0)
            right = tl.load(b, mask=column & (k[:, None] < K - done), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        a += BK * a_k
        b += BK * b_k
    total *= alpha
    if HAS_BIAS:
        total += tl.load(BIAS + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if HAS_C:
        c = C + batch * c_batch + m[:, None].to(tl.int64) * c_m + n[None, :].to(tl.int64) * c_n
        total += beta * tl.load(c, mask=row & column, other=0.0).to(tl.float32)
    total = _activated(total, KIND)
    d = D + batch * d_batch + m[:, None].to(tl.int64) * d_m + n[None, :].to(tl.int64) * d_n
    tl.store(d, total.to(D.dtype.element_ty), mask=row & column)


def _tuned(configs: list[triton.Config]) -> Any:
    whole = triton.heuristics({"WHOLE": lambda args: args["K"] % args["BK"] == 0})
    return triton.autotune(configs=configs, key=["M", "N", "K", "a_k", "b_n", "HAS_BIAS", "HAS_C", "KIND"])(
        whole(triton.jit(_gemm))
    )


KERNEL, KERNEL_FLOAT32 = _tuned(CONFIGS), _tuned(CONFIGS_FLOAT32)


def gemm(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None, activation: str | None = None, alpha: float = 1.0, beta: float = 1.0,
) -> Any:  # fmt: skip
    """Compute into `out`. a (..., M, K), b (..., K, N), c and out (..., M, N), of one batch dimension at most and any
    strides; bias (N,). The compiled kernel is returned. Tunes on the first call of a shape."""
    m, n, k = (*out.shape[-2:], a.shape[-1])
    batches = out.shape[0] if out.ndim == 3 else 1

    def steps(x: torch.Tensor) -> tuple[int, int, int]:
        return (*x.stride()[-2:], x.stride(0) if x.ndim == 3 else 0)

    (a_m, a_k, a_batch), (b_k, b_n, b_batch), (d_m, d_n, d_batch) = steps(a), steps(b), steps(out)
    c_m, c_n, c_batch = steps(out if c is None else c)
    kernel = KERNEL_FLOAT32 if a.dtype == torch.float32 else KERNEL

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]), batches

    return kernel[grid](
        a, b, out, out if bias is None else bias, out if c is None else c, m, n, k,
        a_m, a_k, b_k, b_n, d_m, d_n, c_m, c_n, a_batch, b_batch, d_batch, c_batch, alpha, beta,
        HAS_BIAS=bias is not None, HAS_C=c is not None, KIND=ACTIVATIONS[activation],
    )  # fmt: skip


def chosen(out: torch.Tensor) -> str:
    """The config that the autotuner took last, for a result of this dtype."""
    best = getattr(KERNEL_FLOAT32 if out.dtype == torch.float32 else KERNEL, "best_config", None)
    return str(best)
