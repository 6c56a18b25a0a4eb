"""Attention as an operator of PyTorch, eager and compiled, on a CPU and on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from kernsearch import torch_ops  # noqa: E402
from kernsearch.errors import ArrayError  # noqa: E402


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return request.param


def some(place, dtype, *shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float32).to(dtype).to(place) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_it_gives_what_pytorch_gives(place, dtype, causal):
    q, k, v = some(place, dtype, (2, 4, 33, 16), (2, 2, 33, 16), (2, 2, 33, 16))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    got = torch_ops.attention(q, k, v, causal=causal)
    torch.testing.assert_close(
        got, want, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5 if dtype == torch.float32 else 2e-2
    )


def test_a_compiled_model_calls_it(place):
    q, k, v = some(place, torch.float32, (1, 2, 20, 8), (1, 2, 30, 8), (1, 2, 30, 8))

    def model(q, k, v):
        return torch_ops.attention(2 * q, k, v, scale=0.25).sum(-1)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), model(q, k, v))


def test_the_operator_keeps_the_rules_of_pytorch(place):
    q, k, v = some(place, torch.float32, (1, 2, 7, 8), (1, 2, 9, 8), (1, 2, 9, 5))
    torch.library.opcheck(torch.ops.kernsearch.attention, (q, k, v, "bottom-right", None, None),
                          test_utils=("test_schema", "test_faketensor"))  # fmt: skip


def test_what_does_not_fit_is_said_in_one_line(place):
    q, k, v = some(place, torch.float32, (1, 2, 7, 8), (1, 2, 9, 4), (1, 2, 9, 5))
    with pytest.raises(ArrayError, match="want the same dim"):
        torch_ops.attention(q, k, v)
