"""`matmul` on tensors of PyTorch that lie on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernsearch as ks
from kernsearch.errors import ArrayError

pytestmark = pytest.mark.gpu
DTYPES = ("bfloat16", "float16", "float32")


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    return found


def tensor(torch: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).integers(-2, 3, shape).astype("f4")
    return torch.from_numpy(values).cuda().to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_tensors_give_tensors(torch, dtype, batch):
    a, b = tensor(torch, *batch, 13, 7, dtype=dtype), tensor(torch, *batch, 7, 11, dtype=dtype, seed=1)
    bias, c = tensor(torch, 11, dtype=dtype, seed=2), tensor(torch, *batch, 13, 11, dtype=dtype, seed=3)
    want = torch.relu(a.double() @ b.double() + bias.double() + 2 * c.double())
    out = torch.empty(*batch, 13, 11, dtype=a.dtype, device=a.device)
    for _ in range(2):
        got = ks.matmul(a, b)
        assert type(got) is torch.Tensor and got.dtype == a.dtype and got.device == a.device
        assert torch.equal(got.double(), a.double() @ b.double())
        assert ks.matmul(a, b, bias=bias, c=c, beta=2.0, activation="relu", out=out) is out
        assert torch.equal(out.double(), want)
    assert torch.equal(ks.matmul(b.mT, a.mT).double(), (a.double() @ b.double()).mT)


def test_a_tensor_on_the_cpu_or_with_a_gradient_is_refused(torch):
    a, b = tensor(torch, 13, 7), tensor(torch, 7, 11)
    with pytest.raises(ArrayError, match="b is in host memory"):
        ks.matmul(a, b.cpu())
    a.requires_grad_()
    with pytest.raises(ArrayError, match="requires a gradient"):
        ks.matmul(a, b)
    with torch.no_grad():
        assert torch.equal(ks.matmul(a, b), a @ b)
    with pytest.raises(ArrayError, match="requires a gradient"):
        ks.matmul(a, b)  # a call like the last one, but for the gradient
    assert torch.equal(ks.matmul(a.detach(), b), (a @ b).detach())


def test_tensors_run_on_the_current_stream_of_pytorch_and_in_its_graphs(torch):
    a, b = tensor(torch, 64, 32), tensor(torch, 32, 96, seed=1)
    out = torch.zeros(64, 96, device="cuda")
    ks.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = ks.matmul(a, b)
        ks.matmul(a, b, out=out)
    for seed in (2, 3):
        a.copy_(tensor(torch, 64, 32, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, a @ b) and torch.equal(new, a @ b)
