"""A PyTorch model that switches to kernsearch: `python examples/torch_model.py`. For inference: there are no gradients.

Each linear layer, with the activation after it, becomes one call of `ks.matmul`; weights stay where they are. On a GPU
tensors go in and come out as they are, on PyTorch's stream; on a CPU they share their memory with NumPy arrays.

    kernsearch tune gemm --shape 64x512x256 --layout nt --epilogue bias,relu    # what the first layer asks for
"""

from __future__ import annotations

import sys
from typing import Any

import kernsearch as ks

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("this example wants PyTorch: pip install torch")

FUSED = {nn.ReLU: "relu", nn.SiLU: "silu"}  # activations that the epilogue of a product can be


class Linear(nn.Module):
    """A linear layer and the activation after it, in one kernel. The weight stays as PyTorch stores it: layout nt."""

    def __init__(self, layer: nn.Linear, activation: str | None) -> None:
        super().__init__()
        self.layer, self.activation = layer, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight.detach(), self.layer.bias
        bias = None if bias is None else bias.detach()
        if x.is_cuda:
            return ks.matmul(x, weight.T, bias=bias, activation=self.activation)
        arrays: list[Any] = [None if t is None else t.numpy() for t in (x, weight.T, bias)]
        return torch.from_numpy(ks.matmul(*arrays[:2], bias=arrays[2], activation=self.activation))


def switched(model: nn.Sequential) -> nn.Sequential:
    """The same model with its linear layers, and the activations that can be fused, run by kernsearch."""
    layers, left = [], list(model)
    while left:
        layer = left.pop(0)
        if isinstance(layer, nn.Linear):
            fused = FUSED.get(type(left[0])) if left else None
            if fused:
                left.pop(0)
            layer = Linear(layer, fused)
        layers.append(layer)
    return nn.Sequential(*layers)


def main() -> None:
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 10), nn.Softmax(dim=-1)
    ).to(device, dtype)
    x = torch.randn(64, 256, device=device, dtype=dtype)

    ours = switched(model)
    print("layers:", ", ".join(f"{layer.layer.out_features} {layer.activation or 'plain'}"
                               for layer in ours if isinstance(layer, Linear)))  # fmt: skip
    with torch.inference_mode():
        wanted, found = model(x), ours(x)
    print(f"on {device}: largest difference {(wanted - found).abs().max().item():.0e}")
    plan = ks.load("gemm", shape=(64, 512, 256), dtype=str(dtype).removeprefix("torch."), device=device, layout="nt",
                   epilogue="bias,relu")  # fmt: skip
    print(f"first layer: {plan.hit}, {plan.record.variant}")


if __name__ == "__main__":
    main()
