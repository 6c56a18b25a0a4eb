"""Attention as an operator of PyTorch, eager and compiled, on a CPU and on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import kernsearch as ks  # noqa: E402
from kernsearch import torch_ops  # noqa: E402
from kernsearch.errors import ArrayError, DtypeError  # noqa: E402


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
    with pytest.raises(DtypeError, match=r"k is ndarray: want a torch\.Tensor"):
        torch_ops.attention(q, k.cpu().numpy(), v)
    with pytest.raises(ArrayError, match=f"q is on {q.device}, v on meta: want one device"):
        torch_ops.attention(q, k, v.to("meta"))
    with pytest.raises(ArrayError, match=r"q is torch\.sparse_coo: want a strided tensor"):
        torch_ops.attention(q.to_sparse(), k, v)


def test_offsets_may_be_any_whole_number(place):
    q, k, v = some(place, torch.float32, (1, 2, 7, 8), (1, 2, 9, 8), (1, 2, 9, 5))
    every = torch_ops.attention(q, k, v)
    torch.testing.assert_close(torch_ops.attention(q, k, v, causal=True, query_offset=1 << 70), every)
    assert not torch_ops.attention(q, k, v, causal=True, query_offset=-(1 << 70)).any()


def test_tensors_that_numpy_cannot_read_are_said_in_one_line():
    x = torch.ones(1, 2, 3, 4)
    for given, words in ((x.bfloat16(), "BFloat16"), (x.requires_grad_(), "requires grad")):
        for call in (lambda a: ks.attention(a, a, a), lambda a: ks.softmax(a), lambda a: ks.matmul(a[0, 0], a[0, 0].T)):
            with pytest.raises(DtypeError, match=f"is Tensor, which NumPy cannot read .*{words}") as error:
                call(given)
            assert "\n" not in str(error.value)
